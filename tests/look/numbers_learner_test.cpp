// The learner looked at: curvature, losses, attention, keys, steps, precision; each agrees with a closed form.
#include <cmath>

#include "engine/core/index.h"
#include "look/inspection.h"
#include "look/open_loop.h"
#include "tests/look/inspected_loops.h"

using namespace nestgrad;
using namespace nestgrad::testing;

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
        CHECK(r.expansion.at(step) == doctest::Approx(radius).epsilon(1e-9));
      // The last step's weights are read by its own answers.
      for (std::int64_t step = 0; step < 2; ++step)
        CHECK(r.along.at(step) == doctest::Approx(rate * a[axis]).epsilon(1e-12));
    }
  }
}

TEST_CASE(
    "inspect: lambda of a step is what later steps and its own answers want of the weights that it makes") {
  // W_t = W_{t-1} - rate k_t' (k_t W_{t-1} - v_t), answers q_t W_t or q_t W_{t-1}: lambda_t goes back by hand.
  constexpr std::int64_t kTime = 6, kDim = 3;
  constexpr double kRate = 0.2;
  const Spec rows = f64({1, 1, kTime, kDim});
  const Array k = random(rows, 1), v = random(rows, 2), q = random(rows, 3), ct = random(rows, 4);
  const auto at = [&](const Array& x, std::int64_t t, std::int64_t i) { return x.at(t * kDim + i); };
  for (const bool after : {true, false}) {
    InspectedLoop loop = one_matrix(k, v, q, ct, kRate, 1);
    if (!after) loop.policy.read = Policy::Read::before_write;
    const look::Curvature r = look::curvature(loop, 200);
    check_all(r.claims);
    std::vector<double> lambda(kDim * kDim, 0);  // [in, out]
    for (std::int64_t t = kTime; t-- > 0;) {
      if (t + 1 < kTime) {  // through the next step
        std::vector<double> back = lambda;
        for (std::int64_t i = 0; i < kDim; ++i)
          for (std::int64_t o = 0; o < kDim; ++o)
            for (std::int64_t j = 0; j < kDim; ++j)
              back[uz(i * kDim + o)] -= kRate * at(k, t + 1, i) * at(k, t + 1, j) * lambda[uz(j * kDim + o)];
        lambda = back;
      }
      const std::int64_t reader = after ? t : t + 1;  // the token whose answer reads W_t
      for (std::int64_t i = 0; i < kDim && reader < kTime; ++i)
        for (std::int64_t o = 0; o < kDim; ++o)
          lambda[uz(i * kDim + o)] += at(q, reader, i) * at(ct, reader, o);
      double kept = 0, square = 0;
      for (std::int64_t o = 0; o < kDim; ++o) {
        double along_key = 0;
        for (std::int64_t i = 0; i < kDim; ++i) {
          along_key += at(k, t, i) * lambda[uz(i * kDim + o)];
          square += lambda[uz(i * kDim + o)] * lambda[uz(i * kDim + o)];
        }
        kept += kRate * along_key * along_key;
      }
      CAPTURE(t);
      if (square == 0) CHECK(std::isnan(r.along.at(t)));
      else CHECK(r.along.at(t) == doctest::Approx(kept / square).epsilon(1e-12));
    }
  }
}

TEST_CASE("inspect: curvature of every kind of system, rows, gates and several weights included") {
  for (const std::string system : {"ttt-linear", "ttt-mlp", "titans-linear", "lact", "delta-net"}) {
    CAPTURE(system);
    const InspectedLoop s = of(system);
    const look::Curvature r = look::curvature(s);
    check_all(r.claims);
    for (double x : r.expansion.to_vector()) CHECK(x > 0);
  }
  // Keys of length one, rate beta: the eigenvalues of I - beta k k' are 1 - beta and 1.
  for (double x : look::curvature(of("linear-attention")).expansion.to_vector())
    CHECK(x == doctest::Approx(1));
}

TEST_CASE("inspect: the expansion is that of the learner's own steps, differentiated by differences" *
          doctest::test_suite("slow")) {
  // Optimisers with a scale, momentum, decay, orthogonalisation; own gates; rates per weight; several weights.
  for (const std::string system :
       {"naive-ttt", "ttt-mlp", "titans-linear", "titans-mlp", "lact", "lact-v1", "hope", "delta-net"}) {
    CAPTURE(system);
    const InspectedLoop s = look::inspected_learner(
        ttt::system_named(system), {.batch = 1, .heads = 1, .dim = 3, .time = 8, .chunk = 4}, 5);
    const look::Curvature r = look::curvature(s, 1000);
    check_all(r.claims);
    // The last step, from what all others have left: weights and slots.
    const std::int64_t last = s.chunks() - 1, begin = last * s.chunk();
    std::vector<std::size_t> weights;  // places in the state of those that learn
    const Arrays found = look::OpenProgram(s, {}, [&](look::OpenLoop& loop, const std::vector<Tensor>&) {
      ttt::State state = ttt::State::start(*loop.learner, loop.start);
      std::size_t at = 0;
      for (std::size_t w = 0; w < state.weights.size(); at += state.of(w++).size()) {
        for (std::size_t l = 0; l < loop.learning.size(); ++l)
          if (loop.learning.at(l).name == state.weights.at(w).name) weights.push_back(at);
      }
      if (begin > 0)
        state = ttt::train_along(*loop.learner, state, ttt::part(loop.views, 0, begin), loop.options).state;
      return state.flat();
    })();
    std::vector<Spec> specs;
    for (const Array& a : found) specs.push_back(a.spec());
    const look::OpenProgram step(s, specs, [&](look::OpenLoop& loop, const std::vector<Tensor>& state) {
      loop.options.form = ttt::FormChoice::primal;
      return ttt::train_along(*loop.learner, ttt::State::start(*loop.learner, loop.start).with(state),
                              ttt::part(loop.views, begin, s.time()), loop.options)
          .state.flat();
    });
    constexpr double kStep = 1e-6;
    std::vector<double> transposed;  // as a matrix lengthens, so does its transpose
    std::int64_t rows = 0;
    for (const std::size_t w : weights)
      for (std::size_t e = 0; e < static_cast<std::size_t>(found[w].size()); ++e, ++rows) {
        const auto moved = [&](double by) {
          Arrays state = found;
          state[w] = state[w].clone();
          state[w].as<double>()[e] += by;
          return step(state);
        };
        const Arrays up = moved(kStep), down = moved(-kStep);
        for (const std::size_t to : weights)
          for (std::int64_t j = 0; j < up[to].size(); ++j)
            transposed.push_back((up[to].at(j) - down[to].at(j)) / (2 * kStep));
      }
    CHECK(r.expansion.at(last) ==
          doctest::Approx(largest_factor(Array::of(transposed, {rows, rows}))).epsilon(1e-5));
  }
}

