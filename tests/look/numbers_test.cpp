// The meta-gradient taken apart: each part keeps its claims, agrees with a closed form, and can be broken.
#include <cmath>

#include "autograd/jacobian.h"
#include "look/inspection.h"
#include "ops/accumulate.h"
#include "tests/look/inspected_loops.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

double entry(const Array& map, std::int64_t row, std::int64_t column) {
  return map.at(row * map.shape().back() + column);
}

}  // namespace

TEST_CASE("inspect: first order and one term per step are the full meta-gradient, of every causal system") {
  for (const ttt::System& s : ttt::systems()) {
    CAPTURE(s.name);
    const Policy policy = s.policy({2, 4, 4});
    if (!policy.causal()) continue;
    const InspectedLoop inspected = of(s.name);
    const look::StepContributions r = look::contributions_by_step(inspected);
    CAPTURE(r.claims[0].error);
    // Orthogonalisation amplifies rounding (ttt/optimizer.h).
    const bool muon = contains(s.name, "lact");
    CHECK(r.claims[0].error < (muon ? 1e-9 : 1e-12));
    CHECK(r.norm.size() == static_cast<std::size_t>(inspected.chunks()));
    double sum = r.first_order_projection;
    for (double p : r.projection) sum += p;
    CHECK(sum == doctest::Approx(r.full_norm).epsilon(1e-9));
  }
}

TEST_CASE("inspect: state offsets have the derivatives of the weights between chunks, unrolled") {
  constexpr std::int64_t kChunk = 4, kChunks = 3;
  for (const std::string name : {"ttt-linear", "ttt-mlp", "lact"})
    for (const ttt::FormChoice form : {ttt::FormChoice::primal, ttt::FormChoice::dual}) {
      CAPTURE(name);
      const ttt::System& system = ttt::system_named(name);
      std::size_t n = 0;
      const Function f = ttt::trace_system(
          system, {.batch = 2, .heads = 2, .dim = 4, .time = kChunk * kChunks, .chunk = kChunk}, DType::f64,
          [&](const ttt::SystemProgram& p) {
            n = p.start.size();
            const Tensor wanted = constant(random(p.views.v.spec(), 8));
            ttt::InnerLoopOptions options{.policy = p.policy, .form = form};
            options.state_offset = ttt::zero_offsets(p.start, kChunks);
            Tensors out = grad(sum(ttt::train_along(*p.learner, p.start, p.views, options).output * wanted),
                               options.state_offset, {.allow_zero = true});
            options.state_offset.clear();

            const auto rows = [](Tensor x, std::int64_t chunk) {
              return slice(x, 2, chunk * kChunk, (chunk + 1) * kChunk);
            };
            ttt::State state = ttt::State::start(*p.learner, p.start);
            Tensors found;
            Tensor loss;
            for (std::int64_t c = 0; c < kChunks; ++c) {
              Tensors flat = state.weights.values();
              for (Tensor& w : flat) found.push_back(w = probe(w));
              state.weights = state.weights.with(flat);
              ttt::Views views{
                  rows(p.views.q, c), rows(p.views.k, c), rows(p.views.v, c), {}, p.views.position};
              for (const auto& [gate, value] : p.views.gates) views.gates[gate] = rows(value, c);
              const ttt::InnerLoopResult r = ttt::train_along(*p.learner, state, views, options);
              const Tensor part = sum(r.output * rows(wanted, c));
              accumulate(loss, part);
              state = r.state;
            }
            for (const Tensor& g : grad(loss, found, {.allow_zero = true})) out.push_back(g);
            return out;
          });
      const Arrays r = f(ttt::numbers_for(f, 3));
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t c = 0; c < kChunks; ++c) {
          const Array& unrolled = r[n + c * n + i];
          const auto all = r[i].as<double>().subspan(c * static_cast<std::size_t>(unrolled.size()),
                                                     static_cast<std::size_t>(unrolled.size()));
          const Array own = Array::of({all.begin(), all.end()}, unrolled.shape());
          CHECK(relative_error(own, unrolled, 1e-12) < 1e-9);
        }
    }
}

