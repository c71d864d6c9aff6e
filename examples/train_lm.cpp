// train_lm: trains a byte-level language model whose layers
// learn while they read, and reports how well they do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "engine/io/file.h"
#include "examples/common/program.h"
#include "examples/common/sample.h"
#include "look/report.h"
#include "models/metrics.h"
#include "models/trainer.h"

using namespace nestgrad;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string data = NESTGRAD_DEFAULT_DATA, learner = "ttt-linear", backbone = "transformer",
              out = "runs/train_lm";
  TrainingOptions training;
  std::int64_t width = 128, layers = 2, heads = 2, mini_batch = 16, validation_windows = 256,
               save_every = 500, stop_after = 0, sample_bytes = 400, attention_window = 0;
  bool resume = false, json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

LanguageModelConfig model_config(const Options& o) {
  LanguageModelConfig c;
  c.hidden_size = o.width;
  c.intermediate_size = (o.width * 8 / 3 + 31) / 32 * 32;
  c.num_hidden_layers = o.layers;
  c.num_attention_heads = o.heads;
  c.mini_batch_size = o.mini_batch;
  c.ttt_layer_type = layer_type(o.learner);
  c.attention_window = o.attention_window;
  c.ttt_base_lr = o.learner == "ttt-mlp" ? 0.1 : 1.0;
  c.use_gate = c.share_qk = c.pre_conv = o.backbone == "mamba";
  return c;
}

// The metrics up to a step, of the run that is resumed; what came after its last checkpoint is run again.
std::vector<Metric> read_metrics(const std::string& path, std::int64_t up_to) {
  if (!std::filesystem::exists(path)) return {};
  std::vector<Metric> out = parse_metrics(read_file(path), path);
  if (out.empty() || out.back().step < up_to)
    throw IoError(
        fmt::format("{}: its last line is of step {}, the checkpoint of step "
                    "{}; bring the file back, or delete it to go on without it",
                    path, out.empty() ? 0 : out.back().step, up_to));
  std::erase_if(out, [&](const Metric& m) { return m.step > up_to; });
  return out;
}

std::vector<double> smooth(const std::vector<double>& y, std::size_t half_width) {
  std::vector<double> out(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t from = i > half_width ? i - half_width : 0, to = std::min(y.size(), i + half_width + 1);
    double sum = 0;
    for (std::size_t k = from; k < to; ++k) sum += y[k];
    out[i] = sum / static_cast<double>(to - from);
  }
  return out;
}

Series by_position(std::string name, const std::vector<double>& y) {
  Series s{std::move(name), {}, smooth(y, 8)};
  for (std::size_t i = 0; i < y.size(); ++i) s.x.push_back(static_cast<double>(i));
  return s;
}

struct Results {
  Validation validation;
  double bigram = 0, tokens_per_second = 0, seconds = 0;
  std::string prompt, sample;
};

Chart position_chart(const Results& r) {
  return {"Validation loss by position",
          "position in the context (bytes)",
          "loss (nats per byte)",
          {by_position("validation loss", r.validation.loss_by_position)},
          {{"bigram", r.bigram}}};
}

Chart inner_chart(const Validation::Inner& layer) {
  return {"Inner loss, " + layer.layer,
          "position in the context (bytes)",
          "inner loss (of a token, in units of its task)",
          {by_position("at the first weights", layer.initial), by_position("before the step", layer.before),
           by_position("after the step", layer.after)}};
}

