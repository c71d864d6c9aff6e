#include "ttt/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/core/index.h"
#include "engine/core/nearest_name.h"

namespace nestgrad::ttt {

namespace {

using Kind = TensorVerdict::Kind;

constexpr double kRounding = 1e-6;  // of the largest number of a kind: smaller ones are not told from zero

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::string metadata(const SafeTensors& file, const std::string& key) {
  const auto at = file.metadata.find(key);
  return at == file.metadata.end() ? "" : at->second;
}

double tolerance_of(const std::string& type) { return type == "F64" ? 1e-9 : type == "F32" ? 2e-4 : 2e-2; }

double largest(const Array& a) {
  double out = 0;
  for (double x : a.to_vector())
    if (std::isfinite(x)) out = std::max(out, std::abs(x));
  return out;
}

std::string shown(double x) { return std::isnan(x) ? "nan" : fmt::format("{}", x); }

// What a denominator is at least.
double floor_for(const SafeTensors& reference, const std::string& name) {
  const std::string kind = name.substr(0, name.find('.') + 1);
  double out = 0;
  for (const auto& [other, value] : reference.tensors)
    if (!kind.empty() && other.starts_with(kind)) out = std::max(out, kRounding * largest(value));
  return out;
}

// The axis along which errors travel: tokens, or chunks of them. -1: none.
int time_axis(const std::vector<std::string>& axes) {
  for (const char* name : {"token", "part", "chunk", "place"})
    if (const auto at = std::ranges::find(axes, name); at != axes.end())
      return static_cast<int>(at - axes.begin());
  return -1;
}

void compare(const Array& ours, const Array& theirs, const std::string& axes, double floor,
             TensorVerdict& v) {
  const std::vector<double> a = theirs.to_vector(), b = ours.to_vector();
  const double scale = std::max(floor, largest(ours));
  const double unit = scale > 0 ? scale : 1;
  const std::vector<std::string> names = words(axes);
  const int axis = names.size() == ours.shape().size() ? time_axis(names) : -1;
  std::int64_t inner = 1, extent = 1;
  if (axis >= 0) {
    const Shape strides = strides_of(ours.shape());
    inner = strides[uz(axis)], extent = ours.shape()[uz(axis)];
  }
  std::size_t beyond = 0, worst = 0;
  std::int64_t first = extent, last = -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / unit;
    if (error > v.error) v.error = error, worst = i;
    if (error <= v.tolerance) continue;
    ++beyond;
    const std::int64_t place = static_cast<std::int64_t>(i) / inner % extent;
    first = std::min(first, place), last = std::max(last, place);
  }
  if (a.empty()) return;
  v.theirs = a[worst], v.expected = b[worst];
  v.worst = place_text(static_cast<std::int64_t>(worst), ours.shape(), axes);
  v.share = static_cast<double>(beyond) / static_cast<double>(a.size());
  if (beyond > 0 && axis >= 0)
    v.range = first == last ? fmt::format("{} {}", names[uz(axis)], first)
                            : fmt::format("{}s {} to {}", names[uz(axis)], first, last);
}

TensorVerdict verdict(const SafeTensors& reference, const SafeTensors& kernel, const std::string& name,
                      const VerifyOptions& options) {
  const Array &ours = reference.tensors.at(name), &theirs = kernel.tensors.at(name);
  const std::string axes = metadata(reference, "axes." + name);
  TensorVerdict v{.name = name};
  const auto fail = [&](Kind kind, std::string text) {
    v.kind = kind, v.passed = false, v.text = std::move(text);
    return v;
  };
  const auto type = kernel.types.find(name);
  const std::string stored =
      type == kernel.types.end() ? (theirs.dtype() == DType::f64 ? "F64" : "F32") : type->second;
  if (!is_float(theirs.dtype()))
    return fail(Kind::wrong_type, fmt::format("is of type {}; expected floating-point numbers", stored));
  if (theirs.shape() != ours.shape())
    return fail(Kind::misshapen,
                fmt::format("is {}; expected {}{}", to_string(theirs.shape()), to_string(ours.shape()),
                            axes.empty() ? "" : ", the axes " + axes));
  if (const std::int64_t at = first_not_finite(ours); at >= 0)
    return fail(Kind::not_finite, fmt::format("cannot be compared: the reference is {} at {}",
                                              shown(ours.at(at)), place_text(at, ours.shape(), axes)));
  if (const std::int64_t at = first_not_finite(theirs); at >= 0)
    return fail(Kind::not_finite,
                fmt::format("is {} at {}", shown(theirs.at(at)), place_text(at, theirs.shape(), axes)));
  v.tolerance = options.tolerance.value_or(tolerance_of(stored));
  compare(ours, theirs, axes, floor_for(reference, name), v);
  const std::string where =
      v.worst.empty() ? "" : fmt::format(" at {}: {:.9g}, expected {:.9g}", v.worst, v.theirs, v.expected);
  if (v.error <= v.tolerance) {
    v.text = fmt::format("error {:.3g}, tolerance {:.3g}", v.error, v.tolerance);
    return v;
  }
  return fail(Kind::differs,
              fmt::format("error {:.3g}, tolerance {:.3g}, {:.3g} % of the numbers{}; worst{}", v.error,
                          v.tolerance, 100 * v.share, v.range.empty() ? "" : ", " + v.range, where));
}

}  // namespace

