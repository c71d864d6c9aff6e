#include "tests/golden_check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "autograd/grad.h"
#include "models/decoder.h"
#include "models/language_model.h"
#include "tests/golden_check/golden_file.h"
#include "tests/golden_check/official_mlp.h"
#include "tests/golden_check/operations.h"

namespace nestgrad {

namespace {

// tokens i32 [batch, time] -> column t, [batch]
Array column(const Array& tokens, std::int64_t t) {
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1];
  Array out(DType::i32, {batch});
  for (std::int64_t b = 0; b < batch; ++b)
    out.as<std::int32_t>()[static_cast<std::size_t>(b)] =
        tokens.as<std::int32_t>()[static_cast<std::size_t>(b * time + t)];
  return out;
}

double decode_error(const LogitsFn& model, const StateDict& params, DType dtype, const Array& tokens,
                    const Array& logits) {
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1], vocab = logits.shape()[2];
  Decoder decoder(model, params, dtype, batch);
  Array decoded(dtype, logits.shape());
  for (std::int64_t t = 0; t < time; ++t) {
    const Array step = decoder.step(column(tokens, t));
    const std::size_t row = static_cast<std::size_t>(vocab) * size_of(dtype);
    for (std::int64_t b = 0; b < batch; ++b)
      std::memcpy(decoded.data() + static_cast<std::size_t>(b * time + t) * row,
                  step.data() + static_cast<std::size_t>(b) * row, row);
  }
  return relative_error(decoded, logits);
}

GoldenReport verify_model(const SafeTensors& file, const std::string& path, const GoldenOptions& options) {
  const DType dtype = options.dtype;
  const LanguageModelConfig config = LanguageModelConfig::from_json(file.metadata.at("config"), path);
  const Array& tokens = find_tokens(file, "input_ids", path);
  const StateDict params = with_prefix(file, "param.", dtype);
  config.check_against(parameter_count(params), path);

  LanguageModelOptions how{.form = options.form, .attention_capacity = tokens.shape()[1]};
  if (config.ttt_layer_type == "mlp" || config.ttt_layer_type == "ttt-mlp") how.system = official_ttt_mlp();

  std::vector<std::string> taps;
  const TracedModel model =
      trace_model(dtype, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
        ttt::Stream stream;
        const Tensor logits = LanguageModel(config, Params(table), how).logits(given[0], stream);
        const std::int64_t time = logits.dim(1);
        const Tensor loss = mean(cross_entropy(slice(logits, 1, 0, time - 1), slice(given[0], 1, 1, time)));
        std::vector<Tensor> out{loss, logits};
        for (const auto& [name, value] : stream.taps()) {
          taps.push_back(name);
          out.push_back(value);
        }
        if (!has_gradients(file)) return out;
        const std::vector<Tensor> grads = grad(loss, table.tensors());
        out.insert(out.end(), grads.begin(), grads.end());
        return out;
      });
  check_fits(model.params, params, path);
  const std::vector<Array> out = model.function(model.bind({tokens}, {&params}));

  GoldenReport report;
  report.loss_error = error_of(out[0].reshaped({1}), file, "loss", path);
  const auto output = [&](const Array& value, const std::string& name) {
    note(error_of(value, file, name, path), name, report.output_error, report.worst_output_name);
  };
  output(out[1], "logits");
  std::size_t k = 2;
  for (const std::string& name : taps) output(out[k++], "tap." + name);
  report.gradients = has_gradients(file);
  for (const ParamSpec& p : report.gradients ? model.params : std::vector<ParamSpec>{})
    note(gradient_error_of(out[k++], file, p.name, path), p.name, report.worst_grad_error,
         report.worst_grad_name);
  report.decode_error =
      decode_error(language_model(config, how), params, dtype, tokens, find(file, "logits", path));
  return report;
}

// What the file has under a prefix, by the rest of the name.
std::vector<std::string> names_under(const SafeTensors& file, const std::string& prefix) {
  std::vector<std::string> out;
  for (const auto& [name, value] : file.tensors)
    if (name.starts_with(prefix)) out.push_back(name.substr(prefix.size()));
  return out;
}

