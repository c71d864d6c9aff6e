// Nested learning whose meta-gradients are known in closed form. Everything both unrolled and as a scan.
#include <cmath>

#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kTight = 1e-12;
const Loop kLoops[] = {unrolled, as_scan};

// steps of w <- w - eta dloss/dw; with first_order, the inner gradient counts as a constant.
Tensor descend(const Loop& loop, Tensor w0, Tensor eta, const std::function<Tensor(Tensor)>& loss, int steps,
               bool first_order = false) {
  return loop(
             [&](const Tensors& w, const Tensors&) -> StepOutput {
               const Tensor g = grad(loss(w[0]), {w[0]})[0];
               return {{w[0] - eta * (first_order ? stop_gradient(g) : g)}, {}};
             },
             {w0}, {}, {.steps = steps})
      .carries[0];
}

double number(const Array& a) { return a.item(); }

void check_near(const Array& value, double expected) {
  CHECK(std::abs(value.item() - expected) <= kTight * std::max(1.0, std::abs(expected)));
}

}  // namespace

TEST_CASE("A quadratic inner problem gives the meta-gradients of its closed form") {
  for (const Loop& loop : kLoops) {
    const auto outer = [&](const Tensors& in, bool first_order) {  // a, b, w0, eta, c
      return descend(
          loop, in[2], in[3], [&](Tensor w) { return 0.5 * in[0] * square(w - in[1]); }, 3, first_order);
    };
    const Function f = trace(
        [&](const Tensors& in) -> Tensors {
          const Tensor w = outer(in, false), loss = 0.5 * square(w - in[4]);
          const Tensors g = grad(loss, {in[2], in[3], in[0], in[1]});
          const Tensor first = grad(0.5 * square(outer(in, true) - in[4]), {in[2]})[0];
          return {w, g[0], g[1], g[2], g[3], first};
        },
        std::vector<Spec>(5, f64()));
    const Arrays out =
        f({Array::scalar(2), Array::scalar(1), Array::scalar(3), Array::scalar(.1), Array::scalar(.5)});
    const double expected[] = {2.024, 0.780288, -11.70432, -0.585216, 0.743712, 1.524};
    for (std::size_t i = 0; i < 6; ++i) check_near(out[i], expected[i]);
  }
}

TEST_CASE("A quartic inner problem gives the meta-gradients of its closed form") {
  for (const Loop& loop : kLoops) {
    const Function f = trace(
        [&](const Tensors& in) -> Tensors {  // w0, eta, theta
          const auto outer = [&](bool first_order) {
            return 0.5 * square(descend(
                             loop, in[0], in[1], [&](Tensor w) { return in[2] * square(square(w)) / 4.0; }, 3,
                             first_order));
          };
          Tensors out = grad(outer(false), in);
          out.push_back(grad(outer(true), {in[0]})[0]);
          return out;
        },
        std::vector<Spec>(3, f64()));
    const Arrays out = f({Array::scalar(1), Array::scalar(.1), Array::scalar(1)});
    check_near(out[0], 0.3245035116119217);
    check_near(out[1], -1.345976631804429);
    check_near(out[2], -0.1345976631804429);
    check_near(out[3], 0.3245035116119217 + .15813223013372416 + .14880987605528775 + .13907293354796646);
  }
}

