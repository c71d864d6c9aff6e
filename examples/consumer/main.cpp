// Learns a learning rate: the outer gradient goes through three inner gradient steps.
#include <nestgrad/nestgrad.h>

#include <cstdio>

using namespace nestgrad;

int main() {
  const Spec vector{DType::f64, {1, 4}}, matrix{DType::f64, {4, 4}}, number{DType::f64, {}};
  const Function outer = trace(
      [](Tensor x, Tensor y, Tensor w0, Tensor rate) {
        Tensor w = w0;
        for (int step = 0; step < 3; ++step) {
          const Tensor inner = sum(square(matmul(x, w) - y));
          w = w - rate * grad(inner, w);
        }
        const Tensor loss = sum(square(matmul(x, w) - y));
        return std::vector<Tensor>{loss, grad(loss, rate)};  // through the inner gradients
      },
      vector, vector, matrix, number);

  Array rate = Array::scalar(0.01);
  const Array x = Array::of({1, -1, 0.5, 0.25}, {1, 4}), y = Array::of({0.5, 1, -0.5, 0}, {1, 4}),
              w0 = Array::zeros(DType::f64, {4, 4});
  double first = 0, last = 0;
  for (int i = 0; i < 50; ++i) {
    const std::vector<Array> out = outer({x, y, w0, rate});
    rate = Array::scalar(rate.item() - 0.01 * out[1].item());
    last = out[0].item();
    if (i == 0) first = last;
  }
  std::printf("loss after three inner steps: %.4f with the first rate, %.2e with the learnt rate %.4f\n",
              first, last, rate.item());
  return last < 0.1 * first ? 0 : 1;
}
