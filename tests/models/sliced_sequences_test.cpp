// The promises: a language model whose sequences are cut in time has the loss and the gradients of the one that reads them whole,
// with every learner, to second order; training with slices gives the same file for any number of processes; what cannot be cut
// is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "engine/processes/threads.h"
#include "models/language_model.h"
#include "ops/collectives.h"
#include "tests/models/training_testing.h"
#include "tests/testing.h"
#include "tests/thread_count.h"
#include "ttt/explain.h"
#include "ttt/learners/catalogue.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kTime = 16, kBatch = 2, kAlign = 4;

struct Model {
  LanguageModelConfig config;
  bool packs = false;
  int orders = 1;
  ttt::SliceForm form = ttt::SliceForm::automatic;
};

// Loss, gradients of all parameters, and (orders 2) those of the sum of the gradients' squares.
Tensors orders_of(const Model& model, Tensor loss, const Tensors& params) {
  Tensors out{loss};
  for (int order = 1; order <= model.orders; ++order) {
    GradSeed seed = seed_of_ones(loss);
    Tensor next;
    for (std::size_t i = 0; const Tensor& g : pull_back(std::span(&seed, 1), params)) {
      const Tensor defined = g.defined() ? g : zero_like(params[i]);
      out.push_back(defined);
      next = next.defined() ? next + sum(square(defined)) : sum(square(defined));
      ++i;
    }
    loss = next;
  }
  return out;
}

Arrays inputs_of(std::int64_t tokens) {
  Array text(DType::i32, {kBatch, tokens + 1}), places(DType::f64, {kBatch, tokens});
  const std::span<std::int32_t> ids = text.as<std::int32_t>();
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * i * 7 + i * 3) % 29);
  const std::span<double> at = places.as<double>();
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<double>(i % 16 < 12 ? i % 16 : i % 4);
  return {text, places};
}

// Columns [begin, end) of each row.
Array columns(const Array& a, std::int64_t begin, std::int64_t end) {
  const Function f =
      trace(TraceFn([&](const Tensors& t) { return Tensors{slice(t[0], 1, begin, end)}; }), {a.spec()});
  return f({a})[0];
}

TracedModel traced(const Model& model, std::int64_t tokens, const ProcessGroup* slices) {
  const std::vector<Spec> given{{DType::i32, {kBatch, tokens + 1}}, {DType::f64, {kBatch, tokens}}};
  return trace_model(DType::f64, given, [&](ParamTable& table, const Tensors& in) {
    Params params(table);
    ttt::Stream stream;
    Tensors batch = in;
    if (slices) {
      stream.cut(*slices, model.form);
      for (Tensor& t : batch) t = own(t, *slices);
      params = params.through(
          [whole = params, slices](const Params::Request& r) { return vary(whole.get(r), *slices); });
    }
    if (model.packs) stream.pack(batch[1], kAlign);
    const Tensor here = sum(next_token_loss(model.config, params, batch[0], stream));
    return orders_of(model, slices ? all_sum(here, *slices) : here, table.tensors());
  });
}

void check_cut(const Model& model, int slices) {
  const Arrays all = inputs_of(kTime);
  const TracedModel whole = traced(model, kTime, nullptr);
  StateDict params = initial_parameters(whole.params, DType::f64, 5);
  for (auto& [name, value] : params)  // none at rest: every path counts
    for (double& x : value.as<double>())
      x += 0.1 * std::sin(static_cast<double>(&x - value.as<double>().data()));
  const Arrays expected = whole.function(whole.bind(all, {&params}));
  const std::int64_t tokens = kTime / slices;
  std::mutex mutex;
  run_as_processes(slices, [&](Transport& rank) {
    const ProcessGroup group(lent(rank));
    const TracedModel mine = traced(model, tokens, &group);
    const std::int64_t first = rank.rank() * tokens;
    const Arrays got = mine.function(mine.bind(
        {columns(all[0], first, first + tokens + 1), columns(all[1], first, first + tokens)}, {&params}));
    const std::lock_guard lock(mutex);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      double largest = 1;
      for (const double x : expected[i].to_vector()) largest = std::max(largest, std::abs(x));
      const double error = max_error({got[i]}, {expected[i]}) / largest;
      CHECK_MESSAGE(error < 1e-10, "output " << i << " of " << got.size() << ": " << error);
    }
  });
}

LanguageModelConfig small_model(const std::string& layer) {
  LanguageModelConfig c;
  c.vocab_size = 29, c.hidden_size = 16, c.intermediate_size = 24, c.num_hidden_layers = 2,
  c.num_attention_heads = 4;
  c.ttt_layer_type = layer_type(layer), c.mini_batch_size = 4;
  return c;
}