// Step term t = -eta H_t lambda_t: H_t the inner Hessian at w_(t-1), lambda_t the full cotangent of w_t.
TEST_CASE("Full meta-gradient = first-order term + one curvature term per inner step") {
  constexpr double kTerms[] = {-.13907293354796646, -.14880987605528775, -.15813223013372416};  // t = 1, 2, 3
  const auto inner = [](Tensor w, Tensor theta) { return sum(theta * square(square(w)) / 4.0); };

  const Function by_steps = trace(
      [&](const Tensors& in) -> Tensors {
        Tensors w{in[0]}, terms;
        for (int t = 0; t < 3; ++t)
          w.push_back(w.back() - in[1] * grad(inner(w.back(), in[2]), {w.back()})[0]);
        const Tensor loss = 0.5 * square(w[3]);
        for (std::size_t t = 1; t <= 3; ++t) {
          const Tensor lambda = grad(loss, {w[t]})[0];
          terms.push_back(-(in[1] * hvp(inner(w[t - 1], in[2]), {w[t - 1]}, {lambda})[0]));
        }
        return {concat({reshape(terms[0], {1}), reshape(terms[1], {1}), reshape(terms[2], {1})}, 0),
                grad(loss, {in[0]})[0], grad(loss, {w[3]})[0]};
      },
      std::vector<Spec>(3, f64()));

  // In a scan, the cotangents of the carries are those of zeros added to them.
  const Function by_scan = trace(
      [&](const Tensors& in) -> Tensors {
        const Tensor nudges = probe(zeros(DType::f64, {3}));
        const ScanResult r = scan(
            [&](const Tensors& w, const Tensors& nudge) -> StepOutput {
              return {{w[0] - in[1] * grad(inner(w[0], in[2]), {w[0]})[0] + nudge[0]}, {w[0]}};
            },
            {in[0]}, {nudges});
        const Tensor loss = 0.5 * square(r.carries[0]);
        const Tensors full = grad(loss, {in[0], nudges});
        const Tensor before = probe(r.ys[0]);
        return {-(in[1] * hvp(inner(before, in[2]), {before}, {full[1]})[0]), full[0],
                grad(loss, {r.carries[0]})[0]};
      },
      std::vector<Spec>(3, f64()));

  for (const Function& f : {by_steps, by_scan}) {
    const Arrays out = f({Array::scalar(1), Array::scalar(.1), Array::scalar(1)});
    double total = number(out[2]);
    for (int t = 0; t < 3; ++t) {
      CHECK(std::abs(out[0].at(t) - kTerms[t]) < kTight);
      total += out[0].at(t);
    }
    CHECK(std::abs(number(out[1]) - total) < kTight);
  }
}

namespace {

constexpr int kTokens = 5, kDim = 3;

// tril(a b', diagonal) scaled.
std::vector<double> masked_scores(const Array& a, const Array& b, int diagonal, double scale) {
  std::vector<double> out(kTokens * kTokens, 0);
  for (int t = 0; t < kTokens; ++t)
    for (int s = 0; s <= t + diagonal; ++s)
      for (int d = 0; d < kDim; ++d)
        out[static_cast<std::size_t>(t * kTokens + s)] += scale * a.at(t * kDim + d) * b.at(s * kDim + d);
  return out;
}

// x (1 + l)^-1 for a strictly lower l, by back substitution over the columns.
std::vector<double> times_inverse(std::vector<double> x, const std::vector<double>& l) {
  for (int t = 0; t < kTokens; ++t)
    for (int s = kTokens - 1; s >= 0; --s)
      for (int u = s + 1; u < kTokens; ++u)
        x[static_cast<std::size_t>(t * kTokens + s)] -=
            x[static_cast<std::size_t>(t * kTokens + u)] * l[static_cast<std::size_t>(u * kTokens + s)];
  return x;
}

// Outputs W_t q_t of a linear learner started at W0, one inner gradient per token: at W0 (a mini-batch) or at
// the weights that the previous token left (online).
Function linear_learner(const Loop& loop, bool online) {
  return trace(
      [&](const Tensors& in) -> Tensors {  // w0, keys, values, queries, eta
        const ScanResult r = loop(
            [&](const Tensors& carry, const Tensors& x) -> StepOutput {
              const Tensor w = carry[0], at = online ? w : in[0];
              const Tensor k = reshape(x[0], {kDim, 1}), v = reshape(x[1], {kTokens, 1}),
                           q = reshape(x[2], {kDim, 1});
              const Tensor next = w - in[4] * grad(0.5 * sum(square(matmul(at, k) - v)), at);
              return {{next}, {reshape(matmul(next, q), {kTokens})}};
            },
            {in[0]}, {in[1], in[2], in[3]}, {});
        const Tensor direction = constant(random(f64({kTokens, kTokens}), 9));
        return {r.ys[0], vjp({r.ys[0]}, {direction}, {in[2]})[0]};
      },
      {f64({kTokens, kDim}), f64({kTokens, kDim}), f64({kTokens, kTokens}), f64({kTokens, kDim}), f64()});
}

}  // namespace

