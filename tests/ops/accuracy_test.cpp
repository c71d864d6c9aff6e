// How close the elementwise functions come to the true values, in units in the last place, and what they do
// far out. The reference is MPFR with 192 bits; where every float is tried, the C library in double.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <mpfr.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "engine/core/threads.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A number of 192 bits.
class Long {
 public:
  Long() { mpfr_init2(value_, 192); }
  explicit Long(double x) : Long() { mpfr_set_d(value_, x, MPFR_RNDN); }
  explicit Long(const char* decimals) : Long() { mpfr_set_str(value_, decimals, 10, MPFR_RNDN); }
  Long(const Long& x) : Long() { mpfr_set(value_, x.value_, MPFR_RNDN); }
  Long& operator=(const Long&) = delete;
  ~Long() { mpfr_clear(value_); }

  template <class Fn>
  static Long of(Fn fn, const Long& x) {
    Long y;
    fn(y.value_, x.value_, MPFR_RNDN);
    return y;
  }
  template <class Fn>
  static Long of(Fn fn, const Long& a, const Long& b) {
    Long y;
    fn(y.value_, a.value_, b.value_, MPFR_RNDN);
    return y;
  }
  friend Long operator+(const Long& a, const Long& b) { return of(mpfr_add, a, b); }
  friend Long operator-(const Long& a, const Long& b) { return of(mpfr_sub, a, b); }
  friend Long operator*(const Long& a, const Long& b) { return of(mpfr_mul, a, b); }
  friend Long operator/(const Long& a, const Long& b) { return of(mpfr_div, a, b); }
  double rounded() const { return mpfr_get_d(value_, MPFR_RNDN); }
  bool is_nan() const { return mpfr_nan_p(value_) != 0; }
  bool is_minus_infinity() const { return mpfr_inf_p(value_) != 0 && mpfr_sgn(value_) < 0; }
  bool is_above(double x) const { return mpfr_cmp_d(value_, x) > 0; }

 private:
  mpfr_t value_;
};

// x times what is between 0 and 1 and goes to 0 faster than 1/x: its limit is 0.
Long gated(const Long& x, Long (*gate)(const Long&)) {
  return x.is_minus_infinity() ? Long(0.0) : x * gate(x);
}
Long sigmoid_of(const Long& x) { return Long(1.0) / (Long(1.0) + Long::of(mpfr_exp, Long(0.0) - x)); }
Long normal_below(const Long& x) {  // Phi(x)
  return Long(0.5) * Long::of(mpfr_erfc, (Long(0.0) - x) / Long::of(mpfr_sqrt, Long(2.0)));
}
Long softplus_of(const Long& x) { return x.is_above(1e4) ? x : Long::of(mpfr_log1p, Long::of(mpfr_exp, x)); }
Long gelu_tanh_gate(const Long& x) {  // (1 + tanh u) / 2 = 1 / (1 + e^(-2u))
  static const Long factor = Long::of(mpfr_sqrt, Long(8.0) / Long::of(mpfr_acos, Long(-1.0))),
                    cubic("0.044715");
  return sigmoid_of(factor * (x + cubic * x * x * x));
}

struct Function1 {
  std::string_view op;
  Long (*truth)(const Long&);
  double (*in_double)(double);  // to many more digits than a float has
  double ulps32, ulps64;        // the largest error allowed
};

