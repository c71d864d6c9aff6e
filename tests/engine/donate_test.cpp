// Donated inputs: an output written over an input gives the numbers that it has in memory of its own.
#include <cmath>
#include <cstring>

#include "engine/run/profile.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kSize = 300;
const Spec kRow = f64({kSize});

Arrays copies_of(const Arrays& arrays) {
  Arrays out;
  for (const Array& a : arrays) out.push_back(a.clone());
  return out;
}

struct Donated {
  int copies = 0;  // more than without donation
  std::size_t arena_bytes = 0;
};

// Runs f with these donations, twice, with fusion and without, and checks numbers and memory: donated inputs hold
// the outputs, all others are as they were.
Donated check_donated(const Function& f, const Arrays& in, const std::vector<Donation>& donate,
                      PlanOptions options = {}) {
  options.device = Device::cpu();
  const Arrays expected = f.plan(options).run(in);
  Donated out;
  for (const bool fuse : {false, true}) {
    CAPTURE(fuse);
    options.fuse = fuse;
    options.donate = {};
    const auto copies = static_cast<int>(count(f.plan(options).str(), " copy "));
    options.donate = donate;
    Plan plan = f.plan(options);
    for (int run = 0; run < 2; ++run) {
      Arrays given = copies_of(in);
      const Arrays found = plan.run(given);
      CHECK(same_bits(found, expected));
      std::vector<bool> is_donated(in.size());
      for (const auto& [output, input] : donate) {
        is_donated[input] = true;
        CHECK(found[output].data() == given[input].data());
      }
      for (std::size_t i = 0; i < in.size(); ++i)
        if (!is_donated[i]) CHECK(given[i].same_bits(in[i]));
    }
    const Arrays given = copies_of(in);
    CHECK(same_bits(plan.profile(given).outputs, expected));
    CHECK(same_bits(given, in));  // a profile writes over no input
    out = {static_cast<int>(count(plan.str(), " copy ")) - copies, plan.stats().arena_bytes};
  }
  return out;
}

Donated check_donated(const TraceFn& fn, const std::vector<Spec>& specs, const std::vector<Donation>& donate,
                      PlanOptions options = {}) {
  return check_donated(trace(fn, specs), random(specs, 1), donate, std::move(options));
}

}  // namespace

TEST_CASE("An elementwise output is computed where its donated input lies, without arena or copy") {
  const auto update = [](const Tensors& in) { return Tensors{in[0] - 0.1 * exp(in[1])}; };
  const Donated d = check_donated(update, {kRow, kRow}, {{0, 0}});
  CHECK(d.copies == 0);
  CHECK(d.arena_bytes == 0);
  const Arrays given = random({kRow, kRow}, 2), expected = trace(update, {kRow, kRow})(given);
  trace(update, {kRow, kRow}).plan({.device = Device::cpu(), .donate = {{0, 0}}}).run(given);
  CHECK(given[0].same_bits(expected[0]));  // the caller's array
}

TEST_CASE("An op that may not write over what it reads takes the memory of an input that is read no more") {
  const auto f = [](const Tensors& in) {
    const Tensor product = matmul(in[0], in[1]);
    return Tensors{matmul(product, product)};
  };
  const Spec square = f64({8, 8});
  CHECK(check_donated(f, {square, square}, {{0, 0}}).copies == 0);
  const auto reads_until_the_end = [](const Tensors& in) {
    return Tensors{matmul(matmul(in[0], in[1]), in[1])};
  };
  CHECK(check_donated(reads_until_the_end, {square, square}, {{0, 1}}).copies == 1);
  CHECK(check_donated(reads_until_the_end, {square, square}, {{0, 0}}).copies == 0);
}

TEST_CASE("An output whose donated input is read later is kept elsewhere until then") {
  const auto f = [](const Tensors& in) {
    const Tensor y = in[0] + in[1];
    return Tensors{y, sum(cumsum(y, 0) * in[0])};
  };
  CHECK(check_donated(f, {kRow, kRow}, {{0, 0}}).copies == 1);
  CHECK(check_donated(f, {kRow, kRow}, {{0, 1}}).copies == 0);
}

