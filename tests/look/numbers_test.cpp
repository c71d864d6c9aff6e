// Each view of an inner loop keeps its claims, agrees with a closed form, and can be broken.
#include "look/numbers.h"

#include <cmath>

#include "ops/accumulate.h"
#include "tests/testing.h"
#include "tests/ttt/by_hand.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using look::InspectedLoop;
using ttt::Policy;

namespace {

void check_all(const std::vector<Claim>& claims) {
  CHECK_FALSE(claims.empty());
  for (const Claim& i : claims) {
    CAPTURE(i.claim);
    CAPTURE(i.error);
    CHECK(i.holds());
  }
}

InspectedLoop of(const std::string& system, std::int64_t time = 12, std::int64_t chunk = 4) {
  return look::inspected_learner(ttt::system_named(system),
                                 {.batch = 1, .heads = 2, .dim = 4, .time = time, .chunk = chunk}, 5);
}

// One weight W [heads, dim, dim] that starts as `start`; half squared error.
InspectedLoop one_matrix(const Array& k, const Array& v, const Array& q, const Array& cotangent, double rate,
                         std::int64_t chunk) {
  const std::int64_t heads = k.shape()[1], dim = k.shape()[3];
  InspectedLoop out;
  out.name = "one matrix";
  out.learner = [=](const Params& p) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {heads, dim, 0, dim}), ttt::half_squared_error());
  };
  out.policy.chunk = chunk;
  out.k = k, out.v = v, out.q = q, out.cotangent = cotangent;
  out.gates["rate"] = Array::full(DType::f64, {k.shape()[0], heads, k.shape()[2], 1}, rate);
  trace(
      [&](const Tensors&) {
        ParamTable table(*context().emit.graph, DType::f64);
        out.learner(Params(table))->init();
        for (const ParamSpec& p : table.specs()) out.params[p.name] = random(f64(p.shape), 9);
        return Tensors{};
      },
      {});
  return out;
}

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

TEST_CASE("inspect: the two channels add up, and the gradient channel needs two mini-batches") {
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
}

TEST_CASE("inspect: curvature is exact on a diagonal quadratic") {
  // Chunks of three tokens, k = sqrt(a_i) e_i: H = diag(a) for each output.
  const double a[] = {1, 4, 9};
  Array k = Array::zeros(DType::f64, {1, 1, 6, 3});
  for (std::int64_t t = 0; t < 6; ++t)
    k.as<double>()[static_cast<std::size_t>(t * 3 + t % 3)] = std::sqrt(a[t % 3]);
  const Array v = random(f64({1, 1, 6, 3}), 3);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    Array q = Array::zeros(DType::f64, {1, 1, 6, 3});
    for (std::size_t t = 0; t < 6; ++t) q.as<double>()[t * 3 + axis] = 1;  // asks for this axis alone
    for (double rate : {0.1, 0.25}) {
      const look::Curvature r =
          look::curvature(one_matrix(k, v, q, random(f64({1, 1, 6, 3}), 4), rate, 3), 200);
      check_all(r.claims);
      double radius = 0;
      for (double x : a) radius = std::max(radius, std::abs(1 - rate * x));
      for (std::int64_t step = 0; step < 2; ++step)
        CHECK(r.radius.at(step) == doctest::Approx(radius).epsilon(1e-9));
      CHECK(r.along.at(0) == doctest::Approx(rate * a[axis]).epsilon(1e-12));
      CHECK(std::isnan(r.along.at(1)));  // nothing reads what the last step writes to the end
    }
  }
}

TEST_CASE("inspect: curvature of every kind of system, rows, gates and several weights included") {
  for (const std::string system : {"ttt-linear", "ttt-mlp", "titans-linear", "lact", "delta-net"}) {
    CAPTURE(system);
    const InspectedLoop s = of(system);
    const look::Curvature r = look::curvature(s);
    check_all(r.claims);
    for (double x : r.radius.to_vector()) CHECK(x > 0);
  }
  // Keys of length one, rate beta: the eigenvalues of I - beta k k' are 1 - beta and 1.
  for (double x : look::curvature(of("linear-attention")).radius.to_vector()) CHECK(x == doctest::Approx(1));
}

TEST_CASE("inspect: inner losses begin at the first weights and fall where the task can be learnt") {
  const InspectedLoop s = of("delta-net", 64, 4);
  const look::InnerLosses r = look::inner_losses(s);
  check_all(r.claims);
  double early = 0, late = 0, late_initial = 0;
  for (std::size_t t = 0; t < 16; ++t) early += r.before[t];
  for (std::size_t t = 48; t < 64; ++t) late += r.before[t], late_initial += r.initial[t];
  CHECK(late < 0.7 * early);
  CHECK(late < 0.7 * late_initial);
  for (std::size_t t = 0; t < 64; ++t) CHECK(r.after[t] <= r.before[t]);
}