#define BY_LIBRARY(NAME) \
  [](const Long& x) { return Long::of(mpfr_##NAME, x); }, [](double x) { return std::NAME(x); }

const Function1 kFunctions[] = {
    {"exp", BY_LIBRARY(exp), 1, 1},
    {"expm1", BY_LIBRARY(expm1), 2, 2},
    {"log", BY_LIBRARY(log), 1, 1},
    {"log1p", BY_LIBRARY(log1p), 2, 2},
    {"tanh", BY_LIBRARY(tanh), 2, 2},
    {"sin", BY_LIBRARY(sin), 2, 2},
    {"cos", BY_LIBRARY(cos), 2, 2},
    {"erf", BY_LIBRARY(erf), 2, 2},
    {"sqrt", BY_LIBRARY(sqrt), 0.5, 0.5},
    {"rsqrt", [](const Long& x) { return Long(1.0) / Long::of(mpfr_sqrt, x); },
     [](double x) { return 1 / std::sqrt(x); }, 1.5, 1.5},
    {"reciprocal", [](const Long& x) { return Long(1.0) / x; }, [](double x) { return 1 / x; }, 0.5, 0.5},
    {"sigmoid", sigmoid_of, [](double x) { return 1 / (1 + std::exp(-x)); }, 2, 2},
    {"silu", [](const Long& x) { return gated(x, sigmoid_of); },
     [](double x) { return x == -kInf ? -0.0 : x / (1 + std::exp(-x)); }, 2, 2},
    {"softplus", softplus_of, [](double x) { return x > 700 ? x : std::log1p(std::exp(x)); }, 2, 2},
    {"gelu", [](const Long& x) { return gated(x, normal_below); },
     [](double x) { return x == -kInf ? -0.0 : x / 2 * std::erfc(-x / std::sqrt(2.0)); }, 2, 2},
    {"gelu_tanh", [](const Long& x) { return gated(x, gelu_tanh_gate); },
     [](double x) {
       return x == -kInf ? -0.0
                         : x / (1 + std::exp(-std::sqrt(8 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
     },
     2, 2},
};

// From a float or double to the next one of the size of x, which may be denormal.
template <class T>
double ulp_of(T x) {
  const T size = std::min(std::abs(x), std::numeric_limits<T>::max());
  return static_cast<double>(size) - static_cast<double>(std::nextafter(size, T(0))) == 0
             ? static_cast<double>(std::numeric_limits<T>::denorm_min())
             : static_cast<double>(std::nextafter(size, std::numeric_limits<T>::infinity()) <
                                           std::numeric_limits<T>::infinity()
                                       ? std::nextafter(size, std::numeric_limits<T>::infinity()) - size
                                       : size - std::nextafter(size, T(0)));
}

struct Worst {
  double ulps = 0, at = 0;
  void see(double error, double x) {
    if (!(error <= ulps)) ulps = error, at = x;  // NaN too
  }
};

constexpr double kWrong = 1e30;  // ulps of what is not even near: NaN for a number, a number for NaN

template <class T>
double error_in_ulps(const Function1& f, T x, T y) {
  const Long truth = f.truth(Long(static_cast<double>(x)));
  if (truth.is_nan() || std::isnan(y)) return truth.is_nan() == std::isnan(y) ? 0 : kWrong;
  const T nearest = static_cast<T>(truth.rounded());
  if (std::isinf(y) || std::isinf(nearest)) {
    // The number after the largest one is where infinity begins.
    if (y == nearest) return 0;
    const T finite = std::isinf(y) ? nearest : y;
    return std::abs(finite) == std::numeric_limits<T>::max() && std::signbit(y) == std::signbit(nearest)
               ? 1
               : kWrong;
  }
  return std::abs((Long(static_cast<double>(y)) - truth).rounded()) / ulp_of(nearest);
}

// Numbers of every exponent and sign, then many of the sizes that matter most, then those where things begin
// or end.
template <class T>
Array test_points(std::int64_t n) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  Array x(dtype_of<T>(), {4 * n});
  T* out = x.as<T>().data();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const Bits bits = static_cast<Bits>(static_cast<std::uint64_t>(random_below(~0u, 1, 0, index)) << 32 |
                                        random_below(~0u, 1, 1, index));
    std::memcpy(out + i, &bits, sizeof bits);
  }
  const double ranges[] = {2, 30, 800};
  for (int r = 0; r < 3; ++r) {
    const Array some =
        uniform({dtype_of<T>(), {n}}, 5 + static_cast<std::uint64_t>(r), -ranges[r], ranges[r]);
    std::copy_n(some.as<T>().data(), n, out + (r + 1) * n);
  }
  const T limits[] = {T(0),
                      T(-0.0),
                      std::numeric_limits<T>::infinity(),
                      -std::numeric_limits<T>::infinity(),
                      std::numeric_limits<T>::quiet_NaN(),
                      std::numeric_limits<T>::min(),
                      -std::numeric_limits<T>::min(),
                      std::numeric_limits<T>::denorm_min(),
                      -std::numeric_limits<T>::denorm_min(),
                      std::numeric_limits<T>::max(),
                      std::numeric_limits<T>::lowest(),
                      T(1),
                      T(-1)};
  std::copy(std::begin(limits), std::end(limits), out);
  return x;
}

template <class T>
Worst worst_of(const Function1& f, const Array& x) {
  const Array y = Case{*find_op(f.op), {}, DType::f64, ""}.run({x});
  Worst worst;
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.size()); ++i)
    worst.see(error_in_ulps(f, x.as<T>()[i], y.as<T>()[i]), static_cast<double>(x.as<T>()[i]));
  return worst;
}

// The error of y in units in the last place of a float the size of `truth`, which has more digits. (Of the
// exponent's bits, as this is done four thousand million times.)
double float_ulps(float y, double truth) {
  if (std::isnan(truth) || std::isnan(y)) return std::isnan(truth) == std::isnan(y) ? 0 : kWrong;
  if (std::isinf(y)) return std::abs(truth) >= 0x1.ffffffp127 && (truth > 0) == (y > 0) ? 0 : kWrong;
  std::int64_t bits;
  std::memcpy(&bits, &truth, sizeof bits);
  const std::int64_t exponent = std::max<std::int64_t>((bits >> 52 & 0x7ff) - 1023, -126);
  const std::int64_t scale_bits = (1023 + 23 - exponent) << 52;
  double scale;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  return std::abs(static_cast<double>(y) - truth) * scale;
}

// Of every `stride`-th float.
Worst worst_of_floats(const Function1& f, std::int64_t stride) {
  constexpr std::int64_t kBlock = 4096, kFloats = std::int64_t{1} << 32;
  constexpr int kParts = 64;
  const ElementLoop kernel = find_op(f.op)->element_loop(DType::f32, {0});
  std::vector<Worst> worst(kParts);
  in_parallel(kParts, thread_count(), [&](int part, int) {
    std::vector<float> x(kBlock), y(kBlock);
    const std::int64_t end = (part + 1) * (kFloats / kParts);
    for (std::int64_t first = part * (kFloats / kParts); first < end; first += kBlock * stride) {
      for (std::int64_t i = 0; i < kBlock; ++i) {
        const auto bits = static_cast<std::uint32_t>(std::min(first + i * stride, end - 1));
        std::memcpy(&x[static_cast<std::size_t>(i)], &bits, sizeof bits);
      }
      const std::byte* in[] = {reinterpret_cast<const std::byte*>(x.data())};
      kernel(in, reinterpret_cast<std::byte*>(y.data()), kBlock);
      for (std::size_t i = 0; i < x.size(); ++i)
        worst[static_cast<std::size_t>(part)].see(float_ulps(y[i], f.in_double(static_cast<double>(x[i]))),
                                                  static_cast<double>(x[i]));
    }
  });
  Worst out;
  for (const Worst& w : worst) out.see(w.ulps, w.at);
  return out;
}

struct Far {
  double value, slope;
};

// op(x) and its derivative.
Far at(std::string_view name, double x, DType dtype) {
  const Op& op = *find_op(name);
  const Function f = trace(
      [&](Tensor t) {
        const Tensor y = emit(op, {t});
        return std::vector<Tensor>{y, grad(y, t)};
      },
      Spec{dtype, {}});
  const std::vector<Array> out = f(std::vector<Array>{Array::scalar(x, dtype)});
  return {out[0].item(), out[1].item()};
}

}  // namespace

