// 06_scan: 300 steps of a learner, and the gradient through all: as a loop that is unrolled in the trace, as
// a scan, and as a scan that keeps every 16th state alone and computes the others again.
#include <nestgrad/nestgrad.h>

#include <chrono>
#include <cstdio>

using namespace nestgrad;

constexpr std::int64_t kTime = 300, kDim = 32;
// A gradient step of w [dim, dim] towards giving back a row x [1, dim]; its rows have norm 1.
Tensor learn(Tensor w, Tensor x) { return l2_norm(w - 0.1 * grad(sum(square(tanh(matmul(x, w)) - x)), w)); }

enum class Loop { unrolled, scan, checkpoints };
// w0 [dim, dim], x [time, 1, dim] -> the error of the last weights on all rows, and its gradient by w0.
Tensors loss_and_gradient(Tensor w0, Tensor x, Loop loop) {
  Tensor w = w0;
  if (loop == Loop::unrolled)
    for (std::int64_t t = 0; t < kTime; ++t) w = learn(w, reshape(slice(x, 0, t, t + 1), {1, kDim}));
  else
    w = scan(
            [](const Tensors& c, const Tensors& now) -> StepOutput {
              return {{learn(c[0], now[0])}, {}};
            },
            {w0}, {x}, {.checkpoint_every = loop == Loop::checkpoints ? 16 : 0})
            .carries[0];
  const Tensor loss = sum(square(matmul(x, w) - x));
  return {loss, grad(loss, w0)};
}

int main() {
  const Spec square_matrix{DType::f64, {kDim, kDim}}, rows{DType::f64, {kTime, 1, kDim}};
  const std::vector<Array> in{random_normal(square_matrix, 0, 0.2, 1, 0), random_normal(rows, 0, 0.5, 1, 1)};
  const auto ms_since = [](std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<Array> first;
  std::printf("%-12s %16s %10s %12s\n", "", "trace + plan, ms", "run, ms", "memory, KiB");
  bool same = true;
  for (const Loop loop : {Loop::unrolled, Loop::scan, Loop::checkpoints}) {
    auto start = std::chrono::steady_clock::now();
    const Function f =
        trace([loop](Tensor w, Tensor x) { return loss_and_gradient(w, x, loop); }, square_matrix, rows);
    Plan plan = f.plan();
    const double made = ms_since(start);
    const std::vector<Array> out = plan.run(in);  // and touches the memory
    start = std::chrono::steady_clock::now();
    plan.run(in);
    const double run = ms_since(start);
    const char* name = loop == Loop::unrolled ? "unrolled" : loop == Loop::scan ? "scan" : "checkpoints";
    std::printf("%-12s %16.1f %10.2f %12zu\n", name, made, run, plan.stats().arena_bytes / 1024);
    if (first.empty()) first = out;
    for (std::size_t i = 0; i < out.size(); ++i) same = same && out[i].same_bits(first[i]);
  }
  std::printf("%s\n", same ? "the same bits three times" : "different bits");
  return same ? 0 : 1;
}