TEST_CASE("inspect: attention maps are those of the closed forms") {
  const InspectedLoop s = of("linear-attention", 6);
  const look::AttentionMaps r = look::attention_maps(s);
  check_all(r.claims);
  const look::ImplicitAttention implicit = look::implicit_attention(s);
  check_all(implicit.claims);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t t = 0; t < 6; ++t) {
      double share = 0;
      for (std::int64_t i = 0; i < 6; ++i) {
        double qk = 0;
        for (std::int64_t d = 0; d < 4; ++d) qk += s.q.at((h * 6 + t) * 4 + d) * s.k.at((h * 6 + i) * 4 + d);
        const std::int64_t at = (h * 6 + t) * 6 + i;
        // o_t = sum over s <= t of <q_t, k_s> v_s; the effective value of a token is -v.
        CHECK(std::abs(r.effective.at(at)) == doctest::Approx(i <= t ? std::abs(qk) : 0).epsilon(1e-12));
        // d o_t / d v_s is that number times the identity of four features.
        CHECK(implicit.map.at(at) == doctest::Approx(i <= t ? 2 * std::abs(qk) : 0).epsilon(1e-12));
        share += r.softmax.at(at);
        if (i > t) CHECK(r.softmax.at(at) == 0);
      }
      CHECK(share == doctest::Approx(1));
    }
  // A learner without a linear last layer says why it has none.
  const look::AttentionMaps none = look::attention_maps(of("ttt-linear"));
  CHECK_FALSE(none.effective.defined());
  CHECK(contains(none.why_not, "last layer"));
}

TEST_CASE("inspect: implicit attention of a learner that is not causal looks both ways") {
  std::size_t seen = 0;
  for (const ttt::System& system : ttt::systems()) {
    if (system.policy({2, 4, 4}).causal()) continue;
    CAPTURE(system.name);
    const look::ImplicitAttention r = look::implicit_attention(of(system.name, 4));
    CHECK(r.claims.empty());
    double above = 0;
    for (std::int64_t i = 0; i < r.map.size(); ++i)
      if (i % 4 > i / 4 % 4) above = std::max(above, r.map.at(i));
    CHECK(above > 0);
    ++seen;
  }
  CHECK(seen > 0);
}

TEST_CASE("inspect: key statistics know equal keys, balanced keys and a plane") {
  Array k = Array::full(DType::f64, {1, 1, 8, 3}, 2);
  InspectedLoop s = one_matrix(k, random(f64({1, 1, 8, 3}), 1), random(f64({1, 1, 8, 3}), 2),
                               random(f64({1, 1, 8, 3}), 3), 0.1, 4);
  look::KeyStatistics r = look::key_statistics(s);
  check_all(r.claims);
  CHECK(r.shift[0] == doctest::Approx(1));
  for (std::size_t i = 0; i < 24; ++i) s.k.as<double>()[i] = i / 3 % 2 ? 1 : -1;
  r = look::key_statistics(s);
  CHECK(std::abs(r.shift[0]) < 1e-12);
  // Rows in a plane: two components explain everything, and keep distances.
  for (std::int64_t t = 0; t < 8; ++t)
    for (Array* x : {&s.q, &s.k}) x->as<double>()[static_cast<std::size_t>(t * 3 + 2)] = 0;
  r = look::key_statistics(s);
  CHECK(r.queries_keys[0].explained == doctest::Approx(1));
  const auto squared = [](const Array& rows, std::int64_t a, std::int64_t b, std::int64_t dim) {
    double sum = 0;
    for (std::int64_t d = 0; d < dim; ++d) sum += std::pow(rows.at(a * dim + d) - rows.at(b * dim + d), 2);
    return sum;
  };
  for (std::int64_t t = 1; t < 8; ++t)
    CHECK(squared(r.queries_keys[0].first, 0, t, 2) == doctest::Approx(squared(s.q, 0, t, 3)));
}

