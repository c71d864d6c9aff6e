#include "tests/golden_check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "autograd/grad.h"
#include "models/decoder.h"
#include "models/json.h"
#include "models/language_model.h"
#include "models/published.h"
#include "tests/golden_check/comparison.h"
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

constexpr const char *kEmbedding = "model.embed_tokens.weight", *kHead = "lm_head.weight";

// The published configuration's pad_token_id is nn.Embedding's padding_idx: to look this token up gives its row no
// gradient, so that a file of such gradients is no file of ours. Nothing else depends on it.
void refuse_padding(const SafeTensors& file, const LanguageModelConfig& config, const Array& tokens,
                    const std::string& path) {
  const nlohmann::json json = parse_json(file.metadata.at("config"));
  const auto pad = json.find("pad_token_id");
  if (pad == json.end() || pad->is_null() || !has_gradients(file)) return;
  if (!fits(*pad, std::int64_t{}))
    throw IoError(fmt::format("{}: 'pad_token_id' of its 'config' is {}, no token", path, shown(*pad)));
  const auto asked = pad->get<std::int64_t>(), token = asked < 0 ? asked + config.vocab_size : asked;
  if (std::ranges::count(tokens.as<std::int32_t>(), token) > 0)
    throw IoError(fmt::format(
        "{}: 'pad_token_id' of its 'config' is {}, and the token occurs: officially the embedding has no gradient from "
        "where it is looked up; such files can be checked without grad.*, or without this token",
        path, asked));
}

// The parameters of a file, in which the output matrix of a tied model may stand beside the embedding, or in its place.
StateDict parameters(const SafeTensors& file, const LanguageModelConfig& config, DType dtype,
                     const std::string& path) {
  StateDict out = with_prefix(file, "param.", dtype);
  if (!config.tie_word_embeddings) return out;
  if (auto head = out.extract(kHead)) {
    head.key() = kEmbedding;
    if (const auto at = out.find(kEmbedding); at != out.end() && !at->second.same_bits(head.mapped()))
      throw ConfigError(
          fmt::format("[config] {}: 'param.{}' is not 'param.{}', which tie_word_embeddings says", path,
                      kHead, kEmbedding));
    out.insert(std::move(head));
  }
  return out;
}

// Under which names a file may have a parameter's gradient.
std::vector<std::string> gradients_of(const std::string& name, const LanguageModelConfig& config) {
  if (config.tie_word_embeddings && name == kEmbedding) return {name, kHead};
  return {name};
}

GoldenReport verify_model(const SafeTensors& file, const std::string& path, const GoldenOptions& options) {
  const DType dtype = options.dtype;
  const LanguageModelConfig config = published_config(file.metadata.at("config"), path);
  const Array& tokens = find_tokens(file, "input_ids", path);
  refuse_padding(file, config, tokens, path);
  const StateDict params = parameters(file, config, dtype, path);
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

  Comparison comparison(file, path, {"input_ids"});
  comparison.loss(out[0]);
  comparison.output(out[1], "logits");
  std::size_t k = 2;
  for (const std::string& name : taps) comparison.output(out[k++], "tap." + name);
  if (has_gradients(file))
    for (const ParamSpec& p : model.params) comparison.gradient(out[k++], gradients_of(p.name, config));
  GoldenReport report = comparison.done();
  const auto logits = file.tensors.find("logits");
  report.decoded = logits != file.tensors.end();
  if (report.decoded)
    report.decode_error = decode_error(language_model(config, how), params, dtype, tokens, logits->second);
  return report;
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
    throw IoError(fmt::format("{}: it has no out.*, which files of operations have", path));

  GoldenReport report;
  report.operation = true;
  std::set<std::string> known;  // expected numbers among them are looked at below
  for (const char* prefix : {"in.", "out.", "cotangent.", "grad."})
    for (const std::string& name : names_under(file, prefix)) known.insert(prefix + name);
  report.unread = unread_inputs(file, known, path);
  report.outputs = static_cast<std::int64_t>(outputs.size());
  report.gradients = static_cast<std::int64_t>(wrt.size());
  const TracedModel model = trace_model(dtype, specs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    GoldenOperation operation{{path, file.metadata}, {}, Params(table), {}, options.form, options.block};
    for (const auto& [name, value] : params) operation.param_shapes.emplace(name, value.shape());
    for (std::size_t i = 0; i < names.size(); ++i) operation.in[names[i]] = in[i];
    GoldenOutputs ran = run_golden_operation(operation);
    report.form = ran.form;
    for (const std::string& name : ran.unread) report.unread.push_back("in." + name);
    for (std::size_t i = 0; i < table.specs().size(); ++i)
      operation.in["param." + table.specs()[i].name] = table.tensors()[i];
    report.inputs = std::ranges::count_if(operation.in, [&](const auto& input) {
      return std::ranges::count(ran.unread, input.first) == 0 || std::ranges::count(wrt, input.first) > 0;
    });
    for (const auto& [name, value] : ran.out)
      if (std::ranges::count(outputs, name) == 0) report.absent.push_back("out." + name);

    std::vector<Tensor> out, seen, cotangents, sources;
    const auto output = [&](const std::string& name) {
      if (!ran.out.contains(name))
        throw IoError(
            fmt::format("{}: the operation '{}' has no output '{}'", path, file.metadata.at("op"), name));
      return ran.out[name];
    };
    const auto check_shape = [&](const std::string& name, Tensor ours) {
      if (const Array& theirs = find(file, name, path); theirs.shape() != ours.shape())
        throw IoError(fmt::format("{}: '{}' is {}, the operation gives {}", path, name,
                                  to_string(theirs.spec()), to_string(ours.spec())));
    };
    for (const std::string& name : outputs) {
      out.push_back(output(name));
      check_shape("out." + name, out.back());
    }
    for (const std::string& name : names_under(file, "cotangent.")) {
      seen.push_back(output(name));
      check_shape("cotangent." + name, seen.back());
      cotangents.push_back(constant(find(file, "cotangent." + name, path).cast(dtype)));
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

namespace {

// What of a file was not there, or not read: " (gradients of 3 of 7 inputs)". Empty where it was all.
std::string remarks(const GoldenReport& r) {
  std::string out;
  if (r.gradients == 0) out += " (no gradients)";
  else if (r.gradients < r.inputs)
    out += fmt::format(" (gradients of {} of {} inputs)", r.gradients, r.inputs);
  if (!r.absent.empty()) out += fmt::format(" (not there: {})", fmt::join(r.absent, ", "));
  if (!r.unread.empty()) out += fmt::format(" (not read: {})", fmt::join(r.unread, ", "));
  return out;
}

}  // namespace

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
    const auto shown = [](bool there, double error) { return there ? fmt::format("{:.1e}", error) : "-"; };
    return {kind, fmt::format("{} {} {} {} {} {} {}{}{}", path, kind == Kind::passes ? "PASS" : "FAIL",
                              shown(r.loss, r.loss_error), shown(r.outputs > 0, r.output_error),
                              shown(r.gradients > 0, r.worst_grad_error), r.worst_grad_name,
                              shown(r.decoded, r.decode_error),
                              r.operation ? fmt::format(" {}", name(r.form)) : "", remarks(r))};
  } catch (const std::bad_alloc&) {
    return refused("out of memory");
  } catch (const std::exception& e) {
    return refused(e.what());
  }
}

}  // namespace nestgrad
