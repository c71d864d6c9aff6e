#include "reproduce/experiments/context_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::int64_t kWidth = 64, kHeads = 2, kLayers = 2, kVocabulary = 256;
constexpr std::int64_t kHidden = 128, kNarrowest = 16, kGrain = 8;
constexpr std::int64_t kWindow = 64, kKernel = 4;  // of TTT-E2E; of the backbone's convolutions
constexpr std::int64_t kMiniBatch = 16, kChunk = 64;

// What the sequence layer itself does with q, k and v of a token.
double layer_work(const ContextModel& model, std::int64_t length) {
  constexpr double width = kWidth, dim = kWidth / kHeads;
  const double matrix = 2 * dim * width;  // a product of a vector with a matrix, in every head
  // Scores and their sum over as many tokens as are seen, half of the window on average.
  if (model.layer == "attention") return 2 * width * static_cast<double>(length);
  if (model.layer == kEndToEnd) return 4 * width * static_cast<double>(kWindow);
  if (model.layer == "linear-attention") return 2 * matrix;  // write, read
  if (model.layer == "mamba-2") return 2.5 * matrix;         // and decay
  if (model.layer == "linear") return 3 * matrix;            // predict the value, write, read
  // Through and back: two matrices 4 times as wide; predict 8, back 4, write 8, read 8.
  if (model.layer == "mlp") return 28 * matrix;
  throw ConfigError(fmt::format("[context] the work of '{}' is not known", model.layer));
}

}  // namespace

const std::vector<ContextModel>& context_models() {
  static const std::vector<ContextModel> models{
      {"softmax attention", "attention", false, "falls along 32k"},
      {"linear attention", "linear-attention", true, ""},
      {"Mamba-2", "mamba-2", true, "Mamba: level at 2k, behind TTT at 8k; stops falling after 16k"},
      {"TTT-Linear", "linear", true, "level with Mamba at 2k, better at 8k and 32k"},
      {"TTT-MLP", "mlp", true, "worse at 2k, better at 8k and 32k"},
      {"TTT-E2E", kEndToEnd, false, ""}};
  return models;
}

const ContextModel& context_model(const std::string& name) {
  const auto found = std::ranges::find(context_models(), name, &ContextModel::name);
  if (found == context_models().end())
    throw ConfigError(fmt::format("[context] there is no model '{}'", name));
  return *found;
}

double work_of(const ContextModel& model, std::int64_t length, std::int64_t hidden) {
  constexpr double width = kWidth, square = 2 * width * width, head = 2 * width * kVocabulary;
  // q, k, v and o; with a state: q and k share one, and there is a gate, and three convolutions.
  const double projections = 4 * square + (model.has_state ? 3 * 2 * kKernel * width : 0);
  const double product = 2 * width * static_cast<double>(hidden), mlp = 3 * product;
  double out = kLayers * (projections + layer_work(model, length) + mlp) + head;
  // The last block has an MLP more. Its inner gradient goes back through the output, the MLP and this one's last
  // matrix, and makes the gradients of three.
  if (model.layer == kEndToEnd) out += mlp + head + mlp + product + mlp;
  return out;
}

double work_budget() { return work_of(context_model("TTT-MLP"), 0, kHidden); }

LanguageModelConfig config_of(const ContextModel& model, std::int64_t length) {
  const double none = work_of(model, length, 0), each = work_of(model, length, 1) - none;
  const double fits = std::floor((work_budget() - none) / each / kGrain + 0.5) * kGrain;
  LanguageModelConfig c;
  c.hidden_size = kWidth, c.num_hidden_layers = kLayers, c.num_attention_heads = kHeads;
  c.intermediate_size = std::max(kNarrowest, static_cast<std::int64_t>(fits));
  c.ttt_layer_type = model.layer;
  c.mini_batch_size = model.layer == kEndToEnd ? kChunk : kMiniBatch;
  if (model.layer == kEndToEnd) c.attention_window = kWindow;
  c.use_gate = c.share_qk = c.pre_conv = model.has_state;
  c.conv_kernel = kKernel;
  return c;
}

}  // namespace nestgrad::reproduce