TEST_CASE("An input read under another shape, or transposed, is not overwritten before") {
  const Spec square = f64({20, 20});
  const auto transposed = [](const Tensors& in) { return Tensors{in[0] + transpose(in[0])}; };
  CHECK(check_donated(transposed, {square}, {{0, 0}}).copies == 0);  // over the one that is not transposed
  const auto turned = [](const Tensors& in) { return Tensors{transpose(in[0])}; };
  CHECK(check_donated(turned, {square}, {{0, 0}}).copies == 1);
  const auto reshaped = [](const Tensors& in) {
    const Tensor rows = reshape(in[0], {20, 1, 20});
    return Tensors{in[0] * 2, rows + reshape(in[0], {1, 20, 20})};
  };
  check_donated(reshaped, {square}, {{0, 0}});
  const auto under_another_shape = [](const Tensors& in) {
    return Tensors{reshape(reshape(in[0], {400}) * 3, {20, 20})};
  };
  CHECK(check_donated(under_another_shape, {square}, {{0, 0}}).copies == 0);
  const auto broadcast = [](const Tensors& in) { return Tensors{in[0] * slice(in[0], 0, 1, 2)}; };
  CHECK(check_donated(broadcast, {square}, {{0, 0}}).copies <= 1);
}

TEST_CASE("Inputs that are outputs as they are: kept, moved and exchanged") {
  const auto kept = [](const Tensors& in) { return Tensors{in[0], in[1] * 2}; };
  CHECK(check_donated(kept, {kRow, kRow}, {{0, 0}, {1, 1}}).copies == -1);
  const auto shown_too = [](const Tensors& in) {
    return Tensors{in[0] * 2, in[0], reshape(in[0], {3, 100})};
  };
  check_donated(shown_too, {kRow}, {{0, 0}});
  const auto exchanged = [](const Tensors& in) { return Tensors{in[1], in[0]}; };
  check_donated(exchanged, {kRow, kRow}, {{0, 0}, {1, 1}});
  const auto round = [](const Tensors& in) { return Tensors{in[1], in[2], in[0], in[0] + in[2]}; };
  check_donated(round, {kRow, kRow, kRow, kRow}, {{0, 0}, {1, 1}, {2, 2}, {3, 3}});
  const auto number = [](const Tensors& in) {
    return Tensors{constant(Array::zeros(DType::f64, {kSize})), sum(in[0])};
  };
  check_donated(number, {kRow}, {{0, 0}});
}

TEST_CASE("One value for two donated inputs, and for memory of its own") {
  const auto twice = [](const Tensors& in) {
    const Tensor y = in[0] + in[1];
    return Tensors{y, y, y};
  };
  for (const std::vector<Donation>& donate :
       {std::vector<Donation>{{0, 0}, {1, 1}}, {{1, 0}}, {{2, 1}, {0, 0}}, {{1, 1}, {2, 0}}})
    check_donated(twice, {kRow, kRow}, donate);
}

TEST_CASE("An input that a scan reads is not written over before its last pass") {
  const Spec state = f64({4, 6}), rows = f64({12, 4, 6});
  const auto f = [](const Tensors& in) {
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          const Tensor next = tanh(carry[0] * in[2] + x[0]);
          return {{next}, {next * x[0]}};
        },
        {in[0]}, {in[1]});
    const Tensors g = grad(sum(square(r.carries[0])) + sum(r.ys[0]), {in[0], in[1], in[2]});
    return Tensors{in[0] - g[0], in[1] - g[1], in[2] - g[2], r.carries[0]};
  };
  const std::vector<Donation> updates{{0, 0}, {1, 1}, {2, 2}};
  for (const int every : {0, 1, 3})
    for (const bool slice : {false, true}) {
      CAPTURE(every);
      const PlanOptions options{.slice = slice, .checkpoint_every = every, .workers = 2};
      CHECK(check_donated(f, {state, rows, state}, updates, options).copies == 0);
      // What the scan itself makes, over what it begins with or reads in every step.
      for (const std::size_t input : {0U, 2U})
        check_donated(f, {state, rows, state}, {{3, input}, {1, 1}}, options);
    }
  const auto makes_its_inputs = [](const Tensors& in) {
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          return {{carry[0] + x[0]}, {carry[0] * in[2]}};
        },
        {in[0]}, {in[1]});
    return Tensors{r.carries[0], r.ys[0]};
  };
  check_donated(makes_its_inputs, {state, rows, state}, {{0, 0}, {1, 1}});
}

