// The promise: Titans in a golden file is the official recurrence in every depth, chunk and batch, with momentum or without;
// another activation or order is refused by name.
#include <cmath>
#include <utility>

#include "tests/golden_check/changed_file.h"
#include "tests/golden_check/verify.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

double gelu_of(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_slope(double x) {
  return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}

// Titans on plain numbers: one sequence, head and feature, and a perceptron of `depth` weights.
struct TitansByHand {
  int depth = 2, chunk = 2, batch = 0;  // batch 0: gradients of all chunks at the first weights
  bool momentum = true;

  using Numbers = std::vector<double>;
  static Numbers numbers(int count, double step, double from = 0.4) {
    Numbers out;
    for (int i = 0; i < count; ++i) out.push_back(from + 0.5 * std::sin(step * (i + 1)));
    return out;
  }
  // The values in front of each weight; the last is the answer.
  static Numbers forward(const Numbers& w, double x, Numbers& linear) {
    Numbers out{x};
    linear.clear();
    for (std::size_t i = 0; i < w.size(); ++i) {
      linear.push_back(out.back() * w[i]);
      out.push_back(i + 1 < w.size() ? gelu_of(linear.back()) : linear.back());
    }
    return out;
  }

  SafeTensors file() const {
    constexpr int kTime = 7;
    const int steps = kTime / chunk;
    const Numbers q = numbers(kTime, 1.1), k = numbers(kTime, 2.3), v = numbers(kTime, 0.7, -0.2),
                  lr = numbers(kTime, 1.9, 0.6), eta = numbers(steps, 1.3), decay = numbers(steps, 2.9, 0.5);
    Numbers w = numbers(depth, 3.1, 1.1), s(w.size(), 0.0), o, linear;
    std::vector<Numbers> history{w};
    for (int n = 0; n < steps; ++n) {
      const int begun = batch == 0 ? 0 : n * chunk / batch * batch / chunk;
      const Numbers& at = history[static_cast<std::size_t>(begun)];
      Numbers g(w.size(), 0.0);
      for (int t = n * chunk; t < (n + 1) * chunk; ++t) {
        const auto token = static_cast<std::size_t>(t);
        const Numbers x = forward(at, k[token], linear);
        double back = 2 * lr[token] * (x.back() - v[token]);
        for (std::size_t i = w.size(); i-- > 0;) {
          g[i] += back * x[i];
          back *= at[i] * (i > 0 ? gelu_slope(linear[i - 1]) : 1);
        }
      }
      for (std::size_t i = 0; i < w.size(); ++i) {
        s[i] = (momentum ? eta[static_cast<std::size_t>(n)] * s[i] : 0) - g[i];
        w[i] = (1 - decay[static_cast<std::size_t>(n)]) * w[i] + s[i];
      }
      history.push_back(w);
    }
    for (int t = 0; t < kTime; ++t)
      o.push_back(
          forward(history[static_cast<std::size_t>((t + 1) / chunk)], q[static_cast<std::size_t>(t)], linear)
              .back());

    SafeTensors out;
    const std::string op = depth == 1 && chunk == 1 ? "titans_linear" : "titans_mlp";
    out.metadata = {{"op", op}, {"layout", "B H T D"}, {"chunk_size", fmt::format("{}", chunk)}};
    if (batch > 0) out.metadata["batch_size"] = fmt::format("{}", batch);
    if (!momentum) out.metadata["momentum_order"] = "0";
    const auto give = [&](const std::string& name, const Numbers& x, const Shape& shape) {
      out.tensors.emplace(name, Array::of(x, shape));
    };
    give("in.q", q, {1, 1, kTime, 1}), give("in.k", k, {1, 1, kTime, 1}), give("in.v", v, {1, 1, kTime, 1});
    give("in.lr", lr, {1, 1, kTime}), give("in.decay", decay, {1, 1, steps});
    if (momentum) give("in.momentum", eta, {1, 1, steps});
    give("out.o", o, {1, 1, kTime, 1});
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::string name = op == "titans_linear" ? "w" : fmt::format("w{}", i + 1);
      give("in." + name, {history[0][i]}, {1, 1, 1}), give("out.final_" + name, {w[i]}, {1, 1, 1, 1});
      if (momentum) give("out.final_momentum_" + name, {s[i]}, {1, 1, 1, 1});
    }
    return out;
  }
};

}  // namespace

TEST_CASE("Titans: any depth, gradients at the first weights of all, and no momentum") {
  const auto report = [](const TitansByHand& by_hand, const std::function<void(SafeTensors&)>& change = {}) {
    return verify_golden(Changed("titans_mlp", [&](SafeTensors& f) {
                           f = by_hand.file();
                           if (change) change(f);
                         }).path());
  };
  for (const int depth : {1, 2, 3, 4})
    for (const int chunk : {1, 2})
      for (const int chunks_of_a_batch : {0, 1, 2})
        for (const bool momentum : {true, false}) {
          CAPTURE(depth);
          CAPTURE(chunk);
          CAPTURE(chunks_of_a_batch);
          CAPTURE(momentum);
          const TitansByHand by_hand{depth, chunk, chunks_of_a_batch * chunk, momentum};
          const GoldenReport r = report(by_hand);
          CHECK(r.output_error < 1e-12);
          CHECK(!report(by_hand, [](SafeTensors& f) { nudge(f, "out.o", 0.9); }).passes(1e-9));
        }
  // What the file does not say matters: the others' numbers are not these.
  CHECK(!report({.batch = 0}, [](SafeTensors& f) { f.metadata["batch_size"] = "2"; }).passes(1e-3));
  CHECK(!report({.batch = 2}, [](SafeTensors& f) { f.metadata.erase("batch_size"); }).passes(1e-3));
  CHECK(report({.batch = 0}, [](SafeTensors& f) { f.metadata["batch_size"] = "None"; }).passes(1e-12));
  CHECK(
      report({.momentum = false}, [](SafeTensors& f) { f.metadata.erase("momentum_order"); }).passes(1e-12));

  // With time before heads.
  CHECK(report({}, [](SafeTensors& f) {
          f.metadata["layout"] = "B T H D";
          for (auto& [name, value] : f.tensors) {
            Shape shape = value.shape();
            if (contains(name, "w1") || contains(name, "w2")) continue;
            std::swap(shape[1], shape[2]);
            value = value.reshaped(shape);
          }
        }).passes(1e-12));

  const auto refused = [&](const std::function<void(SafeTensors&)>& change) {
    return message_of<IoError>([&] { report({}, change); });
  };
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["momentum_order"] = "2"; }), "'momentum_order'"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["activation"] = "silu"; }),
                 "'activation' in the metadata is 'silu'"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["activation"] = "gelu (tanh)"; }), "'activation'"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["activation"] = "-"; }), "'activation'"));
  CHECK(contains(
      refused([](SafeTensors& f) { f.metadata["momentum_order"] = "1", f.tensors.erase("in.momentum"); }),
      "'in.momentum'"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["momentum_order"] = "0"; }),
                 "has no output 'final_momentum_w1'"));
}
