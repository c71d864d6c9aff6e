// Random programs: the same seed gives the same sequence of ops, on whatever graph is open.
#pragma once

#include <random>

#include "tests/testing.h"

namespace nestgrad::testing {

class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {}

  static std::vector<Spec> inputs() {
    return {f64({3, 4}), f64({4}), f64({2, 3, 4}), f64({3, 1}), f64(), i32({5})};
  }

  // Some values, some gradients, and the awkward outputs: an input, a number, a value twice, an input
  // reshaped.
  Tensors operator()(const Tensors& in) {
    indices_ = in.back();
    pool_.assign(in.begin(), in.end() - 1);
    for (int step = 0; step < 40; ++step) {
      try {
        const Tensor t = next();
        if (t.spec().size() <= 200 && t.rank() <= 4) pool_.push_back(tanh(t));
      } catch (const ShapeError&) {  // this draw does not fit; draw again
      }
    }
    Tensors out;
    Tensor total = sum(pool_.back());
    for (int i = 0; i < 4; ++i) {
      out.push_back(any());
      total = total + mean(square(out.back()));
    }
    const Tensors x(in.begin(), in.end() - 1);
    for (const Tensor& g : grad(total, x, {.allow_zero = true})) out.push_back(g);
    out.insert(out.end(), {total, in[0], out[0], constant(Array::of({1, 2, 3}, {3})), reshape(in[2], {6, 4}),
                           reshape(out[0], {-1}), indices_});
    return out;
  }

 private:
  int draw(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  Tensor any() { return pool_[static_cast<std::size_t>(draw(static_cast<int>(pool_.size())))]; }
  int axis(Tensor t) {
    if (t.rank() == 0) throw ShapeError("a scalar has no axis");
    return draw(t.rank());
  }

  Tensor next() {
    const Tensor x = any(), y = any();
    switch (draw(24)) {
      case 0:
        return x + y;
      case 1:
        return x * y;
      case 2:
        return x - 0.5 * y;
      case 3:
        return x / (1.0 + square(y));
      case 4:
        return max(x, y);
      case 5:
        return select(greater(x, 0.0), y, -x);
      case 6:
        return exp(-square(x));
      case 7:
        return sin(x) * cos(x);
      case 8:
        return sum(x, {axis(x)}, draw(2) == 0);
      case 9:
        return max(x, {axis(x)}, draw(2) == 0);
      case 10:
        return mean(x, {axis(x)}, kKeep);
      case 11:
        return reshape(x, {-1});
      case 12:
        return reshape(x, {draw(2) ? 1 : 2, -1});
      case 13:
        return permuted(x);
      case 14:
        return transpose(x);
      case 15:
        return matmul(x, transpose(y), {draw(2) == 0, draw(2) == 0});
      case 16:
        return matmul(x, y, {draw(2) == 0, draw(2) == 0});
      case 17:
        return broadcast_to(x, y.shape());
      case 18:
        return slice(x, axis(x), 0, 1);
      case 19:
        return pad(x, axis(x), 1, draw(3));
      case 20:
        return concat({x, y, x}, axis(x));
      case 21:
        return softmax(cumsum(x, axis(x), draw(2) == 0), axis(x));
      case 22:
        return gather(concat({x, x, x}, 0), minimum_index(indices_));
      default:
        return looped(x, y);
    }
  }

  // Indices fit any table of at least one row.
  Tensor minimum_index(Tensor i) { return i * 0; }

  Tensor permuted(Tensor x) {
    std::vector<int> order;
    for (int d = 0; d < x.rank(); ++d) order.insert(order.begin() + draw(d + 1), d);
    return permute(x, order);
  }

  Tensor looped(Tensor x, Tensor w) {
    const Tensor start = mean(x, {0});
    const bool nested = draw(3) == 0;
    const ScanOptions options{.reverse = draw(2) == 0, .checkpoint_every = draw(4)};
    const int result = draw(2);
    const ScanResult r = scan(
        [&](const Tensors& c, const Tensors& now) -> Step {
          Tensor next = tanh(c[0] * mean(w) + now[0]);
          if (nested)
            next = scan(
                       [&](const Tensors& inner, const Tensors&) -> Step {
                         return {{sin(inner[0] + next)}, {}};
                       },
                       {next}, {}, {.steps = 2})
                       .carries[0];
          return {{next, c[1] + square(now[0]), c[2]}, {next * c[1]}};
        },
        {start, start, square(start)}, {x}, options);
    return result ? r.ys[0] : r.carries[0] + r.carries[2];
  }

  std::mt19937 random_;
  Tensors pool_;
  Tensor indices_;
};

}  // namespace nestgrad::testing