std::string place_text(std::int64_t flat, const Shape& shape, const std::string& axes) {
  const Shape strides = strides_of(shape);
  Shape place;
  for (std::size_t i = 0; i < shape.size(); ++i) place.push_back(flat / strides[i] % shape[i]);
  const std::vector<std::string> names = words(axes);
  if (names.size() != shape.size()) return to_string(place);
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format("{}{} {}", i ? ", " : "", names[i], place[i]);
  return out;
}

bool Verification::passed() const {
  return compared > 0 && std::ranges::all_of(tensors, &TensorVerdict::passed);
}

std::string Verification::str() const {
  std::string out;
  for (const TensorVerdict& v : tensors)
    out += fmt::format("{} {:<24} {}\n",
                       !v.passed                ? "FAIL"
                       : v.kind == Kind::agrees ? "ok  "
                                                : "-   ",
                       v.name, v.text);
  const auto failed = std::ranges::count(tensors, false, &TensorVerdict::passed);
  return out + fmt::format("{} outputs compared; of all tensors {} failed{}\n", compared, failed,
                           compared == 0 ? ": the kernel's file has no output of the reference" : "");
}

Verification verify(const SafeTensors& reference, const SafeTensors& kernel, const VerifyOptions& options) {
  if (options.tolerance && !(*options.tolerance >= 0 && std::isfinite(*options.tolerance)))
    throw ConfigError(
        fmt::format("[verify] the tolerance must be 0 or positive, it is {}", shown(*options.tolerance)));
  Verification out;
  const std::vector<std::string> inputs = words(metadata(reference, "inputs"));
  const auto is_input = [&](const std::string& name) {
    return std::ranges::find(inputs, name) != inputs.end();
  };
  std::vector<std::string> missing;
  for (const auto& [name, value] : reference.tensors) {
    if (!kernel.tensors.contains(name)) {
      if (!is_input(name)) missing.push_back(name);
      continue;
    }
    out.tensors.push_back(verdict(reference, kernel, name, options));
    if (!is_input(name)) out.compared += value.size() > 0 ? 1 : 0;
    else if (!out.tensors.back().passed) out.tensors.back().text += "; the kernel was given other inputs";
  }
  for (const auto& [name, value] : kernel.tensors)
    if (!reference.tensors.contains(name))
      out.tensors.push_back({.name = name,
                             .kind = Kind::left_over,
                             .passed = false,
                             .text = "is no tensor of the reference" + did_you_mean(name, missing) +
                                     "; rename it or leave it out"});
  for (const std::string& name : missing)
    out.tensors.push_back(
        {.name = name, .kind = Kind::missing, .passed = !options.all, .text = "is not in the kernel's file"});
  return out;
}

}  // namespace nestgrad::ttt