TEST_CASE("Empty arrays and numbers are donated too") {
  const auto f = [](const Tensors& in) { return Tensors{in[0] * 2, in[1] * 2, sum(in[0]) + in[1]}; };
  check_donated(f, {f64({0, 3}), f64()}, {{0, 0}, {1, 1}});
}

TEST_CASE("With buffers that are not reused, and with a memory budget, donation gives the same numbers") {
  const auto f = [](const Tensors& in) {
    const Tensor y = tanh(in[0]) * in[1];
    return Tensors{in[0] - grad(sum(square(y)), in[0]), y};
  };
  check_donated(f, {kRow, kRow}, {{0, 0}, {1, 1}}, {.reuse = false});
  check_donated(f, {kRow, kRow}, {{0, 0}, {1, 1}}, {.memory_budget = 1 << 20});
}

TEST_CASE("A step is repeated in place as it is in memory of its own") {
  const auto step = [](const Tensors& in) {
    const Tensor loss = sum(square(tanh(in[0]) * in[1] - 0.3));
    return Tensors{loss, in[0] - 0.1 * grad(loss, in[0])};
  };
  const Function f = trace(step, {kRow, kRow});
  const Arrays start = random({kRow, kRow}, 3);
  Arrays apart = start, in_place = copies_of(start), out{Array(f64()), in_place[0]};
  Plan fresh = f.plan({.device = Device::cpu()}),
       donating = f.plan({.device = Device::cpu(), .donate = {{1, 0}}});
  for (int i = 0; i < 5; ++i) {
    const Arrays found = fresh.run(apart);
    donating.run(std::span<const Array>(in_place), out);
    CHECK(same_bits(out, found));
    apart[0] = found[1];
  }
  CHECK(in_place[0].same_bits(apart[0]));
  CHECK_FALSE(in_place[0].same_bits(start[0]));
}

TEST_CASE("Donations that cannot be are refused with the numbers, the inputs and what to do") {
  const Spec other = f64({2});
  const Function f = trace(
      [](Tensor x, Tensor y, Tensor z) {
        return Tensors{x + y, x * y, z};
      },
      kRow, kRow, other);
  const auto planned = [&](const std::vector<Donation>& donate) {
    return [&f, donate] { f.plan({.donate = donate}); };
  };
  CHECK(message_of<ConfigError>(planned({{3, 0}})) ==
        "[plan] PlanOptions::donate names output 3, the function has 3: they are numbered from 0");
  CHECK(contains(message_of<ConfigError>(planned({{0, 9}})), "names input 9, the function has 3"));
  const std::string twice = message_of<ConfigError>(planned({{0, 1}, {1, 1}}));
  CHECK(contains(twice, "gives input 1 (%1 = input 'in1' f64[300]"));
  CHECK(contains(twice, "to outputs 0 and 1; an input has memory for one"));
  CHECK(
      contains(message_of<ConfigError>(planned({{0, 0}, {0, 1}})), "two inputs, 0 and 1; leave one of them"));
  CHECK(contains(message_of<ConfigError>(planned({{0, 0}, {0, 0}})), "to outputs 0 and 0"));
  const std::string misfit = message_of<ShapeError>(planned({{0, 2}}));
  CHECK(contains(misfit, "output 0 ("));
  CHECK(contains(misfit, "cannot be written over input 2 ("));
  CHECK(contains(misfit, "f64[2] is not f64[300]; donate an input of the output's type and shape"));
}