TEST_CASE("inspect: a quadratic with one number has the contributions of its closed form") {
  // l = 1/2 a (w - b)^2 by k = sqrt(a), v = sqrt(a) b; a = 2, b = 1, rate 0.1, w from 3; L = 1/2 (w_3 - c)^2.
  const double root = std::sqrt(2.0);
  const Array k = Array::full(DType::f64, {1, 1, 3, 1}, root), q = Array::full(DType::f64, {1, 1, 3, 1}, 1);
  Array cotangent = Array::zeros(DType::f64, {1, 1, 3, 1});
  cotangent.as<double>()[2] = 2.024 - 0.5;
  InspectedLoop s = one_matrix(k, k, q, cotangent, 0.1, 1);
  for (auto& [name, value] : s.params) value = Array::full(DType::f64, value.shape(), 3);
  const look::StepContributions r = look::contributions_by_step(s);
  check_all(r.claims);
  CHECK(r.full_norm == doctest::Approx(0.780288).epsilon(1e-12));
  CHECK(r.first_order_norm == doctest::Approx(1.524).epsilon(1e-12));
  // -eta a lambda_t, lambda_3 = 1.524, each 0.8 times the next.
  const double expected[] = {-0.2 * 1.524 * 0.64, -0.2 * 1.524 * 0.8, -0.2 * 1.524};
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(r.projection[t] == doctest::Approx(expected[t]).epsilon(1e-12));
    CHECK(r.norm[t] == doctest::Approx(-expected[t]).epsilon(1e-12));
  }
}

