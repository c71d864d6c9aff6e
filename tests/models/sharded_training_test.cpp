// The promises: training cut into grains gives the same bits for any number of processes, also after a stop and with another
// number of them; it is AdamW on the whole batch but for rounding; a step that fails changes nothing anywhere.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "engine/core/error.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "engine/processes/threads.h"
#include "engine/processes/tree_sum.h"
#include "models/trainer.h"
#include "tests/models/training_testing.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// y = b.gain * (x a.w) + b.shift, towards targets; c is read by nothing. One row of a batch of twelve in each grain.
Training::Objective fit(ParamTable& table, const std::vector<Tensor>& in) {
  const Params p(table);
  const Tensor w = p("a.w", {30, 200}, Init::normal(1)), gain = p("b.gain", {200}, Init::ones()),
               shift = p("b.shift", {200}, Init::zeros());
  p("c", {5000});
  return {mean(square(matmul(in[0], w) * gain + shift - in[1]))};
}
constexpr std::int64_t kRows = 12;
std::vector<Spec> pairs_of(std::int64_t rows) { return {f32({rows, 30}), f32({rows, 200})}; }
std::vector<Array> rows(std::uint64_t step, IndexRange range) {
  std::vector<Array> out;
  for (const Array& whole : random(pairs_of(kRows), 2 * step)) {
    std::vector<double> numbers = whole.to_vector();
    const std::int64_t width = whole.shape()[1];
    out.push_back(Array::of({numbers.begin() + range.begin * width, numbers.begin() + range.end * width},
                            {range.size(), width}, DType::f32));
  }
  return out;
}

// The steps from the `from`-th on, of a training that is loaded from `start` if it is not empty, and saved in `end`.
void train(TrainingSetup setup, std::uint64_t from, std::uint64_t to, const std::string& start,
           const std::string& end, int processes) {
  const RunIdentity identity{.config = "{}", .training = "{}", .data = "d", .data_is = "numbers"};
  run_as_processes(processes, [&](Transport& all) {
    TrainingSetup mine = setup;
    mine.processes = lent(all);
    Training training(mine);
    const std::int64_t size = kRows / setup.grains;
    training.add(pairs_of(size), fit);
    if (!start.empty()) training.load(start, identity);
    for (std::uint64_t i = from; i < to; ++i)
      training.step_grains(
          0,
          [&](std::int64_t g) {
            return rows(i, {g * size, (g + 1) * size});
          },
          0.1);
    training.save(end, identity);
  });
}

}  // namespace

TEST_CASE("tree sums: the tree depends on the number of leaves alone, however neighbours are shared out") {
  // Text of the additions shows the tree.
  const auto tree = [](std::int64_t leaves, int parts) {
    const auto add = [](std::string& a, std::string& b) { a = "(" + a + b + ")"; };
    TreeSum<std::string> whole(leaves, add);
    for (int p = 0; p < parts; ++p) {
      TreeSum<std::string> part(leaves, add);
      const IndexRange own = part_of(leaves, p, parts);
      for (std::int64_t i = own.begin; i < own.end; ++i)
        part.push({i, i + 1}, std::string(1, static_cast<char>('a' + i)));
      std::vector<IndexRange> ranges;
      for (auto& root : part.roots()) {
        ranges.push_back(root.leaves);
        whole.push(root.leaves, root.value);
      }
      CHECK(ranges == roots_of(own, leaves));
    }
    REQUIRE(whole.roots().size() == 1);
    return whole.roots()[0].value;
  };
  CHECK(tree(1, 1) == "a");
  CHECK(tree(5, 1) == "(((ab)(cd))e)");
  CHECK(tree(7, 1) == "(((ab)(cd))((ef)g))");
  for (std::int64_t leaves = 1; leaves <= 20; ++leaves)
    for (int parts = 1; parts <= static_cast<int>(leaves); ++parts)
      CHECK(tree(leaves, parts) == tree(leaves, 1));
}