GoldenReport verify_operation(const SafeTensors& file, const std::string& path,
                              const GoldenOptions& options) {
  const DType dtype = options.dtype;
  const StateDict params = with_prefix(file, "in.param.", dtype);
  const std::vector<std::string> outputs = names_under(file, "out."), wrt = names_under(file, "grad.");
  std::vector<std::string> names;
  std::vector<Spec> specs;
  std::vector<Array> given;
  for (const std::string& name : names_under(file, "in."))
    if (!name.starts_with("param.")) {
      names.push_back(name);
      given.push_back(find(file, "in." + name, path).cast(dtype));
      specs.push_back(given.back().spec());
    }
  if (outputs.empty())
    throw IoError(fmt::format("{}: not a golden file of a known kind: operations have tensors out.*", path));

  GoldenReport report;
  report.operation = true;
  report.gradients = !wrt.empty();
  const TracedModel model = trace_model(dtype, specs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    GoldenOperation operation{path, file.metadata, {}, Params(table), {}, options.form, options.block};
    for (const auto& [name, value] : params) operation.param_shapes.emplace(name, value.shape());
    for (std::size_t i = 0; i < names.size(); ++i) operation.in[names[i]] = in[i];
    GoldenOutputs ran = run_golden_operation(operation);
    report.form = ran.form;
    report.unread = ran.unread;
    for (std::size_t i = 0; i < table.specs().size(); ++i)
      operation.in["param." + table.specs()[i].name] = table.tensors()[i];

    std::vector<Tensor> out, seen, cotangents, sources;
    for (const std::string& name : outputs) {
      if (!ran.out.contains(name))
        throw IoError(
            fmt::format("{}: the operation '{}' has no output '{}'", path, file.metadata.at("op"), name));
      out.push_back(ran.out[name]);
      const auto at = file.tensors.find("cotangent." + name);
      if (at == file.tensors.end()) continue;
      seen.push_back(ran.out[name]);
      cotangents.push_back(constant(at->second.cast(dtype)));
    }
    for (const std::string& name : wrt) {
      if (!operation.in.contains(name))
        throw IoError(fmt::format("{}: there is 'grad.{}', but the operation has no such input", path, name));
      sources.push_back(operation.in[name]);
    }
    if (wrt.empty()) return out;
    if (seen.empty())
      throw IoError(fmt::format("{}: there are gradients, but no cotangent.* of an output", path));
    const std::vector<Tensor> grads = vjp(seen, cotangents, sources, {.allow_zero = true});
    out.insert(out.end(), grads.begin(), grads.end());
    return out;
  });
  check_fits(model.params, params, path);
  const std::vector<Array> values = model.function(model.bind(given, {&params}));

  std::size_t k = 0;
  for (const std::string& name : outputs)
    note(error_of(values[k++], file, "out." + name, path), name, report.output_error,
         report.worst_output_name);
  for (const std::string& name : wrt)
    note(gradient_error_of(values[k++], file, name, path), name, report.worst_grad_error,
         report.worst_grad_name);
  return report;
}

}  // namespace

const Array& find_tokens(const SafeTensors& file, const std::string& name, const std::string& path) {
  const Array& tokens = find(file, name, path);
  if (tokens.dtype() != DType::i32 || tokens.spec().rank() != 2 || tokens.shape()[1] < 2)
    throw IoError(fmt::format("{}: '{}' is {}; it must be integers [batch, time] with at least two tokens",
                              path, name, to_string(tokens.spec())));
  return tokens;
}

bool GoldenReport::passes(double tolerance) const {
  return loss_error <= tolerance && output_error <= tolerance && worst_grad_error <= tolerance &&
         decode_error <= tolerance;
}

GoldenReport verify_golden(const std::string& path, const GoldenOptions& options) {
  const SafeTensors file = read_safetensors(path);
  if (file.metadata.contains("op")) return verify_operation(file, path, options);
  if (file.metadata.contains("config") && file.tensors.contains("input_ids"))
    return verify_model(file, path, options);
  const auto kind = file.metadata.find("kind");
  if (kind != file.metadata.end() && kind->second == "ttt_e2e") return verify_end_to_end(file, path, options);
  throw IoError(fmt::format(
      "{}: not a golden file of a known kind: whole language models (ttt_*) have 'config' in their metadata "
      "and 'input_ids', those that train while they read (end_to_end_*) the kind 'ttt_e2e', single operations 'op'",
      path));
}

GoldenVerdict golden_verdict(const std::string& path, const GoldenOptions& options, double tolerance) {
  using Kind = GoldenVerdict::Kind;
  const auto refused = [&](std::string why) -> GoldenVerdict {
    std::ranges::replace(why, '\n', ' ');
    if (why.starts_with(path + ": ")) why.erase(0, path.size() + 2);
    return {Kind::refused, fmt::format("{} REFUSED {}", path, why)};
  };
  try {
    const GoldenReport r = verify_golden(path, options);
    const Kind kind = r.passes(tolerance) ? Kind::passes : Kind::differs;
    const auto of_model = [&](double error) { return r.operation ? "-" : fmt::format("{:.1e}", error); };
    const std::string gradient = r.gradients ? fmt::format("{:.1e}", r.worst_grad_error) : "-";
    return {kind,
            fmt::format("{} {} {} {:.1e} {} {} {}{}{}", path, kind == Kind::passes ? "PASS" : "FAIL",
                        of_model(r.loss_error), r.output_error, gradient, r.worst_grad_name,
                        of_model(r.decode_error), r.operation ? fmt::format(" {}", name(r.form)) : "",
                        r.gradients ? "" : " (no gradients)") +
                (r.unread.empty() ? "" : fmt::format(" (not read: in.{})", fmt::join(r.unread, ", in.")))};
  } catch (const std::bad_alloc&) {
    return refused("out of memory");
  } catch (const std::exception& e) {
    return refused(e.what());
  }
}

}  // namespace nestgrad
