// Rows of elements, a register at a time: what compiled clusters are made of (engine/plan/cluster_source.h).
// The order of sums and maxima is that of ops/kernels/reduce.cpp, so that the bits are the same.
//
//   RowSum<float, 64> total;
//   each<float, 64>([&](auto at) { total.add(at, at.load(x) * at.load(y)); });
//   const Pack<float> sum = total.result();  // in every lane
#pragma once

#include "ops/numerics/lane_sum.h"

namespace nestgrad::inline NESTGRAD_ISA {

// Whole registers from element i on. J: which of those of kLanes elements.
template <class T, int J>
struct WholeAt {
  static constexpr int j = J;
  std::int64_t i;
  NESTGRAD_MEMBER_FN Pack<T> load(const T* p) const { return Pack<T>::load(p + i); }
  NESTGRAD_MEMBER_FN void store(Pack<T> x, T* p) const { x.store(p + i); }
};

// The n < Pack::size last elements of a row. Lanes behind them repeat the last one.
template <class T>
struct RestAt {
  std::int64_t i;
  int n;
  NESTGRAD_MEMBER_FN Pack<T> load(const T* p) const {
    T lanes[Pack<T>::size];
    for (int k = 0; k < Pack<T>::size; ++k) lanes[k] = p[i + (k < n ? k : n - 1)];
    return Pack<T>::load(lanes);
  }
  NESTGRAD_MEMBER_FN void store(Pack<T> x, T* p) const {
    T lanes[Pack<T>::size];
    x.store(lanes);
    for (int k = 0; k < n; ++k) p[i + k] = lanes[k];
  }
};

// fn(at) for the elements 0..Length, at being a WholeAt or a RestAt.
template <class T, std::int64_t Length, class Fn>
NESTGRAD_MEMBER_FN void each(Fn fn) {
  constexpr int w = Pack<T>::size, packs = kLanes<T> / w;
  constexpr std::int64_t whole = Length / kLanes<T> * kLanes<T>;
  for (std::int64_t i = 0; i < whole; i += kLanes<T>) {
    fn(WholeAt<T, 0>{i});
    if constexpr (packs > 1) fn(WholeAt<T, 1>{i + w});
    if constexpr (packs > 2) fn(WholeAt<T, 2>{i + 2 * w}), fn(WholeAt<T, 3>{i + 3 * w});
  }
  static_assert(packs == 1 || packs == 2 || packs == 4);
  for (std::int64_t i = whole; i < Length; i += w)
    fn(RestAt<T>{i, static_cast<int>(Length - i < w ? Length - i : w)});
}

// The same for the elements begin..end of a long row, without sums.
template <class T, class Fn>
NESTGRAD_MEMBER_FN void each_between(std::int64_t begin, std::int64_t end, Fn fn) {
  constexpr int w = Pack<T>::size;
  std::int64_t i = begin;
  for (; i + w <= end; i += w) fn(WholeAt<T, 0>{i});
  if (i < end) fn(RestAt<T>{i, static_cast<int>(end - i)});
}

// A row's sum.
template <class T, std::int64_t Length>
class RowSum;

template <std::int64_t Length>
class RowSum<float, Length> {
 public:
  template <int J>
  NESTGRAD_MEMBER_FN void add(WholeAt<float, J>, Pack<float> x) {
    sum_.add(J, x);
    if constexpr (J + 1 == LaneSum::kPacks && Length > kAddedInF32 * kLanes<float>) sum_.end_of_lanes();
  }
  NESTGRAD_MEMBER_FN void add(RestAt<float> at, Pack<float> x) {
    Register<float>::RawInt lane;
    for (int k = 0; k < Pack<float>::size; ++k) lane[k] = k;
    x = where(Pack<float>::Mask{lane < at.n - Register<float>::RawInt{}}, x, Pack<float>(0));
    sum_.add(static_cast<int>(at.i % kLanes<float>) / Pack<float>::size, x);
  }
  NESTGRAD_MEMBER_FN Pack<float> result() {
    const float sum = static_cast<float>(sum_.result());
    return Pack<float>::load_repeated(&sum);
  }

 private:
  LaneSum sum_;
};

// Element i in part i mod 8, what is left of eights in the first part.
template <std::int64_t Length>
class RowSum<double, Length> {
 public:
  template <int J>
  NESTGRAD_MEMBER_FN void add(WholeAt<double, J>, Pack<double> x) {
    part_[J] += x.raw;
  }
  NESTGRAD_MEMBER_FN void add(RestAt<double> at, Pack<double> x) {
    double part[8], lanes[Pack<double>::size];
    __builtin_memcpy(part, part_, sizeof part);
    x.store(lanes);
    for (int k = 0; k < at.n; ++k) part[0] += lanes[k];
    __builtin_memcpy(part_, part, sizeof part);
  }
  NESTGRAD_MEMBER_FN Pack<double> result() const {
    const double sum = sum_of_parts(part_);
    return Pack<double>::load_repeated(&sum);
  }

 private:
  typename Register<double>::Raw part_[64 / kRegisterBytes] = {};
};

// Of numbers or packs of them: the larger, the first where they are equal; NaN where there is one.
template <class X>
NESTGRAD_MEMBER_FN X larger(X a, X b) {
  return where(b == b, where(b > a, b, a), b);
}

// A row's largest element; NaN where there is one.
template <class T>
class RowMax {
 public:
  NESTGRAD_MEMBER_FN RowMax() {
    for (Pack<T>& m : most_) m = Pack<T>(-__builtin_huge_val());
  }
  template <int J>
  NESTGRAD_MEMBER_FN void add(WholeAt<T, J>, Pack<T> x) {
    most_[J] = larger(most_[J], x);
  }
  NESTGRAD_MEMBER_FN void add(RestAt<T> at, Pack<T> x) {
    T lanes[Pack<T>::size];
    x.store(lanes);
    if (!joined_) join();
    for (int k = 0; k < at.n; ++k) best_ = larger(best_, lanes[k]);
  }
  NESTGRAD_MEMBER_FN Pack<T> result() {
    if (!joined_) join();
    return Pack<T>::load_repeated(&best_);
  }

 private:
  NESTGRAD_MEMBER_FN void join() {
    T lanes[kLanes<T>];
    for (int j = 0; j < kLanes<T> / Pack<T>::size; ++j) most_[j].store(lanes + j * Pack<T>::size);
    best_ = lanes[0];
    for (const T lane : lanes) best_ = larger(best_, lane);
    joined_ = true;
  }
  Pack<T> most_[kLanes<T> / Pack<T>::size];
  T best_;
  bool joined_ = false;
};

}  // namespace nestgrad::inline NESTGRAD_ISA
