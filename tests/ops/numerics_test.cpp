// What kernels stand on: fma in software, pow's special
// values, packs beside single numbers, the choice of kernels.
#include <cmath>
#include <cstring>

#include "ops/kernels.h"
#include "ops/numerics/functions.h"
#include "ops/numerics/pack.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Numbers of every size, many of them special or close to each other.
template <class T>
T drawn(std::uint64_t i) {
  using Limits = std::numeric_limits<T>;
  const std::uint32_t kind = random_below(8, 11, 0, i), high = random_below(~0u, 11, 1, i),
                      low = random_below(~0u, 11, 2, i);
  const T few[] = {0, T(-0.0), 1, -1, Limits::infinity(), Limits::quiet_NaN(), Limits::max(), Limits::min()};
  const std::uint64_t bits = static_cast<std::uint64_t>(high) << 32 | low;
  T any;
  std::memcpy(&any, &bits, sizeof any);
  if (kind == 0) return few[low % 8];
  if (kind == 1) return any;
  if (kind == 2) return Limits::denorm_min() * static_cast<T>(static_cast<int>(low % 99) - 49);
  if (kind == 3) return static_cast<T>(static_cast<int>(low % 17) - 8);
  return std::ldexp(static_cast<T>(static_cast<int>(high)), static_cast<int>(low % 60) - 60);
}

template <class T>
void check_software_fma() {
  for (std::uint64_t i = 0; i < 300'000; ++i) {
    const T a = drawn<T>(3 * i), b = drawn<T>(3 * i + 1);
    // A third of the sums cancel almost, where a second rounding would be seen.
    const T c = i % 3 ? drawn<T>(3 * i + 2) : std::nextafter(-a * b, i % 2 ? T(0) : T(1));
    const T found = software_fma(a, b, c), expected = std::fma(a, b, c);
    if (!same(found, expected)) {
      INFO(fmt::format("fma({:a}, {:a}, {:a}) is {:a}, not {:a}", a, b, c, found, expected));
      CHECK(same(found, expected));
      return;
    }
  }
}

template <class T>
void check_pow() {
  const T inf = std::numeric_limits<T>::infinity();
  const T values[] = {0,
                      T(-0.0),
                      1,
                      -1,
                      2,
                      -2,
                      T(0.5),
                      T(-0.5),
                      3,
                      -3,
                      T(1e9),
                      inf,
                      -inf,
                      std::numeric_limits<T>::max(),
                      std::numeric_limits<T>::denorm_min()};
  for (const T a : values)
    for (const T b : values) {
      INFO(fmt::format("pow({}, {})", a, b));
      const T found = m::pow(a, b), expected = std::pow(a, b);
      if (std::isfinite(expected))
        CHECK(std::abs(found - expected) <= 2 * std::numeric_limits<T>::epsilon() * std::abs(expected));
      else CHECK(same(found, expected));
    }
  CHECK(std::isnan(m::pow(std::numeric_limits<T>::quiet_NaN(), T(0))));
  CHECK(std::isnan(m::pow(T(1), std::numeric_limits<T>::quiet_NaN())));
}

}  // namespace

TEST_CASE("fma in software is the processor's, of all sizes of numbers") {
  check_software_fma<float>();
  check_software_fma<double>();
}

TEST_CASE("pow has C's special values, but is NaN wherever an operand is") {
  check_pow<float>();
  check_pow<double>();
}

TEST_CASE("A pack computes in every lane what a single number gives") {
  const auto check = [](auto type) {
    using T = decltype(type);
    for (std::uint64_t i = 0; i < 2000; ++i) {
      T x[Pack<T>::size], y[Pack<T>::size];
      for (int k = 0; k < Pack<T>::size; ++k) x[k] = drawn<T>(i * 16 + static_cast<std::uint64_t>(k));
      const Pack<T> p = Pack<T>::load(x);
      (m::sin(p) + m::exp(p) * m::tanh(p) + m::log1p(m::abs(p)) + m::gelu(p) + m::pow(m::abs(p), p)).store(y);
      for (int k = 0; k < Pack<T>::size; ++k) {
        const T v = x[k], one = m::sin(v) + m::exp(v) * m::tanh(v) + m::log1p(m::abs(v)) + m::gelu(v) +
                                m::pow(m::abs(v), v);
        INFO(fmt::format("of {}", v));
        CHECK(same(y[k], one));
      }
    }
  };
  check(float{});
  check(double{});
}

TEST_CASE(
    "Another instruction set's kernels give the same bits; "
    "one that is not here is refused with those that are") {
  const std::string running = kernels().name;
  const Function f =
      trace([](Tensor x) { return sum(tanh(matmul(x, exp(x))) / sigmoid(x), {1}); }, f32({37, 37}));
  const Array x = random(f32({37, 37}), 1), expected = f(x);
  for (const std::string_view name : instruction_sets()) {
    set_instruction_set(name);
    const Function again =
        trace([](Tensor y) { return sum(tanh(matmul(y, exp(y))) / sigmoid(y), {1}); }, f32({37, 37}));
    INFO(name);
    CHECK(contains(instruction_set(), name));
    CHECK(again(x).same_bits(expected));
  }
  const std::string message = message_of<ConfigError>([] { set_instruction_set("mmx"); });
  for (const std::string_view name : instruction_sets()) CHECK(contains(message, name));
  set_instruction_set(running);
}