std::string report(const Options& o, const Trainer& trainer, const std::vector<Metric>& metrics,
                   const Results& r) {
  Series curve{"training loss", {}, {}};
  for (const Metric& m : metrics) curve.x.push_back(static_cast<double>(m.step)), curve.y.push_back(m.loss);
  curve.y = smooth(curve.y, std::max<std::size_t>(1, metrics.size() / 100));

  std::vector<ReportView> views{
      {.id = "training",
       .title = "Training",
       .question = "How far did the outer training get?",
       .reading = "Loss of each training batch, smoothed. The dotted "
                  "line is a bigram model of the same training text.",
       .pictures = {Chart{
           "Training curve", "step", "loss (nats per byte)", {curve}, {{"bigram", r.bigram}}}}},
      {.id = "positions",
       .title = "It learns while it reads",
       .question = "Does the loss fall as the model reads on?",
       .reading = "Validation loss by position in the context, smoothed over 17 bytes. All weights that the "
                  "outer training found are fixed here; what falls from left to right is what the "
                  "layers learn from the text in front of them.",
       .pictures = {position_chart(r)}}};
  ReportView inner{
      .id = "inner-loss",
      .title = "The inner loss",
      .question = "Does each layer get better at its own task?",
      .reading =
          "Each layer trains a small model on the sequence. Its self-supervised loss on each token with the "
          "weights from before the first token, and "
          "just before and just after the gradient step on that token (Sun et al. 2024, Figure 4)."};
  for (const Validation::Inner& layer : r.validation.inner) inner.pictures.push_back(inner_chart(layer));
  if (!inner.pictures.empty()) views.push_back(inner);
  if (!r.sample.empty())
    views.push_back({.id = "sample",
                     .title = "A sample",
                     .question = "What does it write?",
                     .reading =
                         "The model read the first lines, from the validation text, and wrote what "
                         "follows the mark, byte by byte with carried inner state, at temperature 0.8.",
                     .preformatted = r.prompt + "▌" + r.sample});

  const LanguageModelConfig& c = o.training.model;
  return html_report("nestgrad: a language model that learns while it reads",
                     fmt::format("{} layers, {} backbone, {} parameters, {} steps", o.learner, o.backbone,
                                 trainer.parameter_count(), trainer.steps_done()),
                     {{"data", o.data},
                      {"width, layers, heads",
                       fmt::format("{}, {}, {}", c.hidden_size, c.num_hidden_layers, c.num_attention_heads)},
                      {"inner mini-batch", std::to_string(c.mini_batch_size)},
                      {"context, batch", fmt::format("{} bytes, {}", o.training.context, o.training.batch)},
                      {"validation loss", fmt::format("{:.4f} nats per byte ({:.4f} bits)", r.validation.loss,
                                                      r.validation.loss / std::numbers::ln2)},
                      {"first quarter of the context",
                       fmt::format("{:.4f} nats per byte", r.validation.mean_between(0, 0.25))},
                      {"last quarter of the context",
                       fmt::format("{:.4f} nats per byte", r.validation.mean_between(0.75, 1))},
                      {"bigram model", fmt::format("{:.4f} nats per byte", r.bigram)},
                      {"speed", fmt::format("{:.0f} tokens per second", r.tokens_per_second)},
                      {"time", format_seconds(r.seconds)}},
                     views);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw IoError(fmt::format("{}: cannot be created ({}); choose another --out", folder, error.message()));
}

void prepare_folder(const Options& o) {
  const bool has_checkpoint = std::filesystem::exists(o.out + "/checkpoint.safetensors");
  if (has_checkpoint && !o.resume)
    throw ConfigError(
        fmt::format("{} already holds a training run; go on with --resume, or choose another --out", o.out));
  if (!has_checkpoint && o.resume)
    throw IoError(fmt::format(
        "{}: there is no checkpoint.safetensors to resume from; leave --resume out to start", o.out));
  // Fails now, not after the training, if nothing can be written here.
  write_file_atomically(o.out + "/config.json", o.training.model.to_json() + "\n");
}

// Where a step's first NaN or infinity came from, and a file that makes it again.
void explain_nonfinite(const Options& o, const Trainer& trainer, ProgressLine& progress) {
  const std::optional<NonFinite> found = trainer.why_not_finite();
  if (!found) return;
  const std::string path = o.out + "/nonfinite.safetensors";
  save_reproducer(*found, path);
  progress.print(fmt::format("{}\nthis op and its operands are in {}", found->str(), path));
}