TEST_CASE(
    "grains: the same file for any number of processes, also stopped and gone on with by another number") {
  const TemporaryFolder folder;
  for (const double average : {0.0, 0.9}) {
    const TrainingSetup setup{.seed = 3,
                              .groups = {{.names = "a.*", .rate = 3}, {.names = "b.shift", .rate = 0}},
                              .average_decay = average,
                              .grains = 6};
    train(setup, 0, 5, "", folder / "one", 1);
    const std::string one = read_file(folder / "one");
    for (int processes = 2; processes <= 6; ++processes) {
      train(setup, 0, 5, "", folder / "other", processes);
      CHECK_MESSAGE(read_file(folder / "other") == one, processes);
    }
    train(setup, 0, 2, "", folder / "half", 4);
    train(setup, 2, 5, folder / "half", folder / "other", 3);
    CHECK(read_file(folder / "other") == one);
    // And those are not the bits of another number of grains.
    TrainingSetup threes = setup;
    threes.grains = 3;
    train(threes, 0, 5, "", folder / "other", 1);
    CHECK(read_file(folder / "other") != one);
  }
}

TEST_CASE("grains: the same file for any number of threads, which take grains side by side") {
  const TemporaryFolder folder;
  const TrainingSetup setup{.seed = 3, .grains = 6};
  for (const int threads : {1, 2, 4, 6}) {
    const Threads scope(threads);
    train(setup, 0, 3, "", folder / std::to_string(threads), 1);
    CHECK_MESSAGE(read_file(folder / std::to_string(threads)) == read_file(folder / "1"), threads);
  }
}

