#include "reproduce/language_runs.h"

#include <chrono>
#include <map>
#include <mutex>

#include "autograd/grad.h"
#include "ttt/agreement.h"

namespace nestgrad::reproduce {

ByteCorpus corpus_of(const Settings& settings) {
  constexpr std::int64_t kLeast = 1024;  // of each part; a window that is longer says so when it is drawn
  static std::mutex mutex;
  static std::map<std::string, ByteCorpus> known;
  const std::string path = settings.data.empty() ? NESTGRAD_DEFAULT_DATA : settings.data;
  const std::lock_guard lock(mutex);
  auto at = known.find(path);
  if (at == known.end()) at = known.emplace(path, ByteCorpus::load(path, kLeast)).first;
  return at->second;
}

LanguageModelConfig model_of(std::int64_t width, std::int64_t layers, std::int64_t heads,
                             std::int64_t mini_batch, const std::string& ttt_layer_type) {
  LanguageModelConfig c;
  c.hidden_size = width;
  c.intermediate_size = published_mlp_width(width);
  c.num_hidden_layers = layers;
  c.num_attention_heads = heads;
  c.mini_batch_size = mini_batch;
  c.ttt_layer_type = ttt_layer_type;
  return c;
}

LogitsFn function_of(const LanguageRun& run) {
  return language_model(run.model, {.system = run.system, .task = run.task});
}

ttt::System with_policy(ttt::System system, std::function<void(ttt::Policy& policy)> change) {
  system.policy = [own = std::move(system.policy), change = std::move(change)](const ttt::SystemSizes& s) {
    ttt::Policy policy = own(s);
    change(policy);
    return policy;
  };
  return system;
}

std::unique_ptr<Trainer> trainer_of(const LanguageRun& run, const Task& task) {
  TrainingOptions options;
  options.model = run.model;
  options.steps = run.steps, options.batch = run.batch, options.context = run.context;
  options.lr = run.lr;
  options.warmup = run.steps / 10;
  options.seed = task.seed;
  const ByteCorpus corpus = corpus_of(task.settings);
  if (!run.system && !run.task) return std::make_unique<Trainer>(options, corpus);
  return std::make_unique<Trainer>(options, corpus, function_of(run));
}

std::vector<double> train(Trainer& trainer, const LanguageRun& run, const Task& task, Measured& out,
                          double share) {
  std::vector<double> losses;
  const auto start = std::chrono::steady_clock::now();
  while (trainer.steps_done() < run.steps) {
    losses.push_back(trainer.step().loss);
    if (task.progress)
      task.progress(share * static_cast<double>(trainer.steps_done()) / static_cast<double>(run.steps));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  out.clock["tokens/s"] = static_cast<double>(run.steps * run.batch * run.context) / seconds;
  return losses;
}

Validation measure(const Trainer& trainer, const LanguageRun& run, Measured& out, std::size_t bins) {
  Validation v = trainer.validate(trainer.validation_windows(run.windows));
  out.numbers["loss"] = v.loss;
  for (const auto& [name, part] : {std::pair{"first quarter", v.mean_between(0, 0.25)},
                                   std::pair{"last quarter", v.mean_between(0.75, 1)}})
    if (part) out.numbers[name] = *part;
  out.curves["loss by position"] = binned(v.loss_by_position, bins);
  return v;
}

namespace {

// The losses of a model's tokens, then the gradients of their mean.
ttt::Arrays losses_and_gradients(const LogitsFn& model, const StateDict& params, const Array& tokens) {
  const TracedModel traced =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        const Tensor losses = next_token_loss(model, Params(table), in[0], stream);
        std::vector<Tensor> out{losses};
        for (const Tensor& gradient : grad(mean(losses), table.tensors(), {.allow_zero = true}))
          out.push_back(gradient);
        return out;
      });
  return traced.function(traced.bind({tokens}, {&params}));
}

}  // namespace

Apart apart_in_f64(const LogitsFn& a, const LogitsFn& b, const StateDict& params, const Array& tokens) {
  StateDict wide;
  for (const auto& [name, value] : params) wide.emplace(name, value.cast(DType::f64));
  const ttt::Arrays of_a = losses_and_gradients(a, wide, tokens),
                    of_b = losses_and_gradients(b, wide, tokens);
  return {ttt::worst_error({of_a[0]}, {of_b[0]}),
          ttt::worst_error({of_a.begin() + 1, of_a.end()}, {of_b.begin() + 1, of_b.end()})};
}

std::vector<double> binned(const std::vector<double>& numbers, std::size_t bins) {
  const std::size_t n = numbers.size(), count = std::min(bins, n);
  std::vector<double> out;
  for (std::size_t b = 0; b < count; ++b) {
    const std::size_t from = b * n / count, to = (b + 1) * n / count;
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += numbers[i];
    out.push_back(sum / static_cast<double>(to - from));
  }
  return out;
}

}  // namespace nestgrad::reproduce
