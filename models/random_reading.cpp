#include "models/random_reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/hash.h"
#include "engine/core/random.h"

namespace nestgrad {

namespace {

// Away from where they start, so that each matters: a gain of 1, a bias of 0. Products neither grow nor vanish.
StateDict random_values(const std::vector<ParamSpec>& params, DType dtype, std::uint64_t seed) {
  StateDict out;
  for (const ParamSpec& p : params) {
    std::int64_t largest = 1;
    for (const std::int64_t extent : p.shape) largest = std::max(largest, extent);
    const bool is_normal = p.init.kind == Init::Kind::normal;
    const double around = is_normal ? 0 : p.init.value,
                 spread =
                     !is_normal ? 0.1 : std::max(p.init.value, 1 / std::sqrt(static_cast<double>(largest)));
    out.emplace(p.name, random_normal({dtype, p.shape}, around, spread, seed, fnv1a(p.name)));
  }
  return out;
}

}  // namespace

double tolerance_of(DType dtype) {
  return std::sqrt(dtype == DType::f32 ? std::numeric_limits<float>::epsilon()
                                       : std::numeric_limits<double>::epsilon());
}

TracedModel traced_whole(const LogitsFn& model, DType dtype, const Spec& tokens) {
  return trace_model(dtype, {tokens}, [&](ParamTable& table, const std::vector<Tensor>& in) {
    ttt::Stream stream;
    return std::vector<Tensor>{logits_of(model, Params(table), in[0], stream)};
  });
}

Array random_tokens(const Shape& shape, std::int64_t vocab, std::uint64_t seed) {
  Array out(DType::i32, shape);
  std::uint64_t i = 0;
  for (std::int32_t& id : out.as<std::int32_t>())
    id = static_cast<std::int32_t>(random_below(static_cast<std::uint32_t>(vocab), seed, 0, i++));
  return out;
}

double RandomReading::largest() const {
  double out = 1e-300;
  for (const double x : logits) out = std::max(out, std::abs(x));
  return out;
}

RandomReading read_at_random(const std::string& who, const LogitsFn& model, const CheckDecodingOptions& o) {
  if (o.batch < 1 || o.tokens < 2 || !is_float(o.dtype) || !(o.tolerance >= 0))
    throw ConfigError(fmt::format(
        "[decoder] {} wants a batch of 1 or more, 2 tokens or more, f32 or f64, and a tolerance of 0 or more; given "
        "are {}, {}, {} and {}",
        who, o.batch, o.tokens, name(o.dtype), o.tolerance));
  RandomReading out;
  const TracedModel whole = traced_whole(model, o.dtype, {DType::i32, {o.batch, o.tokens}});
  out.vocab = whole.function.output_spec(0).shape[2];
  out.tokens = random_tokens({o.batch, o.tokens}, out.vocab, o.seed);
  out.params = o.params.empty() ? random_values(whole.params, o.dtype, o.seed) : o.params;
  check_fits(whole.params, out.params, "CheckDecodingOptions::params");
  out.logits = whole.function(whole.bind({out.tokens}, {&out.params}))[0].to_vector();
  const auto infinite = std::ranges::find_if(out.logits, [](double x) { return !std::isfinite(x); });
  if (infinite != out.logits.end())
    throw ValueError(fmt::format(
        "[decoder] {}: read as a whole, the model answers {} at token {}{}", who, *infinite,
        (infinite - out.logits.begin()) / out.vocab % o.tokens,
        o.params.empty() ? "; give parameters that suit it, as CheckDecodingOptions::params" : ""));
  out.tolerance = o.tolerance > 0 ? o.tolerance : tolerance_of(o.dtype);
  return out;
}

}  // namespace nestgrad