TEST_CASE("elementwise functions are true to two units in the last place, far out and of denormals too") {
  constexpr std::int64_t kPoints = 3000;
  const Array x32 = test_points<float>(kPoints), x64 = test_points<double>(kPoints);
  fmt::print("kernels for {}\n{:<12}{:>10}{:>18}{:>10}{:>26}\n", instruction_set(), "function", "f32 ulps",
             "at", "f64 ulps", "at");
  for (const Function1& f : kFunctions) {
    INFO(f.op);
    const Worst w32 = worst_of<float>(f, x32), w64 = worst_of<double>(f, x64);
    fmt::print("{:<12}{:>10.3f}{:>18.9g}{:>10.3f}{:>26.17g}\n", f.op, w32.ulps, w32.at, w64.ulps, w64.at);
    CHECK(w32.ulps <= f.ulps32);
    CHECK(w64.ulps <= f.ulps64);
  }
  // Negative control: the bounds are not beyond what a wrong digit does.
  const Function1 wrong{"exp", [](const Long& x) { return Long::of(mpfr_exp, x * Long(1 + 1e-6)); }, nullptr,
                        0, 0};
  CHECK(worst_of<float>(wrong, x32).ulps > 100);
}

TEST_SUITE("slow") {
  // All 2^32 floats of all functions are many minutes, and
  // asked for by NESTGRAD_EXHAUSTIVE=1; every 61st otherwise.
  TEST_CASE("elementwise functions of one float: floats of all sizes, or all of them") {
    const std::int64_t stride = std::getenv("NESTGRAD_EXHAUSTIVE") ? 1 : 61;
    for (const Function1& f : kFunctions) {
      INFO(f.op);
      const Worst worst = worst_of_floats(f, stride);
      fmt::print("{:<12}{:>10.3f}{:>18.9g}\n", f.op, worst.ulps, worst.at);
      std::fflush(stdout);
      CHECK(worst.ulps <= f.ulps32);
    }
  }
}

