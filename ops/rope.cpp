// Rotary position embedding, interleaved pairs: (x_2i,
// x_2i+1) is turned by the angle position * theta^(-2i/dim).
#include <cmath>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

// The leading axes of positions [.., time, 1] that broadcast against x; none of positions of any other shape.
Shape lead_of(const Shape& positions, Tensor x, std::int64_t time) {
  const std::size_t rank = positions.size();
  if (rank < 3 || rank > uz(x.rank()) || positions[rank - 1] != 1 || positions[rank - 2] != time) return {};
  for (std::size_t axis = 0; axis + 2 < rank; ++axis) {
    const std::int64_t there = x.dim(static_cast<int>(axis) - static_cast<int>(rank));
    if (positions[axis] != 1 && positions[axis] != there) return {};
  }
  return {positions.begin(), positions.end() - 2};
}

}  // namespace

Tensor rope(Operand input, Operand positions, double theta) {
  const CompositeScope scope("rope", input.loc);
  const Tensor x = input.tensor();
  const std::int64_t dim = x.dim(-1), half = dim / 2;
  if (dim % 2)
    throw call_error<ShapeError>("rope", input.loc,
                                 "the last axis must be even to be turned in pairs: x is {}", describe(x));
  if (!(theta > 0 && std::isfinite(theta)))
    throw call_error<ConfigError>(
        "rope", input.loc, "theta is {}; the base of the frequencies must be above 0 and finite", theta);
  const Tensor frequency =
      exp(iota(x.dtype(), {1, half, 1}, 1) * (-2.0 * m::log(theta) / static_cast<double>(dim)));
  const std::int64_t time = x.rank() < 2 ? 1 : x.dim(-2);
  const Shape lead = lead_of(positions.tensor().shape(), x, time);
  if (positions.tensor().spec().size() != time * numel(lead))
    throw call_error<ShapeError>(
        "rope", input.loc,
        "needs one position for each of {} tokens, [time], or [.., time, 1] whose leading axes broadcast against x: "
        "positions are {}, x is {}",
        time, describe(positions.tensor()), describe(x));
  const auto rows = [&](std::initializer_list<std::int64_t> own) {
    Shape shape = lead;
    shape.insert(shape.end(), own);
    return shape;
  };
  const Tensor angle = reshape(positions.tensor(), rows({time, 1, 1})) * frequency;
  const auto for_both = [&](Tensor t) {
    return reshape(broadcast_to(t, rows({time, half, 2})), rows({time, dim}));
  };
  Shape pairs = x.shape();
  pairs.back() = half;
  pairs.push_back(2);
  const Tensor p = reshape(x, pairs);
  const Tensor turned =
      reshape(concat({-slice(p, -1, 1, 2), slice(p, -1, 0, 1)}, -1), x.shape());  // (-odd, even)
  const Tensor out = x * for_both(cos(angle)) + turned * for_both(sin(angle));
  return x.rank() < 2 ? reshape(out, x.shape()) : out;  // one token, without an axis for it
}

}  // namespace nestgrad