TEST_CASE("inspect: the gradient of the starting weights is that of all sequences together") {
  const Spec rows = f64({3, 1, 6, 4});
  const InspectedLoop s =
      one_matrix(random(rows, 1), random(rows, 2), random(rows, 3), random(rows, 4), 0.2, 2);
  const look::MetaProgram program = look::meta_program(s);
  const Arrays gradients = program.function(program.inputs);
  double squares = 0;
  for (std::size_t i = 1; i < gradients.size(); ++i)
    if (s.params.contains(program.outputs[i]))
      for (const double x : gradients[i].to_vector()) squares += x * x;
  REQUIRE(squares > 0);
  const look::StepContributions r = look::contributions_by_step(s);
  CHECK(r.full_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
  check_all(r.claims);
}

TEST_CASE("inspect: the two channels add up, and the gradient channel needs two mini-batches" *
          doctest::test_suite("slow")) {
  for (const std::string system : {"ttt-linear", "delta-net", "titans-linear"}) {
    CAPTURE(system);
    const InspectedLoop s = of(system, 8, 4);
    const look::Channels r = look::channels(s);
    check_all(r.claims);
    double cumsum = 0, gradient = 0;
    const std::int64_t chunk = s.chunk();
    for (std::int64_t t = 0; t < 8; ++t)
      for (std::int64_t i = 0; i < 8; ++i) {
        if (i > t) CHECK(entry(r.full, t, i) == 0);  // causal
        // A gradient is not moved by writes of its own mini-batch or later ones.
        if (i / chunk >= t / chunk) CHECK(entry(r.gradient, t, i) == 0);
        cumsum += std::abs(entry(r.cumsum, t, i));
        gradient += std::abs(entry(r.gradient, t, i));
      }
    CHECK(cumsum > 0);
    CHECK(gradient > 0);
  }
  for (const ttt::System& s : ttt::systems()) {
    if (!s.policy({2, 4, 4}).causal()) continue;
    CAPTURE(s.name);
    for (const Claim& i : look::channels(of(s.name, 4, 2)).claims) {
      CAPTURE(i.claim);
      CHECK(i.error <= 1e-11);
    }
  }
  // Linear attention's gradients do not depend on the weights: there is no second channel at all.
  const look::Channels r = look::channels(of("linear-attention", 6));
  check_all(r.claims);
  for (double x : r.gradient.to_vector()) CHECK(x == 0);
}

namespace {

// A memory by hand, one sequence and one head: where token t takes its gradient, and what it makes of the weights.
struct MemoryByHand {
  std::function<Tensor(Tensor w, std::int64_t t)> point;  // of the gradient
  std::function<Tensor(Tensor w, Tensor at, Tensor size, std::int64_t t)> step;
};

// The outer loss at each token by the size of each token's gradient: of the whole, and with the points of gradients held.
struct ChannelsByHand {
  Array full, cumsum;
};
ChannelsByHand channels_by_hand(const InspectedLoop& s, const std::function<MemoryByHand()>& make) {
  const std::int64_t time = s.time(), dim = s.v.shape()[3];
  const Function f = trace(
      [&](const Tensors& in) {
        const MemoryByHand memory = make();
        Tensors out;
        for (const bool held : {false, true}) {
          Tensors losses, sizes;
          for (std::int64_t t = 0; t < time; ++t) sizes.push_back(probe(slice(in[0], 0, t, t + 1)));
          const auto start = s.params.find("W");  // or zeros
          Tensor w = start == s.params.end() ? zeros(DType::f64, {dim, dim})
                                             : constant(start->second.reshaped({dim, dim}));
          for (std::int64_t t = 0; t < time; ++t) {
            Tensor at = memory.point(w, t);
            if (held) at = stop_gradient(at);
            w = memory.step(w, at, sizes[static_cast<std::size_t>(t)], t);
            const Tensor q = slice(constant(s.q.reshaped({time, dim})), 0, t, t + 1),
                         c = slice(constant(s.cotangent.reshaped({time, dim})), 0, t, t + 1);
            losses.push_back(sum(matmul(q, w) * c));
          }
          for (const Tensor& loss : losses)
            for (const Tensor& g : grad(loss, sizes, {.allow_zero = true})) out.push_back(g);
        }
        return out;
      },
      {f64({time})});
  const Arrays r = f(Arrays{Array::full(DType::f64, {time}, 1)});
  ChannelsByHand out;
  for (Array* map : {&out.full, &out.cumsum}) {
    *map = Array::zeros(DType::f64, {time, time});
    for (std::int64_t i = 0; i < time * time; ++i)
      map->as<double>()[static_cast<std::size_t>(i)] =
          r[static_cast<std::size_t>(i + (map == &out.full ? 0 : time * time))].at(0);
  }
  return out;
}

// Row t of what is given one a token, and as a column.
Tensor row_of(const Array& rows, std::int64_t t) {
  return slice(constant(rows.reshaped({rows.shape()[2], rows.shape()[3]})), 0, t, t + 1);
}

// A memory x W whose rate, or forgetting, is made of how wrong it was.
class OwnGates : public ttt::Learner {
 public:
  OwnGates(const Params& p, const ttt::SystemSizes& s, std::string gate)
      : w_(p("W", {s.heads, s.dim, s.dim}, Init::normal(0.5))), gate_(std::move(gate)) {}
  ttt::Weights init() const override { return {ttt::matrix("W", w_)}; }
  Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
  std::vector<std::string> own_gates() const override { return {gate_}; }
  ttt::Gates gates(const ttt::Weights& w, Tensor k, Tensor v, Tensor) const override {
    const Tensor wrong = sum(square(matmul(k, w["W"]) - v), {-1}, kKeep);
    return {{gate_, gate_ == "rate" ? 0.3 / (1.0 + wrong) : exp(-0.1 * sigmoid(wrong))}};
  }
  ttt::InnerOptimizer optimizer() const override {
    return gate_ == "rate" ? ttt::InnerOptimizer() : ttt::InnerOptimizer().keep(ttt::gate(gate_));
  }

 private:
  Tensor w_;
  std::string gate_;
};

ttt::System with_own_gates(const std::string& gate) {
  ttt::System s{.name = "own gates", .title = "test", .source = "test"};
  if (gate != "rate") s.gates = {{.name = "rate", .shape = [](Tensor raw) { return sigmoid(raw); }}};
  s.learner = [gate](const Params& p, const ttt::SystemSizes& n) {
    return std::make_unique<OwnGates>(p, n, gate);
  };
  s.policy = [](const ttt::SystemSizes& n) { return Policy{.chunk = n.chunk}; };
  return s;
}

void check_channels(const InspectedLoop& s, const std::function<MemoryByHand()>& make) {
  const look::Channels r = look::channels(s);
  check_all(r.claims);
  const ChannelsByHand hand = channels_by_hand(s, make);
  CHECK(relative_error(r.full, hand.full) < 1e-11);
  CHECK(relative_error(r.cumsum, hand.cumsum) < 1e-11);
}

}  // namespace

TEST_CASE(
    "inspect: the channels of memories are those of their recurrences, also where a rate decides what is forgotten") {
  for (const std::string system :
       {"mamba-2", "gated-linear-attention", "kimi-delta-attention", "mamba-3-trapezoid"}) {
    CAPTURE(system);
    const InspectedLoop s = look::inspected_learner(
        ttt::system_named(system), {.batch = 1, .heads = 1, .dim = 3, .time = 6, .chunk = 1}, 5);
    check_channels(s, [&] {
      const auto gate = [&s](const char* name, std::int64_t t) {
        return transpose(row_of(s.gates.at(name), t));
      };
      const auto decay = [&s, gate](const char* name, std::int64_t t) {
        const double a = std::exp(s.params.at("A_log").at(0));
        return exp(-a * gate(name, t));
      };
      const auto kv = [&s](std::int64_t t) { return matmul(transpose(row_of(s.k, t)), row_of(s.v, t)); };
      MemoryByHand out;
      out.point = [](Tensor w, std::int64_t) { return w; };
      if (system == "mamba-2")
        out.step = [=](Tensor w, Tensor, Tensor size, std::int64_t t) {
          return decay("rate", t) * w + size * gate("rate", t) * kv(t);
        };
      else if (system == "gated-linear-attention")
        out.step = [=](Tensor w, Tensor, Tensor size, std::int64_t t) {
          return gate("forget", t) * w + size * kv(t);
        };
      else if (system == "kimi-delta-attention") {
        out.point = [=](Tensor w, std::int64_t t) { return decay("dt", t) * w; };
        out.step = [=, &s](Tensor w, Tensor at, Tensor size, std::int64_t t) {
          const Tensor k = row_of(s.k, t);
          return decay("dt", t) * w -
                 size * gate("rate", t) * matmul(transpose(k), matmul(k, at) - row_of(s.v, t));
        };
      } else {
        out.step = [=, before = std::make_shared<Tensor>()](Tensor w, Tensor, Tensor size, std::int64_t t) {
          const Tensor dt = gate("dt", t), lambda = gate("lambda", t), a = decay("dt", t), g = size * kv(t);
          Tensor next = a * w + lambda * dt * g;
          if (t > 0) next = next + (1.0 - lambda) * dt * a * *before;
          *before = g;
          return next;
        };
      }
      return out;
    });
  }
}

TEST_CASE("inspect: a learner that makes its rate itself has the channels of its recurrence, and a page") {
  const InspectedLoop s = look::inspected_learner(
      with_own_gates("rate"), {.batch = 1, .heads = 1, .dim = 3, .time = 6, .chunk = 1}, 5);
  const auto wrong = [&s](Tensor w, std::int64_t t) { return matmul(row_of(s.k, t), w) - row_of(s.v, t); };
  check_channels(s, [&] {
    MemoryByHand out;
    out.point = [](Tensor w, std::int64_t) { return w; };
    out.step = [=, &s](Tensor w, Tensor at, Tensor size, std::int64_t t) {
      const Tensor d = wrong(at, t);
      return w - size * 0.3 / (1.0 + sum(square(d))) * matmul(transpose(row_of(s.k, t)), d);
    };
    return out;
  });
  check_all(look::contributions_by_step(s).claims);
  // Of the step of token 4: |rate x gradient| is what it writes.
  const look::StepCard card = look::explain_step(s, 4, look::channels(s));
  CHECK(card.gradient == doctest::Approx(card.written).epsilon(1e-12));
  // Its derivative is that of the formula: the rate, too, depends on the weights that the step finds.
  const Function jacobians = trace(
      [&](const Tensors&) {
        Tensor w = constant(s.params.at("W").reshaped({3, 3}));
        Tensors out;
        for (std::int64_t t = 0; t < 6; ++t) {
          const Tensor found = probe(w), d = wrong(found, t);
          w = found - 0.3 / (1.0 + sum(square(d))) * matmul(transpose(row_of(s.k, t)), d);
          out.push_back(reshape(jacobian(w, found), {9, 9}));
        }
        return out;
      },
      {});
  const Arrays by_hand = jacobians(Arrays{});
  const look::Curvature r = look::curvature(s, 1000);
  check_all(r.claims);
  for (std::int64_t t = 0; t < 6; ++t)
    CHECK(r.expansion.at(t) ==
          doctest::Approx(largest_factor(by_hand[static_cast<std::size_t>(t)])).epsilon(1e-6));
}

TEST_CASE(
    "inspect: first order and full gradient agree for small steps, own gates held, which do not become small") {
  for (const char* gate : {"keep", "rate"}) {
    CAPTURE(gate);
    for (const std::int64_t chunk : {1, 4}) {
      const look::Estimators r = look::estimators(look::inspected_learner(
          with_own_gates(gate), {.batch = 1, .heads = 2, .dim = 4, .time = 8, .chunk = chunk}, 5));
      check_all(r.claims);
      CHECK(r.own_gates);
      CHECK(contains(r.claims[0].claim, "own gates held"));
    }
  }
  CHECK_FALSE(look::estimators(of("delta-net")).own_gates);
}

TEST_CASE(
    "inspect: a learner whose keys are wider than its queries has a page without what compares the two") {
  ttt::System system{.name = "two keys", .title = "test", .source = "test"};
  system.gates = {{.name = "rate", .shape = [](Tensor raw) { return 0.2 * sigmoid(raw); }}};
  system.learner = [](const Params& p, const ttt::SystemSizes& n) {
    class TwoKeys : public ttt::Learner {
     public:
      explicit TwoKeys(Tensor w) : w_(w) {}
      ttt::Weights init() const override { return {ttt::matrix("W", w_)}; }
      Tensor predict(const ttt::Weights& w, Tensor x) const override { return matmul(x, w["W"]); }
      Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
        const std::int64_t dim = k.dim(-1) / 2;
        return 0.5 * sum(square(matmul(slice(k, -1, 0, dim), w["W"]) - v), {-1}, kKeep) -
               sum(matmul(slice(k, -1, dim, 2 * dim), w["W"]) * v, {-1}, kKeep);
      }

     private:
      Tensor w_;
    };
    return std::make_unique<TwoKeys>(p("W", {n.heads, n.dim, n.dim}));
  };
  system.policy = [](const ttt::SystemSizes&) { return Policy{.chunk = 1}; };
  system.prepare = [](Views& v) { v.k = concat({v.k, 0.1 * silu(v.k)}, -1); };
  const InspectedLoop s = look::inspected_learner(system, {.batch = 1, .heads = 1, .dim = 3, .time = 5}, 5);
  CHECK(s.k.shape()[3] == 6);
  CHECK_FALSE(look::attention_maps(s).softmax.defined());
  const look::KeyStatistics keys = look::key_statistics(s);
  CHECK(keys.queries_keys.empty());
  CHECK(keys.values_outputs.size() == 1);
  const Inspection page = inspect(s);
  CHECK(page.holds());
  CHECK(contains(page.html(), "no softmax attention to compare with: queries have 3 features and keys 6"));
  CHECK(contains(page.html(), "queries and keys have 3 and 6 features"));
}

