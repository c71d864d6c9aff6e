// Some of the elements of a register: what is left of a row.
#pragma once

#include "ops/numerics/pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

// The first `count` elements of a register, 0 < count < Pack<T>::size. What load() finds behind them is zero
// where kExact, else it must be readable.
template <class T>
struct SomeCopied {
  std::int64_t count;
  static constexpr bool kExact = false;
  NESTGRAD_MEMBER_FN explicit SomeCopied(std::int64_t n) : count(n) {}
  NESTGRAD_MEMBER_FN Pack<T> load(const T* p) const { return Pack<T>::load(p); }
  NESTGRAD_MEMBER_FN Pack<T> load_once(const T* p) const {
    Pack<T> x(0);
#pragma GCC unroll 4
    for (int k = 0; k < Pack<T>::size; ++k)
      if (k < count) x.raw[k] = p[k];
    return x;
  }
  NESTGRAD_MEMBER_FN void store(Pack<T> x, T* p) const {
    T wide[Pack<T>::size];
    x.store(wide);
    copy(wide, p);
  }

 private:
  // In copies of known sizes. (A loop would become a call of memcpy.)
  NESTGRAD_MEMBER_FN void copy(const T* from, T* to) const {
#pragma GCC unroll 4
    for (int part = Pack<T>::size / 2; part > 0; part /= 2)
      if (count & part) {
        __builtin_memcpy(to, from, part * sizeof(T));
        from += part, to += part;
      }
  }
};

#if defined(__AVX512F__)
template <class T>
struct Some {
  using Mask = __mmask16;
  Mask mask;
  static constexpr bool kExact = true;
  NESTGRAD_MEMBER_FN explicit Some(std::int64_t n) : mask(static_cast<Mask>((1u << n) - 1)) {}
  NESTGRAD_MEMBER_FN Pack<T> load(const T* p) const {
    if constexpr (sizeof(T) == 4) return Pack<T>(typename Pack<T>::Raw(_mm512_maskz_loadu_ps(mask, p)));
    else return Pack<T>(typename Pack<T>::Raw(_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p)));
  }
  NESTGRAD_MEMBER_FN Pack<T> load_once(const T* p) const { return load(p); }
  NESTGRAD_MEMBER_FN void store(Pack<T> x, T* p) const {
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(p, mask, x.raw);
    else _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), x.raw);
  }
};
#elif defined(__AVX2__)
// Stored in copies: AMD's processors take long for AVX2's stores with a mask.
template <class T>
struct Some : SomeCopied<T> {
  __m256i mask;
  static constexpr bool kExact = true;
  NESTGRAD_MEMBER_FN explicit Some(std::int64_t n) : SomeCopied<T>(n) {
    if constexpr (sizeof(T) == 4)
      mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    else mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  NESTGRAD_MEMBER_FN Pack<T> load(const T* p) const {
    if constexpr (sizeof(T) == 4) return Pack<T>(typename Pack<T>::Raw(_mm256_maskload_ps(p, mask)));
    else return Pack<T>(typename Pack<T>::Raw(_mm256_maskload_pd(p, mask)));
  }
  NESTGRAD_MEMBER_FN Pack<T> load_once(const T* p) const { return load(p); }
};
#else
template <class T>
using Some = SomeCopied<T>;
#endif

}  // namespace nestgrad::inline NESTGRAD_ISA
