#include "ttt/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
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

// How a tensor is stored: "F64", "BF16", ..
std::string type_of(const SafeTensors& file, const std::string& name) {
  const auto at = file.types.find(name);
  if (at != file.types.end()) return at->second;
  return file.tensors.at(name).dtype() == DType::f64 ? "F64" : "F32";
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
  const Shape& shape = ours.shape();
  const Shape strides = strides_of(shape);
  const bool named = names.size() == shape.size();
  std::size_t beyond = 0, worst = 0;
  Shape first = shape, last(shape.size(), -1);  // of the numbers beyond the tolerance, by axis
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / unit;
    if (error > v.error) v.error = error, worst = i;
    if (error <= v.tolerance) continue;
    ++beyond;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const std::int64_t place = static_cast<std::int64_t>(i) / strides[axis] % shape[axis];
      first[axis] = std::min(first[axis], place), last[axis] = std::max(last[axis], place);
    }
  }
  if (a.empty()) return;
  v.theirs = a[worst], v.expected = b[worst];
  v.worst = place_text(static_cast<std::int64_t>(worst), shape, axes);
  v.share = static_cast<double>(beyond) / static_cast<double>(a.size());
  if (beyond == 0 || !named) return;
  if (const int at = time_axis(names); at >= 0)
    v.range = first[uz(at)] == last[uz(at)]
                  ? fmt::format("{} {}", names[uz(at)], first[uz(at)])
                  : fmt::format("{}s {} to {}", names[uz(at)], first[uz(at)], last[uz(at)]);
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if ((names[axis] == "batch" || names[axis] == "head") && shape[axis] > 1 && first[axis] == last[axis])
      v.hints.push_back(fmt::format("all of it is in {} {}", names[axis], first[axis]));
}

// Are these the numbers that are expected, to this tolerance of their largest? `place`: where theirs has the
// element `flat` of ours. All zeros are nobody's numbers.
bool agree(const Array& ours, const Array& theirs, double tolerance,
           const std::function<std::int64_t(std::int64_t flat)>& place) {
  const double scale = largest(ours);
  for (std::int64_t i = 0; i < ours.size(); ++i)
    if (!(std::abs(theirs.at(place(i)) - ours.at(i)) <= tolerance * scale)) return false;
  return scale > 0;
}

bool agree(const Array& ours, const Array& theirs, double tolerance) {
  return agree(ours, theirs, tolerance, [](std::int64_t flat) { return flat; });
}

// What a tensor that is off looks like: another one of the reference, or its own with the last axes exchanged.
void add_hints(const SafeTensors& reference, const SafeTensors& kernel, double tolerance, TensorVerdict& v) {
  const Array &ours = reference.tensors.at(v.name), &theirs = kernel.tensors.at(v.name);
  for (const auto& [other, value] : reference.tensors) {
    if (other == v.name || value.shape() != theirs.shape() || !is_float(value.dtype()) ||
        !agree(value, theirs, tolerance) || (value.shape() == ours.shape() && agree(ours, value, tolerance)))
      continue;
    const auto back = kernel.tensors.find(other);
    const bool exchanged = back != kernel.tensors.end() && back->second.shape() == ours.shape() &&
                           agree(ours, back->second, tolerance);
    v.hints.push_back(exchanged ? fmt::format("'{}' and '{}' look exchanged", v.name, other)
                                : fmt::format("these are the numbers of the reference's '{}'", other));
  }
  if (ours.shape().size() < 2) return;
  Shape turned = ours.shape();
  const std::int64_t rows = turned[turned.size() - 2], columns = turned.back();
  std::swap(turned.back(), turned[turned.size() - 2]);
  const auto place = [&](std::int64_t flat) {
    const std::int64_t within = flat % (rows * columns);
    return flat - within + within % columns * rows + within / columns;
  };
  if (rows > 1 && columns > 1 && theirs.shape() == turned && agree(ours, theirs, tolerance, place)) {
    const std::vector<std::string> names = words(metadata(reference, "axes." + v.name));
    v.hints.push_back(fmt::format(
        "it agrees with its last two axes exchanged{}",
        names.size() == turned.size()
            ? fmt::format("; they are [{} {}] in the reference", names[names.size() - 2], names.back())
            : ""));
  }
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
  const std::string stored = type_of(kernel, name);
  v.tolerance =
      options.tolerance.value_or(std::max(tolerance_of(stored), tolerance_of(type_of(reference, name))));
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
  for (const TensorVerdict& v : tensors) {
    out += fmt::format("{} {:<24} {}\n",
                       !v.passed                ? "FAIL"
                       : v.kind == Kind::agrees ? "ok  "
                                                : "-   ",
                       v.name, v.text);
    for (const std::string& hint : v.hints) out += fmt::format("     {:<24} hint: {}\n", "", hint);
  }
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
    if (TensorVerdict& v = out.tensors.back(); v.kind == Kind::differs || v.kind == Kind::misshapen)
      add_hints(reference, kernel, v.tolerance, v);
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
