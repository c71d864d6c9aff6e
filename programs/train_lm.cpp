// train_lm: trains a byte-level language model whose layers
// learn while they read, and reports how well they do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <utility>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "engine/processes/mpi.h"
#include "look/training_report.h"
#include "models/json.h"
#include "models/metrics.h"
#include "models/sample.h"
#include "models/trainer.h"
#include "models/training_checkpoint.h"
#include "programs/given_model.h"
#include "programs/out_folder.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "programs/training_folder.h"

using namespace nestgrad;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string data = NESTGRAD_DEFAULT_DATA, learner = "ttt-linear", backbone = "transformer",
              out = "runs/train_lm", from;
  std::optional<Checkpoint> start;  // what --from names
  TrainingOptions training;
  std::int64_t width = 128, layers = 2, heads = 2, mini_batch = 16, validation_windows = 256,
               save_every = 500, stop_after = 0, sample_bytes = 400, attention_window = kAsPublished,
               inner_warmup = 0;
  double inner_start = 0;
  bool grains_given = false;
  bool pack = false, resume = false, json = false;
};

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

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

LanguageModelConfig model_config(const Options& o) {
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
  c.ilr_init = o.inner_start;
  c.ilr_warmup_steps = o.inner_warmup;
  c.ttt_base_lr = o.learner == "ttt-mlp" ? 0.1 : 1.0;
  c.use_gate = c.share_qk = c.pre_conv = o.backbone == "mamba";
  return c;
}

// What a ConfigError says in fields of the configuration, with the options that set them.
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

// Where packed documents may begin: with the chunks of the layers' inner loops.
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

// The metrics up to a step, of the run that is resumed; what came after its last checkpoint is run again.
std::vector<Metric> read_metrics(const std::string& path, std::int64_t up_to) {
  if (!std::filesystem::exists(path)) return {};
  std::vector<Metric> out = parse_metrics(read_found_file(path), path);
  if (out.empty() || out.back().step < up_to)
    throw IoError(
        fmt::format("{}: its last line is of step {}, the checkpoint of step "
                    "{}; bring the file back, or delete it to go on without it",
                    printable(path), out.empty() ? 0 : out.back().step, up_to));
  std::erase_if(out, [&](const Metric& m) { return m.step > up_to; });
  return out;
}

// A quarter of the context in which no token stands has no loss.
std::string nats(std::optional<double> loss, std::string_view per = "") {
  return loss ? fmt::format("{:.4f} nats{}", *loss, per) : "without a token";
}
nlohmann::ordered_json in_json(std::optional<double> loss) {
  return loss ? nlohmann::ordered_json(*loss) : nlohmann::ordered_json(nullptr);
}

using Facts = std::vector<std::pair<std::string, std::string>>;
// first: steps that calls before this one have made.
Facts facts_of(const Options& o, const TrainingResults& r, std::int64_t first) {
  const LanguageModelConfig& c = o.training.model;
  const std::string where = r.validation.packed ? " (by place in a document)" : "";
  return {{"data", o.data},
          {"width, layers, heads",
           fmt::format("{}, {}, {}", c.hidden_size, c.num_hidden_layers, c.num_attention_heads)},
          {"inner mini-batch", std::to_string(c.mini_batch_size)},
          {"context, batch", fmt::format("{} bytes, {}", o.training.context, o.training.batch)},
          {"validation loss", fmt::format("{:.4f} nats per byte ({:.4f} bits)", r.validation.loss,
                                          r.validation.loss / std::numbers::ln2)},
          {"first quarter of the context" + where, nats(r.validation.mean_between(0, 0.25), " per byte")},
          {"last quarter of the context" + where, nats(r.validation.mean_between(0.75, 1), " per byte")},
          {"bigram model", fmt::format("{:.4f} nats per byte", r.bigram)},
          {"speed", fmt::format("{:.0f} tokens per second", r.tokens_per_second)},
          {"time", format_seconds(r.seconds) + (first > 0 ? fmt::format(" since step {}", first) : "")}};
}

// Where a step's first NaN or infinity came from, and a file that makes it again.
void explain_nonfinite(const Options& o, const Trainer& trainer, ProgressLine& progress) {
  const std::optional<NonFinite> found = trainer.why_not_finite();
  if (!found) return;
  const std::string path = o.out + "/nonfinite.safetensors";
  save_reproducer(*found, path);
  progress.print(fmt::format("{}\nthis op and its operands are in {}", found->str(), printable(path)));
}

// The model and its weights of --from, and what its layers are called.
void take_model(Options& o) {
  o.start = given_model(o.from, o.training.processes->rank() == 0);
  o.training.model = o.start->config;
  o.learner = learner_name(o.start->config.ttt_layer_type);
  o.backbone = o.start->config.use_gate ? "mamba" : "transformer";
}