// How a learner goes along eight slices of `batch` sequences, in words.
std::string explained(const std::string& learner, std::int64_t heads, std::int64_t batch) {
  const ttt::ProgramSizes sizes{.batch = batch, .heads = heads, .dim = 4, .time = 32, .chunk = 4};
  return ttt::explain(ttt::system_named(learner), sizes, ttt::FormChoice::automatic, 8).str();
}
bool is_affine(const std::string& learner) {
  return contains(explained(learner, 1, 1), "slices     exchange");
}

bool can_cut(const std::string& layer) { return layer_type(layer) != kEndToEnd; }

}  // namespace

TEST_CASE("slices: loss and gradients to order 2 are those of whole sequences") {
  for (const int slices : {2, 4})
    for (const std::string layer : {"ttt-linear", "delta-net", "attention"}) {
      CAPTURE(slices);
      CAPTURE(layer);
      check_cut({small_model(layer), false, 2}, slices);
    }
}

TEST_CASE("slices: with convolutions, shared projections, windows and packed documents too") {
  for (const bool packs : {false, true})
    for (const int slices : {2, 4}) {
      CAPTURE(packs);
      CAPTURE(slices);
      Model mamba{small_model("ttt-linear"), packs};
      mamba.config.share_qk = mamba.config.use_gate = mamba.config.pre_conv = true;
      mamba.config.conv_kernel = 4;
      check_cut(mamba, slices);
      Model window{small_model("lact"), packs};
      window.config.attention_window = 6;
      check_cut(window, slices);
      check_cut({small_model("attention"), packs}, slices);
    }
}

TEST_CASE("slices: laws are exchanged and states passed on: the same loss and gradients to order 2" *
          doctest::test_suite("slow")) {
  struct Way {
    ttt::SliceForm form;
    std::string layer;
  };
  for (const Way& way :
       {Way{ttt::SliceForm::pipeline, "ttt-linear"}, Way{ttt::SliceForm::pipeline, "ttt-mlp"},
        Way{ttt::SliceForm::pipeline, "delta-net"}, Way{ttt::SliceForm::pipeline, "titans-mlp"},
        Way{ttt::SliceForm::exchange, "linear-attention"}, Way{ttt::SliceForm::exchange, "delta-net"},
        Way{ttt::SliceForm::exchange, "gated-delta-net"}})
    for (const int slices : {2, 4}) {
      CAPTURE(name(way.form));
      CAPTURE(way.layer);
      CAPTURE(slices);
      Model model{small_model(way.layer), false, 2, way.form};
      model.config.num_attention_heads = 1;
      check_cut(model, slices);
    }
}

TEST_CASE("slices: every learner's loss and gradients are those of whole sequences" *
          doctest::test_suite("slow")) {
  for (const std::string& layer : layer_names()) {
    if (!can_cut(layer)) continue;
    CAPTURE(layer);
    Model model{small_model(layer)};
    check_cut(model, 2);
    model.config.num_attention_heads = 1;
    if (!why_not_cut(model.config, kTime / 2, 2).empty()) continue;
    check_cut(model, 2);
    if (!is_affine(layer)) continue;
    model.form = ttt::SliceForm::exchange;
    check_cut(model, 2);
  }
}

TEST_CASE("slices: the same file for any number of processes, with grains, packed and within a budget" *
          doctest::test_suite("slow")) {
  const ByteCorpus corpus = text_of_documents();
  for (const std::int64_t pack : {0, 4})
    for (const std::int64_t grains : {1, 2}) {
      TrainingOptions o = small_training("ttt-linear");
      o.model.num_attention_heads = 4, o.pack = pack, o.grains = grains, o.slices = 4;
      const std::string one = checkpoint_of(o, corpus, 1, 3);
      for (int processes = 2; processes <= 4; ++processes)
        CHECK(checkpoint_of(o, corpus, processes, 3) == one);
      Trainer cut(o, corpus);
      o.slices = o.grains = 1;
      Trainer whole(o, corpus);
      for (int i = 0; i < 3; ++i) {
        const StepResult a = cut.step(), b = whole.step();
        CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-5));
        CHECK(a.grad_norm == doctest::Approx(b.grad_norm).epsilon(1e-3));
      }
      const auto validated = [pack](const Trainer& t) {
        return pack > 0 ? t.validate(t.validation_documents(9)) : t.validate(t.validation_windows(9));
      };
      const Validation a = validated(cut), b = validated(whole);
      CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-5));
      REQUIRE(a.loss_by_position.size() == b.loss_by_position.size());
      for (std::size_t t = 0; t < a.loss_by_position.size(); ++t)
        CHECK(a.loss_by_position[t] == doctest::Approx(b.loss_by_position[t]).epsilon(1e-4));
      std::mutex mutex;
      run_as_processes(2, [&](Transport& all) {
        TrainingOptions shared = o;
        shared.slices = 4, shared.grains = grains, shared.processes = lent(all);
        Trainer trainer(shared, corpus);
        trainer.start_from(cut.parameters());
        const Validation c = validated(trainer);
        const std::lock_guard lock(mutex);
        CHECK(c.loss == a.loss);
        CHECK(c.loss_by_position == a.loss_by_position);
      });
    }
  TrainingOptions passed_on = small_training("ttt-linear");
  passed_on.grains = 2, passed_on.slices = 4;
  const std::string alone = checkpoint_of(passed_on, corpus, 1, 3);
  for (int processes = 2; processes <= 4; ++processes)
    CHECK(checkpoint_of(passed_on, corpus, processes, 3) == alone);
  TrainingOptions o = small_training("ttt-mlp");
  o.context = 256, o.grains = 1, o.slices = 2;
  const std::string one = checkpoint_of(o, corpus, 1, 2);
  o.memory_budget = Trainer(o, corpus).arena_bytes() / 2 * 9 / 10;
  CHECK(checkpoint_of(o, corpus, 2, 2) == one);
}

