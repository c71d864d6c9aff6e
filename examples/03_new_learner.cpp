// 03_new_learner: a learner of one's own. Forward pass and inner loss are written; the rest is derived.
#include <fmt/format.h>
#include <nestgrad/nestgrad.h>

#include <algorithm>

using namespace nestgrad;
using namespace nestgrad::ttt;

// A gated memory, f(x) = tanh(x W1) * (x W2), with a momentum for each token.
struct GatedMemory : Learner {
  Tensor W1, W2;
  GatedMemory(const Params& p, const SystemSizes& s)
      : W1(p("W1", {s.heads, s.dim, s.dim})), W2(p("W2", {s.heads, s.dim, s.dim})) {}
  Weights init() const override { return {matrix("W1", W1), matrix("W2", W2)}; }
  Tensor predict(const Weights& w, Tensor x) const override {
    return tanh(matmul(x, w["W1"])) * matmul(x, w["W2"]);
  }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
  }
  InnerOptimizer optimizer() const override { return InnerOptimizer().momentum(gate("beta")); }
};

int main() try {
  System mine{.name = "gated-memory", .title = "Gated memory", .source = "this file"};
  mine.gates = {{.name = "rate", .shape = [](Tensor x) { return 0.2 * sigmoid(x); }},
                {.name = "beta", .shape = [](Tensor x) { return sigmoid(x); }}};
  mine.learner = [](const Params& p, const SystemSizes& s) { return std::make_unique<GatedMemory>(p, s); };
  mine.policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; };
  fmt::print("{}\n", explain(mine, {}).str());

  // Outer training, through all inner steps: start weights from which reading a sequence teaches most.
  const Function outer = trace_system(mine, {}, DType::f64, [](const SystemProgram& p) {
    const Tensor read = train_along(*p.learner, p.start, p.views, {.policy = p.policy}).output;
    std::vector<Tensor> out{mean(square(read - p.views.v))}, start(p.inputs.end() - 2, p.inputs.end());
    const std::vector<Tensor> g = grad(out[0], start);
    for (std::size_t i = 0; i < 2; ++i) out.push_back(start[i] - 2.0 * g[i]);
    return out;
  });
  std::vector<Array> in = numbers_for(outer, 1);
  for (int step = 0; step <= 30; ++step) {
    const std::vector<Array> out = outer(in);
    if (step % 10 == 0) fmt::print("step {:>2}  outer loss {:.4f}\n", step, out[0].to_vector()[0]);
    std::copy(out.begin() + 1, out.end(), in.end() - 2);
  }
  const ConformanceReport proofs = conformance(mine);
  fmt::print("\n{}", proofs.str());
  return proofs.passed() ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