TEST_CASE("inspect: an optimiser that divides by the gradient's size leaves channels that are rounding") {
  const Array rows = random(f64({1, 1, 4, 3}), 1);
  InspectedLoop s = one_matrix(rows, rows, rows, random(f64({1, 1, 4, 3}), 2), 0.1, 1);
  const auto learner = s.learner;
  s.learner = [learner](const Params& p) {  // without its eps the size of a gradient is nothing to Muon
    return std::make_unique<Equipped>(learner(p), ttt::InnerOptimizer().muon(ttt::muon_published(2), 0));
  };
  const look::Channels r = look::channels(s);
  for (double x : r.full.to_vector()) CHECK(std::abs(x) < 1e-6);
  check_all(r.claims);
}

TEST_CASE("inspect: estimators: full is itself, all steps are full, small steps are first order") {
  for (const std::string system : {"ttt-linear", "ttt-mlp", "gated-delta-net"}) {
    CAPTURE(system);
    const look::Estimators r = look::estimators(of(system));
    check_all(r.claims);
    REQUIRE(r.estimates.size() >= 4);
    CHECK(r.estimates[0].cosine == doctest::Approx(1));
    CHECK(r.estimates[1].name == "first order");
    CHECK(r.estimates[1].cosine < 1 - 1e-12);
    for (const look::Estimate& e : r.estimates) {
      CHECK(e.seconds > 0);
      CHECK(e.bytes > 0);
      CHECK(e.parameters.size() == r.estimates[0].parameters.size());
    }
    CHECK(r.estimates[1].flops <= r.estimates[0].flops);
    CHECK(1 - r.cosine.back() < 0.01 * (1 - r.cosine[0]) + 1e-12);
  }
}