// How many grains a batch is cut into where --grains does not say it: as many as it was before, in a run that is gone on with, whose
// other settings are this call's.
std::int64_t usual_grains(const Options& o) {
  const std::string path = o.out + "/checkpoint.safetensors";
  const std::string written = o.training.processes->from_first([&]() -> std::string {
    if (!o.resume || !std::filesystem::exists(path)) return "";
    check_no_pipe(path);
    return std::to_string(resumed_grains(read_safetensors(path), o.training, path));
  });
  if (!written.empty()) return std::stoll(written);
  if (o.training.slices > 1) return 1;  // else they would be made one after another
  return default_grains(o.training.batch);
}

// The text, once the settings are known to go together and the folder to be one of theirs.
ByteCorpus checked_corpus(Options& o) {
  if (!o.from.empty()) take_model(o);
  else o.training.model = model_config(o);
  if (o.pack) o.training.pack = alignment_of(o.training.model);
  Transport& all = *o.training.processes;
  TrainingOptions asked = o.training;
  if (!o.grains_given) asked.grains = 0;  // found out below
  check_same_call(
      all,
      fmt::format("{}{} {} steps {} stop-after {} save-every {} validation-windows {} sample {} "
                  "memory-budget {} resume {}",
                  o.training.model.to_json(), asked.to_json(),
                  o.start ? fmt::format("from weights {}", fingerprint_of(o.start->params)) : "from the seed",
                  o.training.steps, o.stop_after, o.save_every, o.validation_windows, o.sample_bytes,
                  o.training.memory_budget, o.resume));
  if (!o.grains_given) o.training.grains = usual_grains(o);
  try {
    o.training.check();
  } catch (const ConfigError& e) {
    // Options that do not go together are a wrong call.
    throw CLI::ValidationError(with_options(e.what()));
  }
  // Packed, the shortest document is a byte and the one after it; what a context has left is empty.
  ByteCorpus corpus = ByteCorpus::load(o.data, o.pack ? 2 : o.training.context + 1);
  all.check_same(fmt::format("{:016x}", corpus.fingerprint(o.pack)), "text");
  all.on_first([&] {
    if (o.resume) check_no_pipe(o.out + "/checkpoint.safetensors");
    if (o.resume && std::filesystem::exists(o.out + "/config.json")) {
      // A wrong resume must not touch the folder.
      const std::string path = o.out + "/config.json";
      if (const auto theirs = LanguageModelConfig::from_json(read_found_file(path), path);
          theirs != o.training.model)
        throw ConfigError(fmt::format(
            "{} describes another model than the one asked for: {}; resume with the same settings",
            printable(path),
            fields_apart(parse_json(theirs.to_json()), parse_json(o.training.model.to_json()))));
    }
  });
  return corpus;
}

// What the model finds of the options when it is laid out, as that its sequences cannot be cut in this way, is a wrong call. That a plan
// needs more memory than --memory-budget gives is a run that failed.
Trainer trainer_of(const TrainingOptions& options, const ByteCorpus& corpus) {
  try {
    return {options, corpus};
  } catch (const ConfigError& e) {
    if (std::string_view(e.what()).starts_with("[plan]")) throw;
    throw CLI::ValidationError(with_options(e.what()));
  }
}

// One call of the program: from the options to a folder with a trained model and its report.
class Run {
 public:
  explicit Run(Options& o)
      : o_(o),
        processes_(*o.training.processes),
        corpus_(checked_corpus(o)),
        trainer_(trainer_of(o.training, corpus_)),
        lock_(locked()) {
    if (o.start) trainer_.start_from(std::exchange(o.start, std::nullopt)->params);
    const auto here = [&] { return o.resume && std::filesystem::exists(checkpoint()) ? "yes" : ""; };
    if (!processes_.from_first(here).empty()) trainer_.load(checkpoint());
    if (trainer_.steps_done() > o.training.steps)
      throw ConfigError(fmt::format("{}: this run has made {} steps, and --steps asks for {}; ask for more",
                                    printable(o.out), trainer_.steps_done(), o.training.steps));
    first_step_ = trainer_.steps_done();
    processes_.on_first([&] {
      if (trainer_.steps_done() > 0) metrics_ = read_metrics(metrics_path(), trainer_.steps_done());
      prepare_folder(o.out, o.resume, o.training.model, std::min(o.save_every, last_step()));
      lock_->remove_temporaries();
      for (const Metric& m : metrics_) log_ += to_line(m);
    });
  }

