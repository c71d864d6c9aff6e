// The table of one instruction set.
#include "ops/kernels/table.h"

#define NESTGRAD_TEXT_OF(x) #x
#define NESTGRAD_TEXT(x) NESTGRAD_TEXT_OF(x)

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

#if defined(__AVX512F__)
constexpr const char* kDescription = "AVX-512";
#elif defined(__AVX2__)
constexpr const char* kDescription = "AVX2";
#elif defined(__aarch64__)
constexpr const char* kDescription = "NEON";
#elif defined(__SSE2__)
constexpr const char* kDescription = "SSE2, without fused multiply-add";
#else
constexpr const char* kDescription = "no vector instructions";
#endif

}  // namespace

constinit const KernelTable table{.name = NESTGRAD_TEXT(NESTGRAD_ISA),
                                  .description = kDescription,
                                  .elementwise = &elementwise,
                                  .reduce_f32 = &reduce_f32,
                                  .reduce_f64 = &reduce_f64,
                                  .reduce_i32 = &reduce_i32,
                                  .solve_f32 = &solve_f32,
                                  .solve_f64 = &solve_f64,
                                  .gemm_f32 = &gemm_f32,
                                  .gemm_f64 = &gemm_f64,
                                  .attention_f32 = &attention_f32,
                                  .attention_f64 = &attention_f64};

}  // namespace nestgrad::inline NESTGRAD_ISA