TEST_CASE("Outputs in memory that something else needs are refused, and nothing is written") {
  const Function f = trace([](Tensor x, Tensor y) { return Tensors{x + y, x * y}; }, kRow, kRow);
  Plan plain = f.plan({.device = Device::cpu()}),
       donating = f.plan({.device = Device::cpu(), .donate = {{0, 0}}});
  const Array x = random(kRow, 1), y = random(kRow, 2), before = x.clone(), a(kRow), b(kRow);
  const auto message = [&](Plan& plan, Arrays in, Arrays out) {
    return message_of<ConfigError>([&] { plan.run(std::span<const Array>(in), std::span(out)); });
  };
  CHECK(contains(
      message(plain, {x, y}, {a, y}),
      "output 1 was given the array of input 1; give it its own, or say that it may be written over"));
  CHECK(contains(message(plain, {x, y}, {a, a}),
                 "outputs 0 and 1 were given the same array; give each its own"));
  CHECK(contains(message(donating, {x, y}, {a, b}),
                 "output 0 is written over input 0 (PlanOptions::donate), but"));
  CHECK(contains(message(donating, {x, y}, {x, x}), "outputs 0 and 1 were given the same array"));
  CHECK(contains(message(donating, {x, y}, {x, y}), "output 1 was given the array of input 1"));
  CHECK(contains(message(donating, {x, x}, {x, b}),
                 "inputs 0 and 1 were given the same array, which output 0 is written over"));
  CHECK(contains(message_of<ConfigError>([&] { donating.run({x, x}); }), "clone() one of them"));
  CHECK(contains(message_of<ShapeError>([&] { donating.run({}); }), "0 inputs given, the function has 2"));
  CHECK(x.same_bits(before));
  CHECK_NOTHROW(plain.run({x, x}));  // inputs may share an array that nothing writes
}

TEST_SUITE("cuda") {
  TEST_CASE("CUDA: donated inputs there and on the CPU hold the outputs, of every run") {
    const Device gpu = Device::cuda();
    const Function f = trace(
        [](Tensor x, Tensor y) {
          return Tensors{sum(x * y), x + 2 * y, y};
        },
        kRow, kRow);
    for (const bool exchanged : {false, true})
      for (const Device& where : {gpu, Device::cpu()}) {
        Plan fresh = f.plan({.device = gpu});
        Plan plan = f.plan({.device = gpu, .donate = {{1, exchanged ? 1U : 0U}, {2, exchanged ? 0U : 1U}}});
        Arrays given;
        for (const Array& a : random({kRow, kRow}, 5)) given.push_back(a.to(where).clone());
        Arrays apart = copies_of(given);
        for (int run = 0; run < 3; ++run) {
          const Arrays expected = fresh.run(apart), found = plan.run(given);
          CHECK(same_bits(found, expected));
          for (std::size_t i = 0; i < 2; ++i) {
            apart[i] = expected[exchanged ? 2 - i : 1 + i];
            CHECK(given[i].device() == where);
            CHECK(given[i].same_bits(apart[i]));
          }
        }
      }
  }
}

TEST_CASE(
    "Values of which each is made of the one before lie where the donated input lies, unless something else reads them") {
  const Spec table = f64({20, 30});
  const auto added = [](const Tensors& in) {
    const Tensor rows = iota(DType::i32, {20}, 0);
    return Tensors{index_add(index_add(in[0], rows, in[1]), rows * 0, in[2])};
  };
  const Donated d = check_donated(added, {table, table, table}, {{0, 0}});
  CHECK(d.copies == 0);
  CHECK(d.arena_bytes < table.bytes());
  const auto sums =
      [](const Tensors&
             in) {  // in the arena: products that are added to one matrix may be made in one walk over it
        return Tensors{(in[0] + matmul(in[1], in[2])) + matmul(in[2], in[1])};
      };
  const Spec square = f64({20, 20});
  CHECK(check_donated(sums, {square, square, square}, {{0, 0}}).copies == 0);
  // A value in between that is read after the last one, or is an output too; the input itself, read late.
  const auto read_later = [](const Tensors& in) {
    const Tensor between = in[0] + in[1], last = between * in[2];
    return Tensors{last, sum(cumsum(between, 0) * cumsum(last, 0))};
  };
  check_donated(read_later, {kRow, kRow, kRow}, {{0, 0}});
  const auto shown = [](const Tensors& in) {
    const Tensor between = in[0] + in[1];
    return Tensors{between * in[2], between};
  };
  check_donated(shown, {kRow, kRow, kRow}, {{0, 0}});
  check_donated(shown, {kRow, kRow, kRow}, {{0, 1}, {1, 0}});
  const auto input_read_later = [](const Tensors& in) {
    const Tensor between = in[0] + in[1], last = between * in[2];
    return Tensors{last, cumsum(in[0], 0) - cumsum(last, 0)};
  };
  check_donated(input_read_later, {kRow, kRow, kRow}, {{0, 0}});
}
