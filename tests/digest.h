// A digest of numbers, for tests that ask for the same bits: under every instruction set, number of threads, compiler and processor.
//
//   Digest digest;
//   digest.add(f(inputs));
//   digest.str()   // "8c0f2d1b5a3e7f60"
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/array.h"
#include "engine/core/hash.h"

namespace nestgrad::testing {

// FNV-1a of the bytes. Every NaN counts as one: which one an operation makes is not defined by IEEE 754.
class Digest {
 public:
  void add(const Array& x) {
    for (std::int64_t extent : x.shape()) add_value(extent);
    dispatch(x.dtype(), [&]<class T>(T) {
      for (const T v : x.as<T>()) add_value(v == v ? v : std::numeric_limits<T>::quiet_NaN());
    });
  }
  void add(const std::vector<Array>& all) {
    for (const Array& x : all) add(x);
  }
  template <class T>
  void add_value(T v) {
    unsigned char bytes[sizeof v];
    std::memcpy(bytes, &v, sizeof v);
    hash_ = fnv1a(bytes, hash_);
  }
  std::string str() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = fnv1a(std::string_view());
};

}  // namespace nestgrad::testing