TEST_CASE("slices: any number of threads at once gives the same bits") {
  const ByteCorpus corpus = text_of_documents();
  TrainingOptions o = small_training("ttt-linear");
  o.slices = 2, o.grains = 1;
  std::string first;
  for (const int threads : {1, 2, 4}) {
    const Threads scope(threads);
    const std::string file = checkpoint_of(o, corpus, 1, 2);
    if (first.empty()) first = file;
    CHECK_MESSAGE(file == first, threads);
  }
}

TEST_CASE("slices: every learner's file is the same for any number of processes" *
          doctest::test_suite("slow")) {
  const ByteCorpus corpus = text_of_documents();
  for (const std::string& layer : layer_names()) {
    if (!can_cut(layer)) continue;
    CAPTURE(layer);
    TrainingOptions o = small_training(layer_type(layer));
    o.slices = 2, o.grains = 2;
    CHECK(checkpoint_of(o, corpus, 2, 2) == checkpoint_of(o, corpus, 1, 2));
  }
}

TEST_CASE("slices: how a learner goes along them is chosen by its trace, and explained") {
  CHECK(contains(explained("ttt-mlp", 8, 1), "slices     heads: all tokens of some heads at each rank"));
  const std::string mlp = explained("ttt-mlp", 4, 1);
  CHECK_MESSAGE(contains(mlp, "slices     pipeline"), mlp);
  CHECK_MESSAGE(contains(mlp, "not exchange: "), mlp);
  CHECK_MESSAGE(contains(mlp, "not heads: 4 heads cannot be shared equally by 8 slices"), mlp);
  for (const std::string affine :
       {"linear-attention", "gated-linear-attention", "delta-net", "gated-delta-net", "mamba-2"}) {
    CAPTURE(affine);
    const std::string one = explained(affine, 1, 1);
    CHECK_MESSAGE(contains(one, "slices     exchange: what each slice makes of its first state"), one);
    CHECK(contains(explained(affine, 1, 8), "slices     pipeline"));
  }
}

TEST_CASE("slices: laws that no matrix from the left says are not exchanged, though they are affine") {
  ttt::System mixing = ttt::delta_net();
  mixing.learner = [](const Params& p, const ttt::SystemSizes& sizes) {
    const ttt::InnerLoss loss{"1/2 |cumsum(p - v)|^2", [](Tensor prediction, Tensor target) {
                                return 0.5 * sum(square(cumsum(prediction - target, -1)), {-1}, true);
                              }};
    return std::make_unique<ttt::Composed>(ttt::linear(p, {sizes.heads, sizes.dim, 0, sizes.dim}), loss);
  };
  const std::string text = ttt::explain(mixing, {.batch = 1, .heads = 1, .dim = 4, .time = 32, .chunk = 4},
                                        ttt::FormChoice::automatic, 8)
                               .str();
  CHECK_MESSAGE(contains(text, "slices     pipeline"), text);
  CHECK_MESSAGE(contains(text, "not exchange: columns of a state meet"), text);
}