TEST_CASE(
    "A linear learner started at zero is linear attention: "
    "eta tril(QK'), online with the delta rule's inverse") {
  const double eta = 0.3;
  const Array k = random(f64({kTokens, kDim}), 1), q = random(f64({kTokens, kDim}), 2);
  Array identity = Array::zeros(DType::f64, {kTokens, kTokens});
  for (std::size_t t = 0; t < kTokens; ++t) identity.as<double>()[t * kTokens + t] = 1;
  const Array direction = random(f64({kTokens, kTokens}), 9);

  for (const bool online : {false, true}) {
    const std::vector<double> scores = masked_scores(q, k, 0, eta);
    const std::vector<double> attention =
        online ? times_inverse(scores, masked_scores(k, k, -1, eta)) : scores;
    std::vector<double> pulled(kTokens * kTokens, 0);  // attention' direction
    for (std::size_t s = 0; s < kTokens; ++s)
      for (std::size_t j = 0; j < kTokens; ++j)
        for (std::size_t t = 0; t < kTokens; ++t)
          pulled[s * kTokens + j] +=
              attention[t * kTokens + s] * direction.at(static_cast<std::int64_t>(t * kTokens + j));
    for (const Loop& loop : kLoops) {
      // The values are one-hot, so the outputs are the attention itself.
      const Arrays out = linear_learner(
          loop, online)({Array::zeros(DType::f64, {kTokens, kDim}), k, identity, q, Array::scalar(eta)});
      CHECK(relative_error(out[0], Array::of(attention, {kTokens, kTokens}), 1) < kTight);
      CHECK(relative_error(out[1], Array::of(pulled, {kTokens, kTokens}), 1) < kTight);
    }
  }
}

TEST_CASE("Perturbations of nested derivatives are not confused") {
  for (const Loop& loop : kLoops) {
    const Function f = trace(
        [&](Tensor xs, Tensor ys, Tensor ps) -> Tensors {
          const ScanResult r = loop(
              [](const Tensors&, const Tensors& in) -> StepOutput {
                const Tensor x = in[0], y = in[1], p = in[2];
                const Tensor one = x * grad(x + y, y);
                const Tensor same = probe(x);
                const Tensor four = x * grad(square(same), same);
                const Tensor two = grad(grad(p * square(x), x), x);
                return {{}, {one, four, two}};
              },
              {}, {xs, ys, ps}, {});
          return {grad(sum(r.ys[0]), xs), grad(sum(r.ys[1]), xs), grad(sum(r.ys[2]), ps)};
        },
        f64({2}), f64({2}), f64({2}));
    const Arrays out = f({Array::of({1, 1}, {2}), Array::of({5, 7}, {2}), Array::of({3, -2}, {2})});
    CHECK(out[0].to_vector() == std::vector<double>{1, 1});
    CHECK(out[1].to_vector() == std::vector<double>{4, 4});
    CHECK(out[2].to_vector() == std::vector<double>{2, 2});
  }
}

// Siskind and Pearlmutter's trap for forward modes, in every pair of modes.
TEST_CASE("The second derivative of tanh(-cv)(cv)^2 is 0 at 0 and -2c^2 at 1 in every mode") {
  using Mode = std::function<Tensor(Tensor y, Tensor x)>;
  const Mode reverse = [](Tensor y, Tensor x) { return grad(y, x); };
  const Mode forward = [](Tensor y, Tensor x) { return jvp({y}, {x}, {full(DType::f64, x.shape(), 1)})[0]; };
  for (const Loop& loop : kLoops)
    for (const Mode& first : {reverse, forward})
      for (const Mode& second : {reverse, forward}) {
        const Function f = trace(
            [&](Tensor v) {
              const Tensor y = loop(
                                   [](const Tensors& c, const Tensors&) -> StepOutput {
                                     return {{tanh(-1e8 * c[0]) * square(1e8 * c[0])}, {}};
                                   },
                                   {v}, {}, {.steps = 1})
                                   .carries[0];
              return second(first(y, v), v);
            },
            f64());
        CHECK(f(Array::scalar(0)).item() == 0);
        CHECK(f(Array::scalar(1)).item() == doctest::Approx(-2e16).epsilon(1e-12));
      }
}
