// Stand-in for the toolkit's header: small vectors and launch extents.
#pragma once

#define NESTGRAD_EMULATOR_VECTOR2(name, type, alignment) \
  struct alignas(alignment) name {                       \
    type x, y;                                           \
  };                                                     \
  inline name make_##name(type x, type y) { return {x, y}; }
#define NESTGRAD_EMULATOR_VECTOR4(name, type, alignment) \
  struct alignas(alignment) name {                       \
    type x, y, z, w;                                     \
  };                                                     \
  inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

NESTGRAD_EMULATOR_VECTOR2(int2, int, 8)
NESTGRAD_EMULATOR_VECTOR2(uint2, unsigned, 8)
NESTGRAD_EMULATOR_VECTOR2(float2, float, 8)
NESTGRAD_EMULATOR_VECTOR2(double2, double, 16)
NESTGRAD_EMULATOR_VECTOR4(int4, int, 16)
NESTGRAD_EMULATOR_VECTOR4(uint4, unsigned, 16)
NESTGRAD_EMULATOR_VECTOR4(float4, float, 16)

#undef NESTGRAD_EMULATOR_VECTOR2
#undef NESTGRAD_EMULATOR_VECTOR4

struct uint3 {
  unsigned x, y, z;
};
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
