// Rearrangements: how the elements of one array lie in another.
#pragma once

#include <optional>
#include <vector>

#include "cuda/strided.h"
#include "engine/core/op.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

// Walks of one shape: source[source_offset + from.at(i)] goes to target[target_offset + to.at(i)].
struct Move {
  Strided from, to;
  std::int64_t source_offset = 0, target_offset = 0, size = 0;
};

inline Move move_over(const Shape& shape, const Shape& source_strides, const Shape& target_strides,
                      std::int64_t source_offset = 0, std::int64_t target_offset = 0) {
  Move move{{}, {}, source_offset, target_offset, numel(shape)};
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (!append(shape[d], {{move.from, source_strides[d]}, {move.to, target_strides[d]}}))
      throw ShapeError(
          "[copy] more than 16 axes that are not walked through in one stride; reshape() some together");
  return move;
}

// The same move in units of n elements that lie next to each other in both arrays; nothing if it would cut one.
inline std::optional<Move> in_units(Move move, std::int64_t n) {
  const int last = move.from.rank - 1;
  if (last < 0 || move.from.stride[last] != 1 || move.to.stride[last] != 1 || move.from.size[last] % n != 0 ||
      move.source_offset % n != 0 || move.target_offset % n != 0)
    return std::nullopt;
  for (Strided* walk : {&move.from, &move.to}) {
    walk->set_size(last, walk->size[last] / n);
    for (int d = 0; d < last; ++d) {
      if (walk->stride[d] % n != 0) return std::nullopt;
      walk->stride[d] /= n;
    }
  }
  move.source_offset /= n, move.target_offset /= n, move.size /= n;
  return move;
}

// A move in which rows and columns change places: the source lies side by side along rows, the target along columns, `outer` walks
// through such matrices. By tiles, so that both are read and written side by side.
struct TiledMove {
  static constexpr std::int64_t kTile = 32;
  Move outer;
  std::int64_t rows = 0, columns = 0, target_row = 0, source_column = 0;  // extents; how far apart they begin
  std::uint32_t tiles_down = 0, tiles_across = 0;
  Divisor by_tiles_down, by_tiles_across;
  std::int64_t tiles = 0;  // below 2^31
};
// Nothing where it is no such move, or where tiles would be mostly empty.
inline std::optional<TiledMove> in_tiles(const Move& move) {
  constexpr std::int64_t kLeast = TiledMove::kTile / 2;
  const int last = move.to.rank - 1;
  if (last < 1 || move.to.stride[last] != 1 || move.from.stride[last] <= 1) return std::nullopt;
  int row = 0;
  while (row < last && move.from.stride[row] != 1) ++row;
  TiledMove out{.outer = move,
                .rows = move.to.size[row],
                .columns = move.to.size[last],
                .target_row = move.to.stride[row],
                .source_column = move.from.stride[last]};
  if (row == last || out.rows < kLeast || out.columns < kLeast) return std::nullopt;
  for (Strided* walk : {&out.outer.from, &out.outer.to}) walk->remove(last), walk->remove(row);
  out.outer.size = out.outer.to.count();
  const std::int64_t down = (out.rows + TiledMove::kTile - 1) / TiledMove::kTile,
                     across = (out.columns + TiledMove::kTile - 1) / TiledMove::kTile;
  out.tiles = out.outer.size * down * across;
  if (out.tiles >> 31 != 0) return std::nullopt;
  out.tiles_down = static_cast<std::uint32_t>(down), out.tiles_across = static_cast<std::uint32_t>(across);
  out.by_tiles_down = Divisor(down), out.by_tiles_across = Divisor(across);
  return out;
}

// Of an op with Op::view.
inline Move move_of_view(const OpCall& call) {
  const OpView view = call.op.view(call);
  return move_over(call.out.shape, view.strides, strides_of(call.out.shape), view.offset);
}
// Of pad: into an output of zeros.
inline Move move_of_pad(const OpCall& call) {
  const PadAttrs& pad = call.attrs.as<PadAttrs>();
  const Shape to = strides_of(call.out.shape);
  return move_over(call.in[0].shape, strides_of(call.in[0].shape), to, 0,
                   pad.before * to[static_cast<std::size_t>(pad.axis)]);
}
// Of concat: one for each input.
inline std::vector<Move> moves_of_concat(const OpCall& call) {
  const auto axis = static_cast<std::size_t>(call.attrs.as<ConcatAttrs>().axis);
  const Shape to = strides_of(call.out.shape);
  std::vector<Move> moves;
  std::int64_t at = 0;
  for (const Spec& in : call.in) {
    moves.push_back(move_over(in.shape, strides_of(in.shape), to, 0, at * to[axis]));
    at += in.shape[axis];
  }
  return moves;
}

}  // namespace nestgrad::cuda