TEST_CASE("grains: training is that on whole batches, but for rounding") {
  const auto trained = [](std::int64_t grains) {
    Training training({.seed = 1, .grains = grains});
    const std::int64_t size = kRows / grains;
    training.add(pairs_of(size), fit);
    std::vector<double> losses;
    for (std::uint64_t i = 0; i < 6; ++i) {
      const Training::Step s = training.step_grains(
          0,
          [&](std::int64_t g) {
            return rows(i, {g * size, (g + 1) * size});
          },
          0.01);
      losses.push_back(s.loss), losses.push_back(s.grad_norm);
    }
    for (const auto& [name, value] : training.parameters())
      for (const double x : value.to_vector()) losses.push_back(x);
    return losses;
  };
  const std::vector<double> whole = trained(1);
  for (const std::int64_t grains : {2, 3, 4, 12}) {
    const std::vector<double> cut = trained(grains);
    REQUIRE(cut.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      CHECK(cut[i] == doctest::Approx(whole[i]).epsilon(3e-5).scale(1));
  }
}

TEST_CASE("grains: a step that is not finite fails everywhere, names its op, and changes nothing") {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_as_processes(3, [&](Transport& all) {
    Training training({.seed = 0, .grains = 6, .processes = lent(all)});
    training.add({f32({2, 30}), f32({2, 200})}, fit);
    const auto grain = [](std::int64_t g) { return rows(0, {2 * g, 2 * g + 2}); };
    training.step_grains(0, grain, 0.1);
    const StateDict before = training.parameters();
    std::string said;
    try {
      training.step_grains(
          0,
          [&](std::int64_t g) {
            std::vector<Array> out = grain(g);
            if (g == 4) out[0] = Array::full(DType::f32, {2, 30}, INFINITY);
            return out;
          },
          0.1);
    } catch (const ValueError& e) {
      said = e.what();
    }
    const std::optional<NonFinite> why = training.why_not_finite();
    said += why ? why->str() : "no reason";
    for (const auto& [name, value] : training.parameters())
      if (!value.same_bits(before.at(name))) said += " changed " + name;
    training.step_grains(0, grain, 0.1);  // goes on
    const std::lock_guard lock(mutex);
    messages.push_back(said);
  });
  REQUIRE(messages.size() == 3);
  for (const std::string& m : messages) {
    CHECK_MESSAGE(contains(m, "step 2: the loss is not finite"), m);
    CHECK_MESSAGE(contains(m, "element 0 of %0 = input"), m);
    CHECK_MESSAGE(!contains(m, "changed"), m);
  }
}

TEST_CASE("grains: too few for the processes, and batches that are not cut, are refused with what to do") {
  run_as_processes(2, [](Transport& all) {
    if (all.rank() == 0)
      CHECK(contains(message_of<ConfigError>([&] { Training({.processes = lent(all)}); }),
                     "a batch of 1 grain cannot be shared by 2 processes: cut it into 2 or more"));
  });
  CHECK(contains(message_of<ConfigError>([] { Training({.grains = 0}); }), "grains must be from 1"));
  Training training({.grains = 2});
  training.add(pairs_of(6), fit);
  CHECK(contains(message_of<ConfigError>([&] { training.step(0, rows(0, {0, 12}), 0.1); }), "has grains"));
  CHECK(contains(message_of<ConfigError>([&] {
                   training.step_grains(
                       0, [](std::int64_t) { return std::vector<Array>{}; }, 0.1);
                 }),
                 "a batch of 0 arrays"));
}

TEST_CASE(
    "grains: processes that begin with other numbers are refused at the first step, before any is sent") {
  const auto said = [](const std::function<void(Training&, int rank)>& start, bool seeds_apart) {
    std::vector<std::string> out(3);
    run_as_processes(3, [&](Transport& all) {
      Training training(
          {.seed = seeds_apart && all.rank() == 2 ? 1u : 0u, .grains = 6, .processes = lent(all)});
      training.add({f32({2, 30}), f32({2, 200})}, fit);
      start(training, all.rank());
      const auto step = [&] {
        training.step_grains(
            0,
            [](std::int64_t g) {
              return rows(0, {2 * g, 2 * g + 2});
            },
            0.1);
      };
      out[static_cast<std::size_t>(all.rank())] = message_of<ProcessError>(step);
    });
    return out;
  };
  for (const std::string& m : said([](Training&, int) {}, true))
    CHECK(contains(m, "rank 2 has other parameters to start from than rank 0"));
  const auto other_weights = [](Training& t, int rank) {
    StateDict params = t.parameters();
    for (auto& [name, value] : params) {
      value = value.clone();
      if (rank == 1) value.as<float>()[0] += 1;
    }
    t.start_from(params);
  };
  for (const std::string& m : said(other_weights, false))
    CHECK(contains(m, "rank 1 has other parameters to start from than rank 0"));
  // Nor one with other names.
  for (const std::string& m : [&] {
         std::vector<std::string> out(2);
         run_as_processes(2, [&](Transport& all) {
           Training training({.grains = 2, .processes = lent(all)});
           training.add({f32({2, 3})}, [&](ParamTable& table, const std::vector<Tensor>& in) {
             return Training::Objective{
                 mean(matmul(in[0], table.get(all.rank() == 1 ? "v" : "w", {3, 3}, Init::ones())))};
           });
           out[static_cast<std::size_t>(all.rank())] = message_of<ProcessError>([&] {
             training.step_grains(
                 0,
                 [](std::int64_t) {
                   return std::vector{Array::zeros(DType::f32, {2, 3})};
                 },
                 0.1);
           });
         });
         return out;
       }())
    CHECK(contains(m, "rank 1 has other parameters to start from than rank 0"));
  // Another seed makes no difference where all start from the same weights.
  std::vector<char> fine(2, 0);
  run_as_processes(2, [&](Transport& all) {
    Training training({.seed = static_cast<std::uint64_t>(all.rank()), .grains = 6, .processes = lent(all)});
    training.add({f32({2, 30}), f32({2, 200})}, fit);
    StateDict params = training.parameters();
    for (auto& [name, value] : params) value = Array::full(DType::f32, value.shape(), 0.01);
    training.start_from(params);
    training.step_grains(
        0,
        [](std::int64_t g) {
          return rows(0, {2 * g, 2 * g + 2});
        },
        0.1);
    fine[static_cast<std::size_t>(all.rank())] = 1;
  });
  CHECK(fine == std::vector<char>{1, 1});
}

TEST_CASE("grains: language models too, packed and within a budget, the loss that of the whole batch" *
          doctest::test_suite("slow")) {
  const ByteCorpus corpus = text_of_documents();
  for (const std::int64_t pack : {0, 4}) {
    TrainingOptions o = small_training("ttt-linear");
    o.pack = pack;
    const std::string one = checkpoint_of(o, corpus, 1, 3);
    for (int processes = 2; processes <= 4; ++processes) CHECK(checkpoint_of(o, corpus, processes, 3) == one);
    Trainer cut(o, corpus);
    o.grains = 1;
    Trainer whole(o, corpus);
    for (int i = 0; i < 3; ++i) {
      const StepResult a = cut.step(), b = whole.step();
      CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-5));
      CHECK(a.grad_norm == doctest::Approx(b.grad_norm).epsilon(1e-3));
    }
  }
  TrainingOptions o = small_training("ttt-mlp");
  o.context = 256;
  const std::string one = checkpoint_of(o, corpus, 1, 2);
  {
    const Threads scope(1);
    o.memory_budget = Trainer(o, corpus).arena_bytes() * 9 / 10;
  }
  CHECK(checkpoint_of(o, corpus, 3, 2) == one);
  TrainingOptions uneven = small_training("linear");
  uneven.grains = 3;
  CHECK(contains(message_of<ConfigError>([&] { Trainer(uneven, corpus); }),
                 "a batch of 4 sequences cannot be cut into 3 grains"));
}