  void go() {
    {
      ProgressLine progress(10, speaks() ? stderr : nullptr);
      progress.print(fmt::format(
          "{} parameters, {} training bytes, {} validation bytes, plan memory {:.0f} MB",
          trainer_.parameter_count(), corpus_.bytes(Split::training).size(),
          corpus_.bytes(Split::validation).size(), static_cast<double>(trainer_.arena_bytes()) / 1e6));
      if (processes_.size() > 1)
        progress.print(fmt::format(
            "{}, {} grains of {} sequences in a step{}", processes_.description(), o_.training.grains,
            o_.training.batch / o_.training.grains,
            o_.training.slices > 1 ? fmt::format(", cut into {} slices", o_.training.slices) : ""));
      if (!trainer_.unused_parameters().empty())
        progress.print(
            fmt::format("the loss does not depend on these parameters, which stay as they start: {}",
                        fmt::join(trainer_.unused_parameters(), ", ")));
      train(progress);
      if (trainer_.steps_done() == o_.training.steps) evaluate();
      peaks_ = peaks();
    }
    if (!speaks()) return;
    if (trainer_.steps_done() == o_.training.steps) return tell();
    fmt::print("stopped after {} of {} steps; go on with --resume\n", trainer_.steps_done(),
               o_.training.steps);
    if (o_.json)
      print_json({{"steps", trainer_.steps_done()},
                  {"of_steps", o_.training.steps},
                  {"tokens_per_second", results_.tokens_per_second},
                  {"processes", processes_.size()},
                  {"peak_rss_mb_by_rank", peaks_}});
  }

 private:
  std::string checkpoint() const { return o_.out + "/checkpoint.safetensors"; }
  std::string metrics_path() const { return o_.out + "/metrics.jsonl"; }

  bool speaks() const { return processes_.rank() == 0; }

  // Of this call.
  std::int64_t last_step() const {
    return o_.stop_after > 0 ? std::min(o_.stop_after, o_.training.steps) : o_.training.steps;
  }

  // Null for a folder that is not there, of which prepare_folder tells, and where others write.
  std::unique_ptr<FolderLock> locked() const {
    std::unique_ptr<FolderLock> lock;
    processes_.on_first([&] {
      if (!o_.resume) make_folder(o_.out);
      if (std::filesystem::is_directory(o_.out)) lock = std::make_unique<FolderLock>(o_.out);
    });
    return lock;
  }

  // What each process has held at most so far, in 10^6 bytes; at rank 0.
  std::vector<double> peaks() const {
    const double mine = peak_memory_mb();
    std::vector<double> out;
    for (const Bytes& of : processes_.gather(std::as_bytes(std::span(&mine, 1))))
      std::memcpy(&out.emplace_back(), of.data(), sizeof mine);
    return out;
  }

  // Metrics first: a resumed run leaves out rows of steps after its checkpoint; missing ones are lost.
  void save() const {
    processes_.on_first([&] { write_file_atomically(metrics_path(), log_); });
    trainer_.save(checkpoint());
  }

  void train(ProgressLine& progress) {
    const double tokens_per_step = static_cast<double>(o_.training.batch * o_.training.context);
    const auto start = Clock::now();
    const std::int64_t stop = last_step();
    while (trainer_.steps_done() < stop) {
      StepResult s{};
      try {
        s = trainer_.step();
      } catch (const ValueError& e) {
        processes_.on_first([&] { explain_nonfinite(o_, trainer_, progress); });
        throw ValueError(fmt::format("{}; --lr is {}", e.what(), o_.training.lr));
      }
      double& rate = results_.tokens_per_second;
      rate = static_cast<double>(s.step - first_step_) * tokens_per_step / seconds_since(start);
      metrics_.push_back({s.step, s.loss, s.grad_norm, s.rate, rate});
      const bool saves = s.step % o_.save_every == 0;
      if (saves || s.step == stop) metrics_.back().peak_mb = peaks();
      log_ += to_line(metrics_.back());
      progress.update(
          fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s", s.step, o_.training.steps, s.loss, rate),
          static_cast<double>(s.step) / static_cast<double>(o_.training.steps));
      if (saves) save();
    }
    save();
    if (first_step_ == stop && !metrics_.empty())
      results_.tokens_per_second = metrics_.back().tokens_per_second;
  }

  void evaluate() {
    TrainingResults& r = results_;
    if (o_.pack) {
      const PackedWindows documents = trainer_.validation_documents(o_.validation_windows);
      r.validation = trainer_.validate(documents);
      r.bigram = bigram_loss(corpus_.bytes(Split::training), documents.tokens, documents.counted);
    } else {
      const Array windows = trainer_.validation_windows(o_.validation_windows);
      r.validation = trainer_.validate(windows);
      r.bigram = bigram_loss(corpus_.bytes(Split::training), windows);
    }
    if (!std::isfinite(r.validation.loss))
      throw ValueError("[train] the validation loss is not finite; the checkpoint is saved");
    processes_.on_first([&] { write_page(); });
  }

