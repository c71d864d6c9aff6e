#include "ttt/reference.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/hash.h"
#include "engine/core/nearest_name.h"
#include "engine/core/random.h"
#include "ttt/policy_text.h"
#include "ttt/reference_program.h"
#include "ttt/verification.h"

namespace nestgrad::ttt {

namespace {

constexpr double kPositionSpread =
    0.02;  // of drawn learnable_token_idx: most of max(1/(i+1) + it, 0) positive
constexpr double kParameterSpread = 0.1;  // added to parameters that start as constants

// "W = 0; W.momentum = 0"
std::string start_text(const ReferenceProgram& p) {
  std::vector<std::string> out;
  for (const ReferenceTensor& t : p.state) out.push_back(t.name + " = " + t.text);
  return fmt::format("{}", fmt::join(out, "; "));
}

// with_optional: of a reference that may be given more than this one is.
ReferenceDescription description_of(const ReferenceProgram& p, const System& system,
                                    const ReferenceOptions& options, bool with_optional) {
  ReferenceDescription out;
  for (std::size_t i = 0; i < p.inputs.size(); ++i)
    if (p.read[i]) out.inputs.push_back(p.inputs[i]);
  if (with_optional) std::ranges::copy(p.not_given(), std::back_inserter(out.inputs));
  out.outputs = p.outputs;
  const Explanation& e = p.explanation;
  out.metadata = {{"system", system.name},
                  {"title", system.title},
                  {"source", system.source},
                  {"model", e.model},
                  {"inner_loss", e.loss},
                  {"optimiser", e.optimizer},
                  {"constants", p.formulas.constants},
                  {"gradient", p.formulas.gradient},
                  {"update", p.formulas.update},
                  {"start", start_text(p)},
                  {"policy", e.policy.str()},
                  {"settings", settings_of(e.policy)},
                  {"form", std::string(name(e.plan.form))},
                  {"dtype", std::string(name(options.dtype))},
                  {"gates", options.raw ? "raw" : "effective"},
                  {"seed", fmt::format("{}", options.seed)},
                  {"state_every", fmt::format("{}", p.state_every)}};
  if (options.raw && system.position_rates) out.metadata["base_lr"] = fmt::format("{}", options.base_lr);
  if (options.raw && system.rotary) out.metadata["rope_theta"] = fmt::format("{}", options.rope_theta);
  const auto list = [&](const std::string& key, const std::vector<ReferenceTensor>& tensors) {
    std::vector<std::string> names;
    for (const ReferenceTensor& t : tensors) {
      names.push_back(t.name);
      out.metadata["axes." + t.name] = t.axes;
    }
    out.metadata[key] = fmt::format("{}", fmt::join(names, " "));
  };
  list("inputs", out.inputs);
  list("outputs", out.outputs);
  return out;
}

Array drawn(const std::string& name, const Shape& shape, double spread, std::uint64_t seed) {
  return random_normal({DType::f64, shape}, 0, spread, seed, fnv1a(name));
}

// What the projections would leave, or what the layer makes of it.
NamedArrays drawn_views(const System& system, const Policy& policy, const ReferenceSizes& sizes,
                        const ReferenceOptions& options) {
  const std::vector<ReferenceTensor> raw = raw_inputs(system, policy, sizes, DType::f64);
  std::vector<Array> values;
  std::vector<Spec> specs;
  NamedArrays out;
  for (const ReferenceTensor& t : raw) {
    values.push_back(
        drawn("raw." + t.name, t.spec.shape, t.name == "position" ? kPositionSpread : 1, options.seed));
    specs.push_back(t.spec);
    out[t.name] = values.back();
  }
  if (options.raw) return out;
  out.clear();
  std::vector<std::string> names;
  const Function shaped = trace(
      [&](const std::vector<Tensor>& in) {
        NamedTensors named;
        for (std::size_t i = 0; i < in.size(); ++i) named[raw[i].name] = in[i];
        std::vector<Tensor> views;
        for (const auto& [name, value] : named_views(views_from_raw(system, policy, named, options))) {
          names.push_back(name);
          views.push_back(value);
        }
        return views;
      },
      specs);
  const std::vector<Array> views = shaped(values);
  for (std::size_t i = 0; i < views.size(); ++i) out[names[i]] = views[i];
  return out;
}

const Array& find(const NamedArrays& inputs, const std::string& name, const std::string& expected) {
  const auto at = inputs.find(name);
  if (at != inputs.end()) return at->second;
  std::vector<std::string> names;
  for (const auto& [given, value] : inputs) names.push_back(given);
  const std::string best = nearest_name(name, names);
  throw ConfigError(fmt::format("[reference] there is no '{}', expected {}{}", name, expected,
                                best.empty() ? "" : fmt::format("; is '{}' meant to be it?", best)));
}

std::string expected_text(const ReferenceTensor& t) {
  return fmt::format("{} with the axes [{}]", to_string(t.spec), t.axes);
}

// The input as it is computed with. Less precision is taken exactly; more would be rounded.
Array taken(const Array& given, const ReferenceTensor& t) {
  if (!is_float(given.dtype()) || size_of(given.dtype()) > size_of(t.spec.dtype))
    throw DTypeError(fmt::format("[reference] '{}' is {}; expected {}: convert it, or compute in {}", t.name,
                                 to_string(given.spec()), name(t.spec.dtype),
                                 is_float(given.dtype()) ? name(given.dtype()) : "f64"));
  if (given.shape() != t.spec.shape)
    throw ShapeError(fmt::format("[reference] '{}' is {}; expected {}", t.name, to_string(given.spec()),
                                 expected_text(t)));
  if (const std::int64_t at = first_not_finite(given); at >= 0)
    throw ValueError(fmt::format("[reference] '{}' is {} at {}; expected finite numbers", t.name,
                                 given.at(at), place_text(at, given.shape(), t.axes)));
  return given.cast(t.spec.dtype);
}

void refuse_unknown(const System& system, const NamedArrays& inputs, const ReferenceProgram& p) {
  std::vector<std::string> names;
  for (const ReferenceTensor& t : p.inputs) names.push_back(t.name);
  for (const ReferenceTensor& t : p.not_given()) names.push_back(t.name);
  for (const auto& [name, value] : inputs)
    if (std::ranges::find(names, name) == names.end())
      throw ConfigError(fmt::format("[reference] '{}' is no input of {}{}; there are {}", name, system.name,
                                    did_you_mean(name, names), fmt::join(names, ", ")));
}

// Features of a view as the layer makes it.
std::int64_t width_of(const char* view, const System& system, const ReferenceSizes& sizes,
                      const ReferenceOptions& options) {
  const std::vector<ReferenceTensor> views =
      effective_inputs(system, reference_policy(system, sizes, options), sizes, options);
  return std::ranges::find(views, view, &ReferenceTensor::name)->spec.shape[3];
}

// Features of a head, where `sizes` has those of k, which System::prepare may have widened: so many that it makes k as wide.
// Where several do, those of q are tried first; where none do, those of k are told what is wrong.
std::int64_t head_dim_of(const System& system, const NamedArrays& inputs, ReferenceSizes sizes,
                         const ReferenceOptions& options) {
  const std::int64_t width = sizes.dim;
  if (options.raw || !system.prepare) return width;
  const auto makes_it = [&](std::int64_t dim) {
    sizes.dim = dim;
    try {
      return width_of("k", system, sizes, options) == width;
    } catch (const Error&) {
      return false;  // it takes no heads of so many features
    }
  };
  if (makes_it(width)) return width;
  if (const auto q = inputs.find("q"); q != inputs.end() && q->second.spec().rank() == 4)
    if (const std::int64_t dim = q->second.shape()[3]; dim > 0 && makes_it(dim)) return dim;
  for (std::int64_t dim = 1; dim <= width; ++dim)
    if (makes_it(dim)) return dim;
  return width;
}

// Sizes as k has them; q may ask more or fewer tokens of a policy with one step for the whole sequence, and
// values may be narrower or wider than keys where the start state is given.
ReferenceShape shape_of(const System& system, const NamedArrays& inputs, const ReferenceOptions& options) {
  ReferenceShape out(reference_sizes(system, inputs, options));
  const Policy policy = reference_policy(system, out, options);
  const auto q = inputs.find("q"), v = inputs.find("v");
  if (q != inputs.end() && q->second.spec().rank() == 4 && policy.update == Policy::Update::per_chunk &&
      policy.chunk_of(out.time) >= out.time)
    out.queries = q->second.shape()[2];
  const bool starts =
      std::ranges::any_of(inputs, [](const auto& t) { return t.first.starts_with(kStartPrefix); });
  if (v != inputs.end() && v->second.spec().rank() == 4 && starts &&
      (options.raw || width_of("v", system, out, options) == out.dim))
    out.value_dim = v->second.shape()[3];
  return out;
}

// Values that are wider than keys meet start states in the learner alone: what does not fit there is told with their names.
ReferenceProgram traced_for(const NamedArrays& inputs, const System& system, const ReferenceShape& shape,
                            const ReferenceOptions& options, const std::map<std::string, Shape>& given) {
  try {
    return trace_reference(system, shape, options, given);
  } catch (const ShapeError& e) {
    if (shape.value_dim == shape.dim) throw;
    std::string starts;
    for (const auto& [name, of] : given)
      if (name.starts_with(kStartPrefix))
        starts +=
            fmt::format("{}'{}' {}", starts.empty() ? "" : ", ", name, to_string(inputs.at(name).spec()));
    throw ShapeError(fmt::format("[reference] 'v' is {}, which does not fit the start states {}: {}",
                                 to_string(inputs.at("v").spec()), starts, e.what()));
  }
}

}  // namespace

ReferenceSizes reference_sizes(const System& system, const NamedArrays& inputs,
                               const ReferenceOptions& options) {
  const Array& k = find(inputs, "k", "[batch, heads, time, dim]");
  if (k.spec().rank() != 4 || k.size() == 0)
    throw ShapeError(
        fmt::format("[reference] 'k' is {}; expected [batch, heads, time, dim]", to_string(k.spec())));
  ReferenceSizes out{k.shape()[0], k.shape()[1], k.shape()[2], k.shape()[3]};
  out.dim = head_dim_of(system, inputs, out, options);
  return out;
}

ReferenceDescription describe_reference(const System& system, const ReferenceSizes& sizes,
                                        const ReferenceOptions& options) {
  return description_of(trace_reference(system, sizes, options, {}), system, options, true);
}

NamedArrays random_inputs(const System& system, const ReferenceSizes& sizes,
                          const ReferenceOptions& options) {
  NamedArrays out = drawn_views(system, reference_policy(system, sizes, options), sizes, options);
  const ReferenceProgram p = trace_reference(system, sizes, options, {});
  for (const ParamSpec& spec : p.params) {
    out[spec.name] = initial_value(spec, DType::f64, options.seed);
    if (spec.init.kind == Init::Kind::constant) {
      const Array noise = drawn(spec.name, spec.shape, kParameterSpread, options.seed);
      auto values = out[spec.name].as<double>();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += noise.as<double>()[i];
    }
  }
  for (std::size_t i = 0; i < p.state.size(); ++i) {
    const ReferenceTensor& t = p.state[i];
    const auto draw = [&](std::string_view prefix, double spread) {
      const std::string name = std::string(prefix) + t.name;
      out[name] = drawn(name, t.spec.shape, spread, options.seed);
    };
    if (options.random_start && !p.is_slot[i]) draw(kStartPrefix, kParameterSpread);
    if (options.random_final_cotangent) draw(kFinalCotangentPrefix, 1);
  }
  const auto cotangent = std::ranges::find(p.inputs, "cotangent.output", &ReferenceTensor::name);
  out["cotangent.output"] = drawn("cotangent.output", cotangent->spec.shape, 1, options.seed);
  for (auto& [name, value] : out) value = value.cast(options.dtype);
  return out;
}

ReferenceResult reference(const System& system, const NamedArrays& inputs, const ReferenceOptions& options) {
  const ReferenceShape shape = shape_of(system, inputs, options);
  std::map<std::string, Shape> given;
  for (const auto& [name, value] : inputs)
    if (name.starts_with(kStartPrefix) || name.starts_with(kFinalCotangentPrefix))
      given[name] = value.shape();
  const ReferenceProgram p = traced_for(inputs, system, shape, options, given);
  refuse_unknown(system, inputs, p);

  ReferenceResult out;
  std::vector<Array> in;
  for (std::size_t i = 0; i < p.inputs.size(); ++i) {
    const ReferenceTensor& t = p.inputs[i];
    if (t.name == "cotangent.output" && !inputs.contains(t.name))
      in.push_back(drawn(t.name, t.spec.shape, 1, options.seed).cast(options.dtype));
    else if (!p.read[i] && !inputs.contains(t.name)) in.push_back(Array::zeros(options.dtype, t.spec.shape));
    else in.push_back(taken(find(inputs, t.name, expected_text(t)), t));
    if (p.read[i]) out.inputs[t.name] = in.back();
  }
  const std::vector<Array> values = p.function(in);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const std::int64_t at = first_not_finite(values[i]); at >= 0)
      throw ValueError(fmt::format(
          "[reference] '{}' becomes {} at {}: the inner loop diverges on these inputs", p.outputs[i].name,
          values[i].at(at), place_text(at, values[i].shape(), p.outputs[i].axes)));
    out.outputs[p.outputs[i].name] = values[i];
  }
  out.description = description_of(p, system, options, false);
  return out;
}

}  // namespace nestgrad::ttt
