#include "engine/plan/cluster_layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad {

namespace {

// Strides of an array along the axes of the cluster's shape, 0 where it repeats.
Shape strides_in(const Shape& shape, std::size_t rank) {
  const Shape dense = strides_of(shape);
  Shape out(rank, 0);
  const std::size_t lead = rank - shape.size();
  for (std::size_t a = 0; a < shape.size(); ++a)
    if (shape[a] != 1) out[lead + a] = dense[a];
  return out;
}

}  // namespace

ClusterLayout::ClusterLayout(const ClusterCall& call) : call_(call) {
  has_narrow_ = std::ranges::any_of(call.ops, [](const ClusterOp& op) { return op.narrow; });
  const Shape& shape = call.shape.shape;
  std::vector<Shape> strides;  // by walk
  for (const Spec& in : call.in) strides.push_back(strides_in(in.shape, shape.size()));
  strides.push_back(strides_in(shape, shape.size()));
  strides.push_back(shape.empty() ? Shape{} : strides_in(narrow_spec(call.shape).shape, shape.size()));
  by_size_.resize(strides.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 1 && !(has_narrow_ && axis + 1 == shape.size())) continue;
    bool joins = !sizes_.empty() && !(has_narrow_ && sizes_.size() == 1);
    for (std::size_t w = 0; joins && w < strides.size() - (has_narrow_ ? 0 : 1); ++w)
      joins = strides[w][axis] == by_size_[w].back() * sizes_.back();
    if (joins) {
      sizes_.back() *= shape[axis];
      continue;
    }
    sizes_.push_back(shape[axis]);
    for (std::size_t w = 0; w < strides.size(); ++w) by_size_[w].push_back(strides[w][axis]);
  }
  if (sizes_.empty()) {  // one element
    sizes_.push_back(1);
    for (std::vector<std::int64_t>& walk : by_size_) walk.push_back(0);
  }
  row_ = sizes_[0];
  for (std::size_t d = 1; d < sizes_.size(); ++d) rows_ *= sizes_[d];
}

std::string ClusterLayout::row_of(std::size_t walk) const {
  std::string out;
  std::int64_t inside = 1;
  for (std::size_t d = 1; d < sizes_.size(); inside *= sizes_[d++]) {
    const std::int64_t stride = by_size_[walk][d];
    if (stride == 0) continue;
    std::string index = "r";
    if (inside != 1) index = fmt::format("{} / {}", index, inside);
    if (d + 1 < sizes_.size()) index = fmt::format("{} % {}", index, sizes_[d]);
    out += fmt::format("{}({}) * {}", out.empty() ? "" : " + ", index, stride);
  }
  return out.empty() ? "0" : out;
}

bool ClusterLayout::is_whole(std::size_t walk) const {
  std::int64_t inside = 1;
  for (std::size_t d = 0; d < sizes_.size(); inside *= sizes_[d++])
    if (sizes_[d] != 1 && by_size_[walk][d] != inside) return false;
  return true;
}

}  // namespace nestgrad
