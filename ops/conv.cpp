// Depthwise convolutions, as composites: one shifted product per tap.
#include "engine/core/node_text.h"
#include "ops/accumulate.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

void check(std::string_view op, Tensor x, Tensor w, const Shape& wanted, Tensor bias, Loc loc) {
  if (w.shape() != wanted)
    throw call_error<ShapeError>(op, loc, "weight must be {} to fit x = {}, it is {}", to_string(wanted),
                                 describe(x), describe(w));
  if (bias.defined() && bias.shape() != Shape{wanted[0]})
    throw call_error<ShapeError>(op, loc, "bias must be {}, one number a channel of x = {}, it is {}",
                                 to_string(Shape{wanted[0]}), describe(x), describe(bias));
}

void check_1d(std::string_view op, Tensor x, Tensor w, Tensor bias, Loc loc) {
  if (x.rank() != 3)
    throw call_error<ShapeError>(op, loc, "x must be [batch, time, dim], it is {}", describe(x));
  if (w.rank() == 3 && w.dim(-1) < 1)
    throw call_error<ShapeError>(op, loc, "the weight has no taps: {}; it needs at least one", describe(w));
  check(op, x, w, {x.dim(2), 1, w.dim(-1)}, bias, loc);
}

}  // namespace

Tensor conv1d(Operand input, Operand weight, Tensor bias) {
  const CompositeScope scope("conv1d", input.loc);
  const Tensor x = input.tensor(), w = weight.tensor();
  check_1d("conv1d", x, w, bias, input.loc);
  const std::int64_t dim = x.dim(2), taps = w.dim(-1), time = x.dim(1) - taps + 1;
  if (time < 0)
    throw call_error<ShapeError>(
        "conv1d", input.loc,
        "x has {} rows, fewer than the {} taps need: {}; pad() it, or use causal_conv1d()", x.dim(1), taps,
        describe(x));
  const Tensor rows = permute(reshape(w, {dim, taps}), {1, 0});  // [taps, dim]
  Tensor y = bias;
  for (std::int64_t k = 0; k < taps; ++k) {
    const Tensor term = slice(x, 1, k, k + time) * slice(rows, 0, k, k + 1);
    accumulate(y, term);
  }
  return y;
}

Tensor causal_conv1d(Operand x, Operand weight, Tensor bias) {
  const CompositeScope scope("causal_conv1d", x.loc);
  check_1d("causal_conv1d", x.tensor(), weight.tensor(), bias, x.loc);
  return conv1d(pad(x, 1, weight.tensor().dim(-1) - 1, 0), weight, bias);
}

Tensor depthwise_conv3x3(Operand input, Operand weight, Tensor bias) {
  const CompositeScope scope("depthwise_conv3x3", input.loc);
  const Tensor x = input.tensor(), w = weight.tensor();
  if (x.rank() != 4)
    throw call_error<ShapeError>("depthwise_conv3x3", input.loc,
                                 "x must be [batch, height, width, dim], it is {}", describe(x));
  const std::int64_t height = x.dim(1), width = x.dim(2), dim = x.dim(3);
  check("depthwise_conv3x3", x, w, {dim, 1, 3, 3}, bias, input.loc);
  const Tensor padded = pad(pad(x, 1, 1, 1), 2, 1, 1);
  const Tensor taps = permute(reshape(w, {dim, 9}), {1, 0});
  Tensor y = bias;
  for (std::int64_t k = 0; k < 9; ++k) {
    const Tensor window = slice(slice(padded, 1, k / 3, k / 3 + height), 2, k % 3, k % 3 + width);
    const Tensor term = window * slice(taps, 0, k, k + 1);
    accumulate(y, term);
  }
  return y;
}

}  // namespace nestgrad
