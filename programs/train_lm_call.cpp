#include "programs/train_lm_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "models/config.h"
#include "models/end_to_end.h"
#include "programs/program.h"

namespace nestgrad {

namespace {

// Layers of a language model. A learner that is registered and can be none is told why.
CLI::Validator layer_name() {
  const std::vector<std::string> names = layer_names();
  return {
      [names](std::string& name) -> std::string {
        if (std::ranges::find(names, name) != names.end()) return "";
        for (const ttt::System& s : ttt::systems())
          if (s.name == name)
            return fmt::format(
                "{} is not causal ({}), so it cannot be a layer of a language model: let its policy make a step per "
                "token, or read a chunk before it learns from it",
                name, s.policy({1, 2, 16}).str());
        return fmt::format("{} not in {{{}}}", name, fmt::join(names, ","));
      },
      fmt::format("{{{}}}", fmt::join(names, ","))};
}

}  // namespace

LanguageModelConfig model_config(const TrainingCall& o) {
  LanguageModelConfig c;
  c.hidden_size = o.width;
  c.intermediate_size = published_mlp_width(o.width);
  c.num_hidden_layers = o.layers;
  c.num_attention_heads = o.heads;
  c.mini_batch_size = o.mini_batch;
  c.ttt_layer_type = layer_type(o.learner);
  // Written as a number, so that a run is resumed with the window that it began with.
  const bool layered = c.ttt_layer_type != "attention" && c.ttt_layer_type != kEndToEnd;
  c.attention_window = o.attention_window;
  if (c.attention_window == kAsPublished)
    c.attention_window = layered ? window_of(c, learner_system(c.ttt_layer_type)) : 0;
  // The window that it has where none is asked for is written as 0, also where it is asked for.
  if (c.ttt_layer_type == kEndToEnd && c.attention_window == EndToEndConfig{}.window) c.attention_window = 0;
  c.ilr_init = o.inner_start;
  c.ilr_warmup_steps = o.inner_warmup;
  c.ttt_base_lr = o.learner == "ttt-mlp" ? 0.1 : 1.0;
  c.use_gate = c.share_qk = c.pre_conv = o.backbone == "mamba";
  return c;
}

std::string with_options(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
      {"hidden_size", "--width"},
      {"num_hidden_layers", "--layers"},
      {"num_attention_heads", "--heads"},
      {"intermediate_size", "--width"},
      {"mini_batch_size", "--mini-batch"},
      {"attention_window", "--attention-window"},
      {"ttt_layer_type", "--learner"},
      {"ilr_init", "--inner-rate-start"},
      {"ilr_warmup_steps", "--inner-rate-warmup"},
      {"use_gate", "--backbone"}};
  std::vector<std::string> named;
  for (const auto& [field, option] : kOptions)
    if (text.find(field) != text.npos) named.push_back(fmt::format("{} is {}", field, option));
  return named.empty() ? text : fmt::format("{} ({})", text, fmt::join(named, ", "));
}

std::int64_t alignment_of(const LanguageModelConfig& c) {
  if (c.ttt_layer_type == "attention") return 1;
  if (c.ttt_layer_type == kEndToEnd)
    throw CLI::ValidationError(
        "--pack: ttt-e2e goes on training over the whole of a sequence, and reads one document in each; leave --pack out");
  const std::int64_t chunk = layer_policy(c).chunk;
  if (chunk == ttt::Policy::kWholeSequence)
    throw CLI::ValidationError(
        "--pack: this learner has one chunk for the whole sequence, and reads one document in each");
  return chunk;
}