TEST_CASE("inspect: what an InspectedLoop holds fits its tokens, or it is refused") {
  const InspectedLoop good = of("delta-net", 8, 4);
  const auto refused = [&](const auto& change, std::string_view says) {
    InspectedLoop s = good;
    change(s);
    std::string text;
    try {
      look::channels(s);
    } catch (const Error& e) {
      text = e.what();
    }
    CAPTURE(text);
    CHECK(contains(text, says));
  };
  const auto patches = [&](const Array& image, std::int64_t rows, std::int64_t columns) {
    return [=](InspectedLoop& s) { s.patches = {.images = {{image}}, .rows = rows, .columns = columns}; };
  };
  const auto image = [](Shape shape) { return Array::zeros(DType::f32, std::move(shape)); };
  refused(patches(image({4, 8, 1}), 0, 0), "rows and columns");
  refused([](InspectedLoop& s) { s.patches = {.images = {}, .rows = 2, .columns = 4}; },
          "there must be an image");
  refused(patches({}, 2, 4), "not defined");
  refused(patches(image({4, 8}), 2, 4), "f32[4,8]");
  refused(patches(image({4, 8, 2}), 2, 4), "f32[4,8,2]");
  refused(patches(image({5, 8, 1}), 2, 4), "into squares");
  refused(patches(image({4, 4, 1}), 2, 2), "4 patches, and there are 8 tokens");
  refused(patches(image({8, 8, 1}), 4, 4), "16 patches, and there are 8 tokens");
  refused(
      [&](InspectedLoop& s) {
        s.patches = {.images = {{image({4, 4, 1})}, {image({2, 2, 1})}}, .rows = 2, .columns = 2};
      },
      "two sizes");
  refused(
      [](InspectedLoop& s) {
        s.cotangent = random(f64({1, 1, 8, 4}), 1);
      },
      "as many sequences and heads");
  refused([](InspectedLoop& s) { s.cotangent = random(f64({1, 2, 8, 1}), 1); }, "shaped as the answers");
  refused([](InspectedLoop& s) { s.outer_loss.resize(7); }, "outer_loss has 7");
  InspectedLoop fits = good;
  patches(image({4, 8, 1}), 2, 4)(fits);
  check_all(look::channels(fits).claims);
}

TEST_CASE("inspect: a gradient that the first order leaves out has no direction, and is not the full one's") {
  // Momentum's gate in one step: the first order has nothing of it, the full gradient something.
  const look::Estimators r = look::estimators(of("hope", 8, 4));
  bool none = false;
  for (std::size_t i = 0; i < r.estimates[0].parameters.size(); ++i) {
    const auto &full = r.estimates[0].parameters[i], &first = r.estimates[1].parameters[i];
    if (full.norm == 0 || first.norm != 0) continue;
    none = true;
    CHECK(std::isnan(first.cosine));
  }
  CHECK(none);
  // The page says so too.
  const Inspection page = inspect(of("hope", 8, 4));
  std::int64_t rows = 0, without = 0;
  for (const ReportView& view : page.views)
    for (const Picture& picture : view.pictures)
      if (const Table* table = std::get_if<Table>(&picture);
          table && view.id == "estimators" && table->columns[0] == "tensor")
        for (std::size_t i = 0; i < table->rows.size(); ++i, ++rows)
          if (r.estimates[1].parameters[i].norm == 0) {
            ++without;
            CHECK(contains(table->rows[i][2], "NaN"));
          }
  CHECK(rows == std::ssize(r.estimates[0].parameters));
  CHECK(without > 0);
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
  // Where the meta-gradient is cut changes no number of it.
  InspectedLoop cut = of("linear-attention", 6, 2);
  cut.policy.meta = Policy::Meta::truncated;
  const look::AttentionMaps same = look::attention_maps(cut);
  CHECK(same.effective.defined());
  check_all(same.claims);
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
  // Of a policy that takes the mean over a chunk the gradient is the mean; one that is linear in the weights meets no later one.
  InspectedLoop together = s;
  together.policy.chunk = 2, together.policy.update = Policy::Update::per_chunk,
  together.policy.average = true;
  const look::StepCard mean = look::explain_step(together, 0, look::channels(together));
  CHECK(mean.gradient == doctest::Approx(mean.written));
  const InspectedLoop linear = of("linear-attention");
  CHECK(look::explain_step(linear, 0, look::channels(linear)).next_gradient == -1);
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