TEST_CASE("activations and their derivatives have the right limits, and are finite at 1e4") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(name(dtype));
    const auto check = [&](std::string_view op, double x, double value, double slope) {
      CAPTURE(op);
      CAPTURE(x);
      const Far f = at(op, x, dtype);
      constexpr double kTiny = 1e-40;
      CHECK((f.value == value || std::abs(f.value - value) < kTiny));
      CHECK((f.slope == slope || std::abs(f.slope - slope) < kTiny));
    };
    for (const double far : {100.0, 1e4, 1e9}) {
      check("sigmoid", far, 1, 0), check("sigmoid", -far, 0, 0);
      check("tanh", far, 1, 0), check("tanh", -far, -1, 0);
      check("relu", far, far, 1), check("relu", -far, 0, 0);
      check("abs", far, far, 1), check("abs", -far, far, -1);
      check("silu", far, far, 1), check("softplus", far, far, 1), check("gelu_tanh", far, far, 1);
      check("gelu_tanh", -far, 0, 0);
    }
    for (const double far : {1e4, 1e9}) {
      check("silu", -far, 0, 0), check("softplus", -far, 0, 0), check("exp", -far, 0, 0);
    }
    check("exp", -kInf, 0, 0);
    check("exp", kInf, kInf, kInf);
    check("sigmoid", kInf, 1, 0), check("sigmoid", -kInf, 0, 0);
    check("tanh", kInf, 1, 0), check("tanh", -kInf, -1, 0);
    check("softplus", kInf, kInf, 1), check("softplus", -kInf, 0, 0);
    check("relu", kInf, kInf, 1), check("relu", -kInf, 0, 0);
    check("log", kInf, kInf, 0), check("log", 0, -kInf, kInf);
    check("sqrt", kInf, kInf, 0), check("sqrt", 0, 0, kInf);
    CHECK(at("rsqrt", kInf, dtype).value == 0);
    CHECK(at("rsqrt", 0, dtype).value == kInf);
    CHECK(at("reciprocal", kInf, dtype).value == 0);
    CHECK(std::isnan(at("log", -1, dtype).value));
    CHECK(std::isnan(at("sqrt", -1, dtype).value));
    CHECK(std::isnan(at("rsqrt", -kInf, dtype).value));
  }
  // Denormals keep their root.
  CHECK(at("sqrt", 1e-40, DType::f32).value == doctest::Approx(1e-20).epsilon(1e-4));
}