TEST_CASE("grains: the same file for any number of processes with every learner" *
          doctest::test_suite("slow")) {
  const ByteCorpus corpus = text_of_documents();
  for (const std::string& layer : layer_names()) {
    CAPTURE(layer);
    const TrainingOptions o = small_training(layer_type(layer));
    const std::string one = checkpoint_of(o, corpus, 1, 2);
    for (const int processes : {2, 3, 4}) CHECK(checkpoint_of(o, corpus, processes, 2) == one);
  }
}

TEST_CASE(
    "grains: processes that are set up differently are refused at the first step, which names rank and field") {
  const TrainingSetup usual{.groups = {{.names = "b.*", .rate = 0.5}}, .average_decay = 0.5, .grains = 6};
  const auto said = [&](const std::function<void(TrainingSetup&)>& change, std::int64_t rows_of_others = 2) {
    std::vector<std::string> out(3);
    run_as_processes(3, [&](Transport& all) {
      TrainingSetup mine = usual;
      if (all.rank() == 2) change(mine);
      mine.processes = lent(all);
      Training training(mine);
      const std::int64_t size = all.rank() == 2 ? rows_of_others : 2;
      training.add(pairs_of(size), fit);
      out[static_cast<std::size_t>(all.rank())] = message_of<ProcessError>([&] {
        training.step_grains(
            0,
            [&](std::int64_t) {
              return rows(0, {0, size});
            },
            0.1);
      });
    });
    return out;
  };
  const auto refused = [&](const std::string& text, const std::function<void(TrainingSetup&)>& change) {
    for (const std::string& m : said(change))
      CHECK_MESSAGE(contains(m, "rank 2 is to train otherwise than rank 0: " + text), m);
  };
  refused("setup/grains is 12, rank 0 has 6", [](TrainingSetup& s) { s.grains = 12; });
  refused("setup/clip is 0.1, rank 0 has 1.0", [](TrainingSetup& s) { s.adamw.clip = 0.1; });
  refused("setup/beta1 is 0.5, rank 0 has 0.9", [](TrainingSetup& s) { s.adamw.beta1 = 0.5; });
  refused("setup/groups/0/rate is 0.25, rank 0 has 0.5", [](TrainingSetup& s) { s.groups[0].rate = 0.25; });
  refused("setup/groups/0/names is nothing, rank 0 has \"b.*\"", [](TrainingSetup& s) { s.groups.clear(); });
  refused("setup/average_decay is 0.9, rank 0 has 0.5", [](TrainingSetup& s) { s.average_decay = 0.9; });
  for (const std::string& m : said([](TrainingSetup&) {}, 3))
    CHECK_MESSAGE(contains(m, "kinds of batches/0/0 is \"f32[3,30]\", rank 0 has \"f32[2,30]\""), m);
}

