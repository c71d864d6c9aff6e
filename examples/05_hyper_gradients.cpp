// 05_hyper_gradients: derivatives of the validation loss after twenty training steps by learning rate and
// by the strength of the regularisation, orders 1 to 3, beside central differences of the order before.
#include <nestgrad/nestgrad.h>

#include <cmath>
#include <cstdio>

using namespace nestgrad;

const Spec kRows{DType::f64, {12, 6}}, kColumn{DType::f64, {12, 1}}, kNumber{DType::f64, {}};

// Of a ridge regression w [6, 1] that is trained on rows x [12, 6] with targets y [12, 1]: the loss on other
// rows. in: x, y, other x, other y, learning rate, log of the strength.
Tensor validation_loss(const Tensors& in) {
  Tensor w = zeros(DType::f64, {6, 1});
  for (int step = 0; step < 20; ++step) {
    w = probe(w);  // a variable of its own, even where it is still the number zero
    const Tensor inner = mean(square(matmul(in[0], w) - in[1])) + exp(in[5]) * sum(square(w));
    w -= in[4] * grad(inner, w);
  }
  return mean(square(matmul(in[2], w) - in[3]));
}

// The loss and its derivatives by input `by`.
Function derivatives(std::size_t by) {
  return trace(
      [by](const Tensors& in) {
        Tensors out{validation_loss(in)};
        for (int order = 1; order <= 3; ++order) out.push_back(grad(out.back(), {in[by]})[0]);
        return out;
      },
      {kRows, kColumn, kRows, kColumn, kNumber, kNumber});
}

int main() {
  std::vector<Array> in{random_normal(kRows, 0, 1, 1, 0),
                        random_normal(kColumn, 0, 1, 1, 1),
                        random_normal(kRows, 0, 1, 1, 2),
                        random_normal(kColumn, 0, 1, 1, 3),
                        Array::scalar(0.05),
                        Array::scalar(-1)};
  bool agree = true;
  for (const std::size_t by : {4U, 5U}) {
    const Function f = derivatives(by);
    const double at = in[by].item(), h = 1e-5;
    const auto around = [&](double x) {
      in[by] = Array::scalar(x);
      return f(in);
    };
    const std::vector<Array> above = around(at + h), below = around(at - h), here = around(at);
    std::printf("by the %s:\n", by == 4 ? "learning rate" : "log of the strength");
    for (std::size_t n = 1; n <= 3; ++n) {
      const double exact = here[n].item(), difference = (above[n - 1].item() - below[n - 1].item()) / (2 * h);
      std::printf("  order %zu  derivative %14.8f  difference %14.8f\n", n, exact, difference);
      agree = agree && std::abs(exact - difference) <= 1e-6 * std::max(1.0, std::abs(exact));
    }
  }
  return agree ? 0 : 1;
}
