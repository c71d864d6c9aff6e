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
#include "programs/train_lm_call.h"
#include "programs/training_folder.h"

using namespace nestgrad;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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
Facts facts_of(const TrainingCall& o, const TrainingResults& r, std::int64_t first) {
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
void explain_nonfinite(const TrainingCall& o, const Trainer& trainer, ProgressLine& progress) {
  const std::optional<NonFinite> found = trainer.why_not_finite();
  if (!found) return;
  const std::string path = o.out + "/nonfinite.safetensors";
  save_reproducer(*found, path);
  progress.print(fmt::format("{}\nthis op and its operands are in {}", found->str(), printable(path)));
}

// The model and its weights of --from, and what its layers are called.
void take_model(TrainingCall& o) {
  o.start = given_model(o.from, o.training.processes->rank() == 0);
  o.training.model = o.start->config;
  o.learner = learner_name(o.start->config.ttt_layer_type);
  o.backbone = o.start->config.use_gate ? "mamba" : "transformer";
}

// How many grains a batch is cut into where --grains does not say it: as many as it was before, in a run that is gone on with, whose
// other settings are this call's.
std::int64_t usual_grains(const TrainingCall& o) {
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
ByteCorpus checked_corpus(TrainingCall& o) {
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
  explicit Run(TrainingCall& o)
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
      say(fmt::format("train_lm: no sample was written: {}", escaped(e.what())));
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

  const TrainingCall& o_;
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

}  // namespace

int nestgrad::programs::train_lm(int argc, char** argv) {
  CLI::App app{
      "Trains a byte-level language model whose sequence layers are learners, and writes metrics.jsonl,\n"
      "checkpoint.safetensors, config.json, report.html and its charts as SVG into a folder.",
      "train_lm"};
  TrainingCall o;
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
