#include "ttt/params.h"

#include <fmt/format.h>

#include "engine/core/hash.h"
#include "engine/core/random.h"

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

Array initial_value(const ParamSpec& spec, DType dtype, std::uint64_t seed, const Device& device) {
  if (spec.init.kind == Init::Kind::constant)
    return Array::full(dtype, spec.shape, spec.init.value).to(device);
  return random_normal({dtype, spec.shape}, 0, spec.init.value, seed, fnv1a(spec.name), device);
}

}  // namespace nestgrad
