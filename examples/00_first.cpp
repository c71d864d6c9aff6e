// 00_first: the gradient of a loss through three training steps, with respect to their learning rate.
#include <nestgrad/nestgrad.h>

#include <cstdio>

using namespace nestgrad;

int main() {
  const Spec row{DType::f64, {1, 4}}, square_matrix{DType::f64, {4, 4}}, number{DType::f64, {}};
  const Function outer = trace(
      [](Tensor x, Tensor y, Tensor w, Tensor rate) {
        for (int step = 0; step < 3; ++step) {
          const Tensor inner = sum(square(matmul(x, w) - y));
          w -= rate * grad(inner, w);  // a training step of the inner model ...
        }
        const Tensor loss = sum(square(matmul(x, w) - y));
        return std::vector<Tensor>{loss, grad(loss, rate)};  // ... and the gradient through all three
      },
      row, row, square_matrix, number);
  const Array x = random_normal(row, 0, 1, 1, 0), y = random_normal(row, 0, 1, 1, 1);
  const Array w = random_normal(square_matrix, 0, 1, 1, 2);
  const auto at = [&](double rate) { return outer({x, y, w, Array::scalar(rate)}); };
  const std::vector<Array> out = at(0.01);
  const double difference = (at(0.010001)[0].item() - at(0.009999)[0].item()) / 2e-6;
  std::printf("loss %.5f; its derivative by the learning rate %.5f, by differences %.5f\n", out[0].item(),
              out[1].item(), difference);
}