TEST_CASE("inspect: the card of a step has the losses of the weights that it found and wrote") {
  for (const std::string system : {"ttt-linear", "ttt-mlp", "delta-net", "titans-linear", "lact"}) {
    CAPTURE(system);
    const InspectedLoop s = of(system);
    const look::Channels reach = look::channels(s);
    for (std::int64_t token : {0, 5, 11}) {
      CAPTURE(token);
      const look::StepCard card = look::explain_step(s, token, reach);
      check_all(card.claims);
      CHECK(card.step == token / s.chunk());
      CHECK(card.from <= token);
      CHECK(token < card.to);
      CHECK(contains(card.str(), "|change of W|"));
    }
    CHECK(contains(message_of<ConfigError>([&] { look::explain_step(s, 12, reach); }), "no token 12"));
  }
  // The delta rule by hand: W changes by rate k (v - W' k), whose norm is rate |k| |v - W' k|.
  const InspectedLoop s = one_matrix(random(f64({1, 1, 4, 3}), 1), random(f64({1, 1, 4, 3}), 2),
                                     random(f64({1, 1, 4, 3}), 3), random(f64({1, 1, 4, 3}), 4), 0.3, 1);
  const look::StepCard card = look::explain_step(s, 0, look::channels(s));
  const Array& w = s.params.begin()->second;
  double kk = 0, error = 0;
  for (std::int64_t j = 0; j < 3; ++j) {
    double p = 0;
    for (std::int64_t i = 0; i < 3; ++i) p += s.k.at(i) * w.at(i * 3 + j);
    error += std::pow(p - s.v.at(j), 2);
    kk += std::pow(s.k.at(j), 2);
  }
  CHECK(card.written == doctest::Approx(0.3 * std::sqrt(kk * error)));
  CHECK(card.gradient == doctest::Approx(card.written));
  CHECK(card.loss_before == doctest::Approx(error / 2));
  CHECK(card.first_reader == 0);
  CHECK(card.next_gradient == 1);
}

TEST_CASE("inspect: the precision probe finds the tensor that f32 spoils") {
  const Array exact = random(f64({8}), 1), spoilt = random(f64({8}), 2);
  const look::PrecisionProbe r = look::compare_precision(
      {"good", "bad", "zero"},
      {exact.cast(DType::f32), spoilt.cast(DType::f32), Array::zeros(DType::f32, {8})},
      {exact, exact, Array::zeros(DType::f64, {8})});
  CHECK(r.entries[r.worst].name == "bad");
  CHECK(r.entries[0].error < 1e-6);
  CHECK(r.entries[0].error > 0);
  CHECK(r.entries[2].cosine == 1);
  CHECK(contains(r.str(), "worst bad"));
  message_of<ShapeError>([&] { look::compare_precision({"one"}, {exact, exact}, {exact, exact}); });
  message_of<ShapeError>([&] { look::compare_precision({"one"}, {exact}, {random(f64({4}), 1)}); });

  const look::PrecisionProbe own = look::precision(of("ttt-linear"));
  CHECK(own.cosine > 1 - 1e-9);
  double most = 0;
  for (const auto& e : own.entries) most = std::max(most, e.error);
  CHECK(most > 1e-9);
  CHECK(most < 1e-3);
}

TEST_CASE("inspect: the meta-program is the inspected loop's, whatever the checkpoints") {
  const InspectedLoop s = of("ttt-mlp");
  const look::MetaProgram stored = look::meta_program(s), kept = look::meta_program(s, DType::f64, 2);
  CHECK(stored.outputs[0] == "loss");
  CHECK(stored.outputs.size() == stored.function.outputs().size());
  CHECK(same_bits(stored.function(stored.inputs), kept.function(kept.inputs)));
}

TEST_CASE("inspect: wrong specimens are refused") {
  InspectedLoop s = of("ttt-linear");
  s.q = random(f64({1, 2, 8, 4}), 1);
  CHECK(contains(message_of<ShapeError>([&] { look::inner_losses(s); }), "as many tokens"));
  s = of("ttt-linear");
  s.policy.chunk = 5;
  CHECK(contains(message_of<ConfigError>([&] { look::inner_losses(s); }), "whole chunks of 5"));
  s = of("lact");
  s.policy.steps = 2;
  CHECK(contains(message_of<ConfigError>([&] { look::contributions_by_step(s); }), "one step a chunk"));
  // Less than a chunk counts as a chunk, unless it does not write.
  s = of("lact");
  s.policy.chunk = 3 * s.time();
  look::inner_losses(s);
  s.policy.partial_chunk_writes = false;
  CHECK(contains(message_of<ConfigError>([&] { look::inner_losses(s); }), "does not write"));
  s.policy.chunk = 1;
  look::inner_losses(s);
  s = of("ttt-linear");
  s.params.erase("W1");
  CHECK(contains(message_of<ConfigError>([&] { look::inner_losses(s); }), "'W1'"));
}
