// Small helpers that tests share.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "engine/core/random.h"
#include "nestgrad.h"

// CAPTURE of a structured binding, or of a number made of one. What doctest captures with is a lambda, for which such a name is none
// in clang before version 16.
#define CAPTURE_BOUND(value) CAPTURE_THROUGH(value, DOCTEST_ANONYMOUS(bound_))
#define CAPTURE_THROUGH(value, name) \
  const auto& name = value;          \
  INFO(#value " := ", name)

namespace nestgrad::testing {

using Arrays = std::vector<Array>;

inline Spec f64(Shape shape = {}) { return {DType::f64, std::move(shape)}; }
inline Spec f32(Shape shape = {}) { return {DType::f32, std::move(shape)}; }
// Under sanitizers, which take ten to twenty times as long: a test that takes minutes there makes less of the same.
#ifdef NESTGRAD_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline Spec i32(Shape shape = {}) { return {DType::i32, std::move(shape)}; }

// Uniform in [-1, 1), a function of the seed.
inline Array random(const Spec& spec, std::uint64_t seed, double low = -1, double high = 1) {
  return random_uniform(spec, low, high, seed, 0);
}
inline Arrays random(const std::vector<Spec>& specs, std::uint64_t seed, double low = -1, double high = 1) {
  Arrays out;
  for (const Spec& spec : specs) out.push_back(random(spec, seed + out.size(), low, high));
  return out;
}

// max|a-b| / max(1, max|b|), the worst of all pairs.
inline double max_error(const Arrays& a, const Arrays& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, relative_error(a[i], b[i], 1));
  return worst;
}

inline bool same_bits(const Arrays& a, const Arrays& b) {
  return std::ranges::equal(a, b, [](const Array& x, const Array& y) { return x.same_bits(y); });
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// What fn complains about; fails unless it throws exactly E.
template <class E, class Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    CHECK_MESSAGE(typeid(e) == typeid(E), "another kind of error: ", e.what());
    return e.what();
  }
  FAIL_CHECK("nothing was thrown");
  return {};
}

// How many live nodes of f are this op, scan bodies included.
inline std::size_t count_op(const Function& f, std::string_view op) {
  const std::string text = f.str();
  return count(text, " = " + std::string(op) + " ") + count(text, " = " + std::string(op) + "[");
}

}  // namespace nestgrad::testing