  void write_page() {
    TrainingResults& r = results_;
    const auto text = corpus_.bytes(Split::validation);
    const auto prompt = text.first(std::min<std::size_t>(64, text.size()));
    r.prompt = std::string(prompt.begin(), prompt.end());
    // What training and validation have found is not lost where reading token by token takes more memory.
    try {
      r.sample = sample_text(o_.training.model, trainer_.parameters(), r.prompt, o_.sample_bytes, 0.8,
                             o_.training.seed);
    } catch (const Error& e) {
      r.why_no_sample = e.what();
      fmt::print(stderr, "train_lm: no sample was written: {}\n", e.what());
    }
    r.seconds = seconds_since(start_);
    write_file_atomically(
        o_.out + "/report.html",
        training_report(fmt::format("{} layers, {} backbone, {} parameters, {} steps", o_.learner,
                                    o_.backbone, trainer_.parameter_count(), trainer_.steps_done()),
                        facts_of(o_, r, first_step_), metrics_, r));
    write_file_atomically(o_.out + "/loss_by_position.svg", svg(position_chart(r)));
    for (const Validation::Inner& layer : r.validation.inner)
      write_file_atomically(fmt::format("{}/inner_loss.{}.svg", o_.out, layer.layer),
                            svg(inner_chart(layer)));
  }

  void tell() const {
    const TrainingResults& r = results_;
    const Validation& v = r.validation;
    fmt::print(
        "validation loss {:.4f} nats per byte ({:.4f} bits); bigram {:.4f}; first quarter of the context{} "
        "{}, last quarter {}\n",
        v.loss, v.loss / std::numbers::ln2, r.bigram, v.packed ? ", by place in a document," : "",
        nats(v.mean_between(0, 0.25)), nats(v.mean_between(0.75, 1)));
    fmt::print("{} in {}, {:.0f} tokens/s, peak memory {:.0f} MB{}\nreport: {}/report.html\n", o_.learner,
               format_seconds(r.seconds), r.tokens_per_second, std::ranges::max(peaks_),
               processes_.size() > 1 ? fmt::format(" in the largest of {} processes", processes_.size()) : "",
               printable(o_.out));
    if (o_.json)
      print_json({{"val_loss", v.loss},
                  {"val_bpb", v.loss / std::numbers::ln2},
                  {"loss_first_quarter", in_json(v.mean_between(0, 0.25))},
                  {"loss_last_quarter", in_json(v.mean_between(0.75, 1))},
                  {"bigram_loss", r.bigram},
                  {"parameters", trainer_.parameter_count()},
                  {"tokens_per_second", r.tokens_per_second},
                  {"processes", processes_.size()},
                  {"peak_rss_mb", std::ranges::max(peaks_)},
                  {"peak_rss_mb_by_rank", peaks_},
                  {"seconds", r.seconds}});
  }

  const Options& o_;
  Transport& processes_;
  const Clock::time_point start_ = Clock::now();
  std::int64_t first_step_ = 0;  // how many the calls before this one have made
  const ByteCorpus corpus_;
  Trainer trainer_;
  const std::unique_ptr<FolderLock> lock_;
  std::vector<Metric> metrics_;
  std::string log_;
  TrainingResults results_;
  std::vector<double> peaks_;  // at rank 0
};

void add_options(CLI::App& app, Options& o) {
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
         [&](double mb) {
           if (!std::isfinite(mb)) throw CLI::ValidationError("--memory-budget", "must be a finite number");
           o.training.memory_budget = static_cast<std::size_t>(std::round(mb * 1e6));
         },
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

}  // namespace

int nestgrad::programs::train_lm(int argc, char** argv) {
  CLI::App app{
      "Trains a byte-level language model whose sequence layers are learners, and writes metrics.jsonl,\n"
      "checkpoint.safetensors, config.json, report.html and its charts as SVG into a folder.",
      "train_lm"};
  Options o;
  add_options(app, o);
  add_device_option(app);
  const auto run = [&] {
    if (o.from.empty() && o.attention_window == 0 && layer_type(o.learner) == kEndToEnd)
      throw CLI::ValidationError(
          "--attention-window", "ttt-e2e reads through attention, which needs a window; leave it out for 64");
    o.training.processes = open_processes();
    o.grains_given = app.count("--grains") > 0;
    Run(o).go();
  };
  return run_program(argc, argv, app, run, Processes::several);
}