void run(Options& o) {
  const auto start = Clock::now();
  o.training.model = model_config(o);
  try {
    o.training.check();
  } catch (const ConfigError& e) {
    throw CLI::ValidationError(e.what());  // options that do not go together are a wrong call
  }
  const ByteCorpus corpus = ByteCorpus::load(o.data, o.training.context + 1);
  if (o.resume && std::filesystem::exists(o.out + "/config.json")) {
    // A wrong resume must not touch the folder.
    const std::string path = o.out + "/config.json";
    if (LanguageModelConfig::from_json(read_file(path), path) != o.training.model)
      throw ConfigError(fmt::format(
          "{} describes another model than the one asked for; resume with the same settings", path));
  }
  if (!o.resume) make_folder(o.out);
  std::optional<FolderLock> lock;  // of a folder that is not there, prepare_folder tells
  if (std::filesystem::is_directory(o.out)) lock.emplace(o.out);
  Trainer trainer(o.training, corpus);
  const std::string checkpoint = o.out + "/checkpoint.safetensors", metrics_path = o.out + "/metrics.jsonl";
  std::vector<Metric> metrics;
  if (o.resume && std::filesystem::exists(checkpoint)) {
    trainer.load(checkpoint);
    metrics = read_metrics(metrics_path, trainer.steps_done());
  }
  prepare_folder(o);
  lock->remove_temporaries();
  std::string log;
  for (const Metric& m : metrics) log += to_line(m);

  Results r;
  {
    ProgressLine progress;
    const double tokens_per_step = static_cast<double>(o.training.batch * o.training.context);
    progress.print(fmt::format("{} parameters, {} training bytes, {} validation bytes, plan memory {:.0f} MB",
                               trainer.parameter_count(), corpus.bytes(Split::training).size(),
                               corpus.bytes(Split::validation).size(),
                               static_cast<double>(trainer.arena_bytes()) / 1e6));
    // Metrics first: a resumed run leaves out rows of steps after its checkpoint; missing ones are lost.
    const auto save = [&] {
      write_file_atomically(metrics_path, log);
      trainer.save(checkpoint);
    };
    const auto training_start = Clock::now();
    const std::int64_t first = trainer.steps_done();
    const std::int64_t stop = o.stop_after > 0 ? std::min(o.stop_after, o.training.steps) : o.training.steps;
    while (trainer.steps_done() < stop) {
      StepResult s{};
      try {
        s = trainer.step();
      } catch (const ValueError&) {
        explain_nonfinite(o, trainer, progress);
        throw;
      }
      r.tokens_per_second =
          static_cast<double>(s.step - first) * tokens_per_step / seconds_since(training_start);
      metrics.push_back({s.step, s.loss, s.grad_norm, s.rate, r.tokens_per_second});
      log += to_line(metrics.back());
      progress.update(fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s", s.step, o.training.steps,
                                  s.loss, r.tokens_per_second),
                      static_cast<double>(s.step) / static_cast<double>(o.training.steps));
      if (s.step % o.save_every == 0) save();
    }
    save();
    if (stop < o.training.steps) {
      fmt::print("stopped after {} of {} steps; go on with --resume\n", stop, o.training.steps);
      return;
    }
    const Array windows = trainer.validation_windows(o.validation_windows);
    r.validation = trainer.validate(windows);
    r.bigram = bigram_loss(corpus.bytes(Split::training), windows);
    if (!std::isfinite(r.validation.loss))
      throw ValueError("[train] the validation loss is not finite; the checkpoint is saved");
    const auto prompt = corpus.bytes(Split::validation)
                            .first(std::min<std::size_t>(64, corpus.bytes(Split::validation).size()));
    r.prompt = std::string(prompt.begin(), prompt.end());
    if (o.training.model.ttt_layer_type != kEndToEnd)  // which has no token-by-token form
      r.sample =
          sample_text(o.training.model, trainer.parameters(), r.prompt, o.sample_bytes, 0.8, o.training.seed);
    r.seconds = seconds_since(start);
    write_file_atomically(o.out + "/report.html", report(o, trainer, metrics, r));
    write_file_atomically(o.out + "/loss_by_position.svg", svg(position_chart(r)));
    for (const Validation::Inner& layer : r.validation.inner)
      write_file_atomically(fmt::format("{}/inner_loss.{}.svg", o.out, layer.layer), svg(inner_chart(layer)));
  }
  const Validation& v = r.validation;
  fmt::print(
      "validation loss {:.4f} nats per byte ({:.4f} bits); bigram {:.4f}; first quarter of the context "
      "{:.4f}, last quarter {:.4f}\n",
      v.loss, v.loss / std::numbers::ln2, r.bigram, v.mean_between(0, 0.25), v.mean_between(0.75, 1));
  fmt::print("{} in {}, {:.0f} tokens/s, peak memory {:.0f} MB\nreport: {}/report.html\n", o.learner,
             format_seconds(r.seconds), r.tokens_per_second, peak_memory_mb(), o.out);
  if (o.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"val_loss", v.loss},
                                              {"val_bpb", v.loss / std::numbers::ln2},
                                              {"loss_first_quarter", v.mean_between(0, 0.25)},
                                              {"loss_last_quarter", v.mean_between(0.75, 1)},
                                              {"bigram_loss", r.bigram},
                                              {"tokens_per_second", r.tokens_per_second},
                                              {"peak_rss_mb", peak_memory_mb()},
                                              {"seconds", r.seconds}}
                           .dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Trains a byte-level language model whose sequence layers are learners, and writes metrics.jsonl,\n"
      "checkpoint.safetensors, config.json, report.html and its charts as SVG into a folder.",
      "train_lm"};
  Options o;
  app.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // so that scripts can add to a call
  app.add_option("--data", o.data, "Text file, or folder of text files (default: the Eigen headers)")
      ->capture_default_str();
  app.add_option("--learner", o.learner, "Sequence layer")
      ->check(CLI::IsMember(layer_names()))
      ->capture_default_str();
  app.add_option("--backbone", o.backbone, "What stands around it")
      ->check(CLI::IsMember({"transformer", "mamba"}))
      ->capture_default_str();
  app.add_option("--steps", o.training.steps, "Training steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", o.training.batch, "Sequences in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--context", o.training.context, "Bytes in a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--width", o.width, "Model width")
      ->check(CLI::Range(std::int64_t{1}, kMostExtent))
      ->capture_default_str();
  app.add_option("--layers", o.layers, "Blocks")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", o.heads, "Heads; each has its own inner model")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--mini-batch", o.mini_batch, "Tokens in an inner gradient step; 1 is online")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--attention-window", o.attention_window,
                 "Tokens of a sliding-window attention branch beside the learner, as in LaCT (0: none)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--lr", o.training.lr, "Peak learning rate of the outer optimiser")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", o.training.seed, "Seed of parameters, batches and sample")->capture_default_str();
  app.add_option("--checkpoint-every", o.training.checkpoint_every,
                 "Keep inner states of every n-th mini-batch only, "
                 "recompute the rest (0: keep all); same bits, less memory")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option_function<double>(
         "--memory-budget", [&](double mb) { o.training.memory_budget = static_cast<std::size_t>(mb * 1e6); },
         "MB that the training plan may take: what "
         "is not kept is recomputed, as little as "
         "possible; same bits (default: any)")
      ->check(CLI::Range(1e-6, 1e12));
  app.add_option("--save-every", o.save_every, "Steps between checkpoints")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--stop-after", o.stop_after,
                 "Stop after this many steps in all, as if interrupted; go on with --resume")
      ->check(CLI::PositiveNumber);
  app.add_option("--validation-windows", o.validation_windows, "Most windows of validation text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--out", o.out, "Folder for the results")->capture_default_str();
  app.add_flag("--resume", o.resume,
               "Go on from the checkpoint in --out; bit-identical to not having stopped");
  app.add_flag("--json", o.json, "Last line of output: the results as one JSON object");
  add_device_option(app);
  return run_program(argc, argv, app, [&] { run(o); });
}