TEST_CASE("grains: a step of another rate or kind at one process changes nothing anywhere") {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_as_processes(2, [&](Transport& all) {
    Training training({.grains = 6, .processes = lent(all)});
    for (const std::size_t kind : {0u, 1u}) REQUIRE(training.add(pairs_of(2), fit) == kind);
    const auto step = [&](std::size_t kind, double rate) {
      training.step_grains(
          kind,
          [](std::int64_t g) {
            return rows(0, {2 * g, 2 * g + 2});
          },
          rate);
    };
    step(0, 0.1);
    const StateDict before = training.parameters();
    std::string said = message_of<ProcessError>([&] { step(0, all.rank() == 1 ? 0.5 : 0.1); });
    said += message_of<ProcessError>([&] { step(all.rank() == 1 ? 1 : 0, 0.1); });
    for (const auto& [name, value] : training.parameters())
      if (!value.same_bits(before.at(name))) said += " changed " + name;
    step(1, 0.1);
    const std::lock_guard lock(mutex);
    messages.push_back(said);
  });
  REQUIRE(messages.size() == 2);
  for (const std::string& m : messages) {
    CHECK_MESSAGE(
        contains(
            m,
            "rank 1 makes a step of the batches of kind 0 with rate 0.5, rank 0 one of kind 0 with rate 0.1"),
        m);
    CHECK_MESSAGE(
        contains(m, "rank 1 makes a step of the batches of kind 1 with rate 0.1, rank 0 one of kind 0"), m);
    CHECK_MESSAGE(!contains(m, "changed"), m);
  }
}

TEST_CASE("grains: trainers of other options or text are refused at the first step") {
  const ByteCorpus corpus = text_of_documents();
  const std::vector<std::uint8_t> letters(600, 'a');
  const auto said = [&](const std::function<void(TrainingOptions&)>& change, bool other_text) {
    std::vector<std::string> out(2);
    run_as_processes(2, [&](Transport& all) {
      TrainingOptions mine = small_training("ttt-linear");
      mine.processes = lent(all);
      if (all.rank() == 1) change(mine);
      Trainer trainer(mine, other_text && all.rank() == 1 ? ByteCorpus(letters, letters) : corpus);
      out[static_cast<std::size_t>(all.rank())] = message_of<ProcessError>([&] { trainer.step(); });
    });
    return out;
  };
  for (const std::string& m : said([](TrainingOptions& o) { o.lr = 1; }, false))
    CHECK_MESSAGE(
        contains(m, "rank 1 is to train otherwise than rank 0: training/lr is 1.0, rank 0 has 0.003"), m);
  for (const std::string& m : said([](TrainingOptions& o) { o.adamw.beta2 = 0.5; }, false))
    CHECK_MESSAGE(contains(m, "beta2 is 0.5, rank 0 has 0.95"), m);
  for (const std::string& m : said([](TrainingOptions& o) { o.warmup = 3; }, false))
    CHECK_MESSAGE(contains(m, "training/warmup is 3, rank 0 has 2"), m);
  for (const std::string& m : said([](TrainingOptions&) {}, true))
    CHECK_MESSAGE(contains(m, "rank 1 is to train otherwise than rank 0: fingerprint of the text is "), m);
}