TEST_CASE("inspect: the full meta-gradient is taken apart, however the outer model is trained") {
  InspectedLoop s = of("ttt-mlp");
  const double full = look::contributions_by_step(s).full_norm;
  for (const Policy::Meta meta : {Policy::Meta::first_order, Policy::Meta::truncated}) {
    s.policy.meta = meta;
    const look::StepContributions r = look::contributions_by_step(s);
    check_all(r.claims);
    CHECK(r.full_norm == full);
    check_all(look::channels(s).claims);
  }
}

TEST_CASE("inspect: where there is no gradient, its estimators agree") {
  const Array rows = random(f64({1, 1, 6, 3}), 1);
  const InspectedLoop s = one_matrix(rows, rows, rows, Array::zeros(DType::f64, {1, 1, 6, 3}), 0.1, 3);
  check_all(look::estimators(s).claims);
}

TEST_CASE("inspect: position rates of a policy with the whole sequence as one chunk") {
  ttt::System system = ttt::system_named("ttt-linear");
  system.rotary = false;
  system.policy = [](const ttt::SystemSizes&) { return Policy{.chunk = Policy::kWholeSequence}; };
  const InspectedLoop s = look::inspected_learner(system, {.batch = 1, .heads = 2, .dim = 4, .time = 6}, 5);
  CHECK(s.position.shape() == Shape{6});
  check_all(look::contributions_by_step(s).claims);
  const look::Channels reach = look::channels(s);
  check_all(reach.claims);
  for (const std::int64_t token : {0, 2, 5}) check_all(look::explain_step(s, token, reach).claims);
}