TEST_CASE("slices: a state that is not affine in the one before is not exchanged, and it is said why") {
  ttt::System cubic = ttt::delta_net();
  cubic.learner = [](const Params& p, const ttt::SystemSizes& sizes) {
    const ttt::InnerLoss loss{"1/4 |p - v|^4", [](Tensor prediction, Tensor target) {
                                return 0.25 * square(sum(square(prediction - target), {-1}, true));
                              }};
    return std::make_unique<ttt::Composed>(ttt::linear(p, {sizes.heads, sizes.dim, 0, sizes.dim}), loss);
  };
  const std::string text = ttt::explain(cubic, {.batch = 1, .heads = 1, .dim = 4, .time = 32, .chunk = 4},
                                        ttt::FormChoice::automatic, 8)
                               .str();
  CHECK_MESSAGE(contains(text, "not exchange: the last state is not affine in the first"), text);
}

TEST_CASE("slices: a loss that all have added up goes with gradients that they have, and with no others") {
  enum class Sum : std::uint8_t { nothing, loss, gradients, both };
  const auto made = [&](Sum sum_of, bool gives_gradients) {
    Training training({.slices = 2});
    training.add({f32({4})}, [&](ParamTable& table, const Tensors& in, const ProcessGroup& slices) {
      const Tensor w = table.get("w", {}, Init::ones());
      const bool whole = sum_of == Sum::gradients || sum_of == Sum::both;
      Tensor loss = sum(in[0] * square(whole ? vary(w, slices) : own(w, slices)));
      if (sum_of == Sum::loss || sum_of == Sum::both) loss = all_sum(loss, slices);
      Training::Objective out{loss};
      if (gives_gradients) out.gradients = {grad(loss, w)};
      return out;
    });
    const Training::Step s = training.step_parts(
        0,
        [](std::int64_t, std::int64_t part) {
          return Arrays{Array::of({1 + static_cast<double>(part), 2, 3, 4}, {4}, DType::f32)};
        },
        0.1);
    return std::pair{s.loss, s.grad_norm};
  };
  for (const bool given : {false, true}) {
    CAPTURE(given);
    CHECK(made(Sum::nothing, given) == std::pair{10.5, 21.0});  // the means of 10 and 11, 20 and 22
    CHECK(made(Sum::both, given) == std::pair{21.0, 42.0});
    for (const Sum one : {Sum::loss, Sum::gradients}) {
      const std::string text = message_of<ConfigError>([&] { made(one, given); });
      CHECK_MESSAGE(
          contains(text, one == Sum::loss ? "is the same in all processes, the gradient of 'w' is each "
                                            "process's own in group "
                                          : ", the gradient of 'w' is the same in all processes: "),
          text);
      CHECK(contains(text, "without all_sum()"));
    }
  }
}

TEST_CASE("slices: what cannot be cut is refused with what to do") {
  const ByteCorpus corpus = text_of_documents();
  const auto refused = [&](const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions o = small_training("ttt-linear");
    o.slices = 2, o.grains = 1;
    change(o);
    return message_of<ConfigError>([&] { Trainer(o, corpus); });
  };
  CHECK(
      contains(refused([](auto& o) { o.slices = 3; }), "a context of 16 tokens cannot be cut into 3 slices"));
  CHECK(contains(refused([](auto& o) { o.slices = 4, o.model.mini_batch_size = 8; }),
                 "2 heads cannot be shared by 4 slices"));
  CHECK(contains(refused([](auto& o) { o.slices = 4, o.model.ttt_layer_type = "attention"; }),
                 "which attention needs: choose a divisor of the heads"));
  CHECK(contains(refused([](auto& o) { o.slices = 4, o.pack = 4; }), "packed documents would begin with"));
  CHECK(
      contains(refused([](auto& o) { o.model.ttt_layer_type = kEndToEnd; }), "its sequences cannot be cut"));
  CHECK(contains(refused([](auto& o) { o.slices = 0; }), "slices must be from 1 to 1024, they are 0"));
  TrainingOptions o = small_training("ttt-linear");
  o.slices = 2, o.grains = 1;
  const LogitsFn bigram = [](const Params& params, Tensor tokens, ttt::Stream&) {
    return gather(params("table", {256, 256}), tokens);
  };
  CHECK(contains(message_of<ConfigError>([&] { Trainer(o, corpus, bigram); }),
                 "does not look what stands before one"));
  Training training({.slices = 2});
  CHECK(contains(message_of<ConfigError>([&] {
                   training.add({}, [](ParamTable& table, const Tensors&) {
                     return Training::Objective{sum(table.get("w", {2}, {}))};
                   });
                 }),
                 "which this model does not know of"));
  run_as_processes(3, [](Transport& all) {
    if (all.rank() == 0)
      CHECK(contains(message_of<ConfigError>([&] { Training({.slices = 2, .processes = lent(all)}); }),
                     "2 slices of a sequence cannot be shared by 3 processes"));
  });
}
