// What each op is told besides its inputs (engine/core/attrs.h). broadcast_to and reshape have ShapeAttrs;
// elementwise ops, gather and those of ops/identity.cpp but cast have none.
#pragma once

#include "engine/core/attrs.h"

namespace nestgrad {

struct MatmulAttrs {
  bool a = false, b = false;  // the operand's last two axes are swapped
  static auto fields(auto& x) { return std::tie(x.a, x.b); }
};

struct TriangularSolveAttrs {
  bool transpose = false, unit = false;  // unit: the diagonal is taken for ones and not read
  static auto fields(auto& a) { return std::tie(a.transpose, a.unit); }
};

struct SolveAttrs {
  bool transpose = false;
  static auto fields(auto& a) { return std::tie(a.transpose); }
};

struct SliceAttrs {
  int axis = 0;
  std::int64_t begin = 0, end = 0;
  static auto fields(auto& a) { return std::tie(a.axis, a.begin, a.end); }
};

struct PadAttrs {
  int axis = 0;
  std::int64_t before = 0, after = 0;  // zeros
  static auto fields(auto& a) { return std::tie(a.axis, a.before, a.after); }
};

struct ConcatAttrs {
  int axis = 0;
  static auto fields(auto& a) { return std::tie(a.axis); }
};

struct GroupAttrs {
  int group = 0;  // ProcessGroup::id()
  static auto fields(auto& a) { return std::tie(a.group); }
};

struct PermuteAttrs {
  Shape order;  // output axis i is input axis order[i]
  static auto fields(auto& a) { return std::tie(a.order); }
};

// sum and max_over
struct ReduceAttrs {
  Shape axes;  // ascending
  static auto fields(auto& a) { return std::tie(a.axes); }
};

struct CastAttrs {
  DType dtype = DType::f32;
  static auto fields(auto& a) { return std::tie(a.dtype); }
};

struct IotaAttrs {
  int axis = 0;
  DType dtype = DType::f32;
  Shape shape;
  static auto fields(auto& a) { return std::tie(a.axis, a.dtype, a.shape); }
};

struct TrilAttrs {
  std::int64_t diagonal = 0;
  static auto fields(auto& a) { return std::tie(a.diagonal); }
};

struct CumsumAttrs {
  int axis = 0;
  bool reverse = false;
  static auto fields(auto& a) { return std::tie(a.axis, a.reverse); }
};

// causal_attention and its derivative
struct CausalAttentionAttrs {
  std::int64_t window = 0;  // keys that a query reads; 0: no bound
  static auto fields(auto& a) { return std::tie(a.window); }
};

struct ScatterAttrs {
  std::int64_t rows = 0;
  static auto fields(auto& a) { return std::tie(a.rows); }
};

}  // namespace nestgrad