void add_options(CLI::App& app, TrainingCall& o) {
  o.data = NESTGRAD_DEFAULT_DATA;
  app.add_option("--data", o.data, "Text file, or folder of text files (default: the Eigen headers)")
      ->check(not_empty)
      ->capture_default_str();
  CLI::Option* from = app.add_option(
      "--from", o.from, "Start from the weights of this model, a folder or a file, instead of random ones");
  from->check(not_empty);
  const auto of_model = [&](CLI::Option* option) {  // which --from has chosen already
    option->capture_default_str()->excludes(from);
  };
  of_model(app.add_option("--learner", o.learner, "Sequence layer")->check(layer_name()));
  of_model(app.add_option("--backbone", o.backbone, "What stands around it")
               ->check(CLI::IsMember({"transformer", "mamba"})));
  app.add_option("--steps", o.training.steps, "Training steps")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option("--batch", o.training.batch, "Sequences in a step")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option(
         "--grains", o.training.grains,
         "Parts that a batch is cut into, which the processes of mpirun share; the results depend on their\n"
         "number, and not on that of the processes (default: the largest divisor of the batch up to 8; with\n"
         "slices 1)")
      ->check(positive, "POSITIVE");
  app.add_option(
         "--slices", o.training.slices,
         "Parts that each sequence is cut into in time, each of which a thread of some process has: long\n"
         "sequences on several machines. A divisor of the context, and where there is attention of the heads;\n"
         "their number changes bits")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option("--context", o.training.context, "Bytes in a sequence, at least 2")
      ->check(CLI::Range(std::int64_t{2}, std::numeric_limits<std::int64_t>::max()), "INT >= 2")
      ->capture_default_str();
  app.add_flag(
      "--pack", o.pack,
      "Train on documents (files of a folder of ten or more, or what empty lines divide), several in a sequence, each read\n"
      "as if it stood alone, instead of windows of the running text");
  of_model(
      app.add_option("--width", o.width, "Model width")->check(CLI::Range(std::int64_t{1}, kMostExtent)));
  of_model(app.add_option("--layers", o.layers, "Blocks")->check(positive, "POSITIVE"));
  of_model(
      app.add_option("--heads", o.heads, "Heads; each has its own inner model")->check(positive, "POSITIVE"));
  of_model(
      app.add_option(
             "--mini-batch", o.mini_batch,
             "Tokens in an inner gradient step; 1 is online (attention, and learners whose chunks are their\n"
             "own, do not look at it)")
          ->check(positive, "POSITIVE"));
  of_model(
      app.add_option(
             "--attention-window", o.attention_window,
             "Tokens of a sliding-window attention branch beside the learner (0: none; default: those of a\n"
             "mini-batch for LaCT, its ladder, KV binding and in-place TTT, none for others; ttt-e2e: 64 of its own attention)")
          ->check(not_negative, "NONNEGATIVE"));
  app.get_option("--attention-window")->default_str("");  // its text says it in words
  of_model(app.add_option("--inner-rate-warmup", o.inner_warmup,
                          "ttt-e2e: steps over which the inner rate rises to its own value (0: none)")
               ->check(not_negative, "NONNEGATIVE"));
  of_model(app.add_option("--inner-rate-start", o.inner_start, "ttt-e2e: where that rise begins")
               ->check(not_negative, "NONNEGATIVE"));
  app.add_option(
         "--lr", o.training.lr,
         "Peak learning rate of the outer optimiser (AdamW with decay 0.1 and clip 1): reached after 50 steps, then falling\n"
         "as a cosine to a tenth")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option("--seed", o.training.seed, "Seed of parameters, batches and sample")->capture_default_str();
  app.add_option_function<std::int64_t>(
         "--checkpoint-every", [&](std::int64_t n) { o.training.checkpoint_every = static_cast<int>(n); },
         "Keep inner states of every n-th mini-batch only, "
         "recompute the rest (0: keep all); same bits, less memory")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{std::numeric_limits<int>::max()}))
      ->default_str("0");
  app.add_option_function<double>(
         "--memory-budget",
         [&](double mb) { o.training.memory_budget = static_cast<std::size_t>(std::round(mb * 1e6)); },
         "MB that the training plan may take: what is not kept is recomputed, by the schedule of a few that computes "
         "least and fits; same bits (default: any)")
      ->check(CLI::Range(1e-6, 1e12));
  app.add_option("--save-every", o.save_every, "Steps between checkpoints")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option("--stop-after", o.stop_after,
                 "Stop after this many steps in all, as if interrupted; go on with --resume")
      ->check(positive, "POSITIVE");
  app.add_option("--validation-windows", o.validation_windows, "Most windows of validation text")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  app.add_option("--out", o.out, "Folder for the results")->check(not_empty)->capture_default_str();
  app.add_flag("--resume", o.resume,
               "Go on from the checkpoint in --out; bit-identical to not having stopped (but with\n"
               "another --steps, whose learning rates are those of the new number)");
  app.add_flag("--json", o.json, "Last line of output: the results as one JSON object");
}

}  // namespace nestgrad
