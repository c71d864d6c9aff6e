#include "ttt/params.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/hash.h"
#include "engine/core/random.h"
#include "engine/run/function.h"
#include "ops/ops.h"

namespace nestgrad {

Tensor ParamTable::get(const std::string& name, const Shape& shape, Init init, Loc loc) {
  const auto known = index_.find(name);
  if (known == index_.end()) {
    index_.emplace(name, specs_.size());
    specs_.push_back({name, shape, init});
    const ContextGuard guard;
    context().emit.loc = loc;  // and not that of an open Scope
    tensors_.push_back(graph_->input(Spec{dtype_, shape}, name));
    return tensors_.back();
  }
  if (specs_[known->second].shape != shape)
    throw ConfigError(
        fmt::format("[params] '{}' is asked for as {} and as {} (at {}; the first is {}); give one "
                    "of them another name",
                    name, to_string(specs_[known->second].shape), to_string(shape), describe(loc),
                    describe(tensors_[known->second])));
  return tensors_[known->second];
}

namespace {

// In f64 and by the project's own functions, so that the bits do not depend on the C library.
Array drawn_between(const ParamSpec& spec, std::uint64_t seed) {
  const bool by_logarithm = spec.init.kind == Init::Kind::inverse_softplus_of_log_uniform;
  const Array u = random_uniform({DType::f64, spec.shape}, 0, 1, seed, fnv1a(spec.name));
  const double low = spec.init.value, high = spec.init.high;
  if (!(low > 0 && low <= high && std::isfinite(high)))
    throw ConfigError(fmt::format(
        "[params] '{}' is to be drawn between {} and {}; its logarithm wants two positive, finite numbers, "
        "the smaller first",
        spec.name, low, high));
  const auto draw = [&](Tensor x) {
    if (!by_logarithm) return log(low + (high - low) * x);
    const Tensor first = log(constant(low, DType::f64)), last = log(constant(high, DType::f64));
    const Tensor y = exp(first + (last - first) * x);
    return y + log(-expm1(-y));
  };
  return trace(draw, u.spec())(u);
}

}  // namespace

Array initial_value(const ParamSpec& spec, DType dtype, std::uint64_t seed, const Device& device) {
  if (spec.init.kind == Init::Kind::constant)
    return Array::full(dtype, spec.shape, spec.init.value).to(device);
  if (spec.init.kind != Init::Kind::normal) return drawn_between(spec, seed).cast(dtype).to(device);
  return random_normal({dtype, spec.shape}, 0, spec.init.value, seed, fnv1a(spec.name), device);
}

}  // namespace nestgrad
