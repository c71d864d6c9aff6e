#include "models/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "autograd/grad.h"
#include "engine/io/safetensors.h"
#include "models/decoder.h"
#include "models/language_model.h"

namespace nestgrad {

namespace {

const Array& find(const SafeTensors& file, const std::string& name, const std::string& path) {
  const auto at = file.tensors.find(name);
  if (at == file.tensors.end())
    throw IoError(fmt::format("{}: not a golden file of a known kind: it has no tensor '{}'", path, name));
  return at->second;
}

// How far `ours` is from the file's tensor of that name.
double error_of(const Array& ours, const SafeTensors& file, const std::string& name,
                const std::string& path) {
  const Array& theirs = find(file, name, path);
  if (theirs.shape() != ours.shape())
    throw IoError(fmt::format("{}: '{}' is {}, the model of this configuration gives {}", path, name,
                              to_string(theirs.spec()), to_string(ours.spec())));
  return relative_error(ours, theirs);
}

StateDict with_prefix(const SafeTensors& file, const std::string& prefix, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : file.tensors)
    if (name.starts_with(prefix)) out.emplace(name.substr(prefix.size()), value.cast(dtype));
  return out;
}

// tokens i32 [batch, time] -> column t, [batch]
Array column(const Array& tokens, std::int64_t t) {
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1];
  Array out(DType::i32, {batch});
  for (std::int64_t b = 0; b < batch; ++b)
    out.as<std::int32_t>()[static_cast<std::size_t>(b)] =
        tokens.as<std::int32_t>()[static_cast<std::size_t>(b * time + t)];
  return out;
}

double decode_error(const LanguageModelConfig& config, const StateDict& params, DType dtype,
                    ttt::FormChoice form, const Array& tokens, const Array& logits) {
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1], vocab = config.vocab_size;
  Decoder decoder(config, params, dtype, batch, time, form);
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

}  // namespace

bool GoldenReport::passes(double tolerance) const {
  return loss_error <= tolerance && logits_error <= tolerance && worst_grad_error <= tolerance &&
         decode_error <= tolerance;
}

GoldenReport verify_golden(const std::string& path, DType dtype, ttt::FormChoice form) {
  const SafeTensors file = read_safetensors(path);
  const auto json = file.metadata.find("config");
  if (json == file.metadata.end() || !file.tensors.contains("input_ids"))
    throw IoError(
        fmt::format("{}: not a golden file of a known kind: whole language models (ttt_*) have 'config' in "
                    "their metadata and 'input_ids'",
                    path));
  const LanguageModelConfig config = LanguageModelConfig::from_json(json->second, path);
  const Array& tokens = find(file, "input_ids", path);
  if (tokens.dtype() != DType::i32 || tokens.spec().rank() != 2 || tokens.shape()[1] < 2)
    throw IoError(
        fmt::format("{}: 'input_ids' is {}; it must be integers [batch, time] with at least two tokens", path,
                    to_string(tokens.spec())));
  const StateDict params = with_prefix(file, "param.", dtype);

  std::vector<std::string> taps;
  const TracedModel model =
      trace_model(dtype, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
        ttt::Stream stream;
        const LanguageModel lm(config, Params(table), form);
        const Tensor logits = lm.logits(given[0], stream);
        const std::int64_t time = logits.dim(1);
        const Tensor loss = mean(cross_entropy(slice(logits, 1, 0, time - 1), slice(given[0], 1, 1, time)));
        std::vector<Tensor> out{loss, logits};
        for (const auto& [name, value] : stream.taps()) {
          taps.push_back(name);
          out.push_back(value);
        }
        const std::vector<Tensor> grads = grad(loss, table.tensors());
        out.insert(out.end(), grads.begin(), grads.end());
        return out;
      });
  check_fits(model.params, params, path);
  const std::vector<Array> out = model.function(model.bind({tokens}, {&params}));

  GoldenReport report;
  report.loss_error = error_of(out[0].reshaped({1}), file, "loss", path);
  report.logits_error = error_of(out[1], file, "logits", path);
  std::size_t k = 2;
  for (const std::string& name : taps)
    report.logits_error = std::max(report.logits_error, error_of(out[k++], file, "tap." + name, path));
  for (const ParamSpec& p : model.params) {
    const double error = error_of(out[k++], file, "grad." + p.name, path);
    if (error <= report.worst_grad_error) continue;
    report.worst_grad_error = error;
    report.worst_grad_name = p.name;
  }
  report.decode_error = decode_error(config, params, dtype, form, tokens, find(file, "logits", path));
  return report;
}

}  // namespace nestgrad
