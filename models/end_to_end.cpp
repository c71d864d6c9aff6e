#include "models/end_to_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "models/end_to_end_block.h"
#include "models/optimizer.h"
#include "ops/numerics/functions.h"
#include "ttt/layer.h"

namespace nestgrad {

void EndToEndConfig::check() const {
  check_size("end_to_end", {.vocab_size = vocab_size,
                            .hidden_size = hidden_size,
                            .intermediate_size = intermediate_size,
                            .num_hidden_layers = num_hidden_layers,
                            .num_attention_heads = num_attention_heads});
  check_extent("end_to_end", "window", window, std::int64_t{1} << 30);
  check_extent("end_to_end", "chunk", chunk, std::int64_t{1} << 24);
  if (hidden_size % (2 * num_attention_heads))
    throw ConfigError(fmt::format("[end_to_end] hidden_size {} must give each of {} heads an even dimension",
                                  hidden_size, num_attention_heads));
  if (suffix_len < 0 || suffix_len > num_hidden_layers)
    throw ConfigError(
        fmt::format("[end_to_end] {} of {} blocks cannot have a prime MLP", suffix_len, num_hidden_layers));
  if (!(rate >= 0) || !std::isfinite(rate) || (learned_rate && rate == 0))
    throw ConfigError(fmt::format("[end_to_end] the rate must be {}, it is {}",
                                  learned_rate ? "positive if it is learned" : "finite and not negative",
                                  rate));
  if (!std::isfinite(clip))
    throw ConfigError(
        fmt::format("[end_to_end] clip must be finite (0 or less clips nothing), it is {}", clip));
  if (!(rate_init >= 0) || !std::isfinite(rate_init))
    throw ConfigError(
        fmt::format("[end_to_end] rate_init must be finite and not negative, it is {}", rate_init));
  if (rate_warmup_steps < 0)
    throw ConfigError(
        fmt::format("[end_to_end] rate_warmup_steps must not be negative, it is {}", rate_warmup_steps));
  if (!(rms_norm_eps >= 0) || !std::isfinite(rms_norm_eps))
    throw ConfigError(
        fmt::format("[end_to_end] rms_norm_eps must be finite and not negative, it is {}", rms_norm_eps));
  if (!(rope_theta > 0) || !std::isfinite(rope_theta))
    throw ConfigError(
        fmt::format("[end_to_end] rope_theta must be finite and positive, it is {}", rope_theta));
  if (bos_token < -1 || bos_token >= vocab_size)
    throw ConfigError(fmt::format("[end_to_end] bos_token is {}; it must be one of {} tokens, or -1 for none",
                                  bos_token, vocab_size));
  if (meta == ttt::Policy::Meta::truncated)
    throw ConfigError("[end_to_end] the meta-gradient is full or first_order; it cannot be truncated");
}

std::int64_t EndToEndConfig::learning_blocks() const {
  return suffix_len > 0 ? suffix_len : std::max<std::int64_t>(1, num_hidden_layers / 4);
}

EndToEndConfig end_to_end_config(const LanguageModelConfig& config, int checkpoint_every) {
  EndToEndConfig c;
  c.vocab_size = config.vocab_size;
  c.hidden_size = config.hidden_size;
  c.intermediate_size = config.intermediate_size;
  c.num_hidden_layers = config.num_hidden_layers;
  c.num_attention_heads = config.num_attention_heads;
  if (config.attention_window > 0) c.window = config.attention_window;
  c.chunk = config.mini_batch_size;
  c.learned_rate = true;
  c.rate_init = config.ilr_init;
  c.rate_warmup_steps = config.ilr_warmup_steps;
  c.checkpoint_every = checkpoint_every;
  c.rms_norm_eps = config.rms_norm_eps;
  c.rope_theta = config.rope_theta;
  return c;
}

// The last blocks: what learns, with its loss and its step.
class EndToEndModel::Learner {
 public:
  static constexpr std::size_t kWeights = 3;  // of a prime MLP

  Learner(const EndToEndConfig& c, const Params& params, Tensor step) : config_(c) {
    config_.check();
    config_.suffix_len = config_.learning_blocks();
    const Params model = params.at("language_model.model"), h = model.at("h");
    embedding_ = model("wte.weight", {config_.vocab_size, config_.hidden_size});
    const std::int64_t fixed = config_.num_hidden_layers - config_.suffix_len;
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i)
      (i < fixed ? prefix_ : suffix_)
          .emplace_back(config_, h, i, config_.suffix_len, i < fixed ? -1 : i - fixed);
    norm_ = model("ln_f.weight", {config_.hidden_size}, Init::ones());
    if (config_.clip > 0) optimizer_.clip(ttt::Per::all, config_.clip);
    optimizer_.scale(rate_in(step, params));
  }

  const EndToEndConfig& config() const { return config_; }
  DType dtype() const { return embedding_.dtype(); }

  ttt::Weights start(std::int64_t batch) const {
    std::vector<ttt::FastWeight> out;
    for (std::size_t i = 0; i < suffix_.size(); ++i)
      for (std::size_t j = 0; j < kWeights; ++j) {
        const Tensor w = suffix_[i].prime_start()[j];
        out.push_back(ttt::matrix(fmt::format("block {}.w{}", prefix_.size() + i, j + 1),
                                  broadcast_to(w, {batch, w.dim(0), w.dim(1)})));
      }
    return ttt::Weights(std::move(out));
  }

  // tokens [batch, time] -> what the first blocks make of them, [batch, time, width].
  Tensor first_blocks(Tensor tokens) const {
    Tensor h = gather(embedding_, tokens);
    for (const EndToEndBlock& block : prefix_) h = block.whole(h, {});
    return h;
  }
  // The same of one token.
  Tensor first_blocks(Tensor token, ttt::Stream& stream) const {
    Tensor h = gather(embedding_, token);
    const Tensor position = stream.counter("position", ttt::Stream::kForever, h.dtype());
    for (std::size_t i = 0; i < prefix_.size(); ++i)
      h = prefix_[i].token(h, position, stream, fmt::format("block {}", i));
    return h;
  }
  // The last blocks over a whole text.
  Tensor whole(Tensor h, const std::vector<Tensor>& w) const {
    for (std::size_t i = 0; i < suffix_.size(); ++i) h = suffix_[i].whole(h, of_block(w, i));
    return h;
  }
  // Over a chunk.
  Tensor chunk(Tensor h, const std::vector<Tensor>& w, std::vector<EndToEndCache>& caches,
               Tensor there) const {
    for (std::size_t i = 0; i < suffix_.size(); ++i)
      h = suffix_[i].chunk(h, of_block(w, i), caches[i], there);
    return h;
  }
  Tensor logits(Tensor h) const { return ttt::linear(rms_norm(h, norm_, config_.rms_norm_eps), embedding_); }
  // 0 where the next token is bos_token, else 1, [batch, time]; undefined: there is no such token.
  Tensor counts(Tensor next) const {
    if (config_.bos_token < 0) return {};
    return 1.0 - equal(cast(next, dtype()), static_cast<double>(config_.bos_token));
  }
  // The loss of each next token, [batch, time].
  Tensor of_all(Tensor h, Tensor next) const { return cross_entropy(logits(h), next); }
  // 0 where a token does not count.
  Tensor counted(Tensor each, Tensor next) const {
    const Tensor counted = counts(next);
    return counted.defined() ? each * counted : each;
  }
  Tensor loss(Tensor h, Tensor next) const { return counted(of_all(h, next), next); }
  // The inner loss of each sequence's chunk, [batch, 1].
  Tensor inner_loss(Tensor loss, Tensor next) const {
    const Tensor counted = counts(next);
    if (!counted.defined()) return mean(loss, {-1}, kKeep);
    return sum(loss, {-1}, kKeep) / max(sum(counted, {-1}, kKeep), 1.0);
  }

  // Weights after one inner step, and the square of its clipped gradient's norm, [batch, 1, 1].
  std::pair<std::vector<Tensor>, Tensor> step(const ttt::Weights& w, std::vector<Tensor> gradients) const {
    gradients = optimizer_.joint(std::move(gradients));
    std::vector<Tensor> next;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      next.push_back(optimizer_.step(std::array{w.at(i).value}, gradients[i], {}, w.at(i))[0]);
    return {next, sum_of_squares(gradients, true)};
  }

  std::vector<EndToEndCache> empty_caches(DType dtype, std::int64_t batch, std::int64_t rows) const {
    const std::int64_t heads = config_.num_attention_heads;
    const Tensor none = rows > 0 ? zeros(dtype, {batch, heads, rows, config_.hidden_size / heads}) : Tensor();
    return std::vector<EndToEndCache>(suffix_.size(), EndToEndCache{none, none});
  }

 private:
  ttt::Hyper rate_in(Tensor step, const Params& params) const {
    const bool ramp = step.defined() && config_.rate_warmup_steps > 0;
    if (!config_.learned_rate && !ramp) return config_.rate;
    const Tensor rate = config_.learned_rate
                            ? exp(params("inner_log_rate", {}, {Init::Kind::constant, m::log(config_.rate)}))
                            : constant(config_.rate, dtype());
    if (!ramp) return rate;
    const Tensor share =
        min((cast(step, dtype()) + 1.0) * (1.0 / static_cast<double>(config_.rate_warmup_steps)), 1.0);
    return config_.rate_init + (rate - config_.rate_init) * share;
  }

  static std::span<const Tensor> of_block(const std::vector<Tensor>& w, std::size_t block) {
    return std::span(w).subspan(block * kWeights, kWeights);
  }

  EndToEndConfig config_;
  Tensor embedding_, norm_;
  std::vector<EndToEndBlock> prefix_, suffix_;
  ttt::InnerOptimizer optimizer_;
};

// What is carried from chunk to chunk.
struct EndToEndModel::Memory {
  std::vector<Tensor> weights;
  std::vector<EndToEndCache> caches;  // of the blocks that learn
  Tensor there;  // [rows of a cache]: 0 where one is no token; undefined: they have no rows

  static Memory start(const Learner& learner, DType dtype, std::int64_t batch, std::int64_t rows) {
    return {learner.start(batch).values(), learner.empty_caches(dtype, batch, rows),
            rows > 0 ? zeros(dtype, {rows}) : Tensor()};
  }
  std::vector<Tensor> rows() const {
    std::vector<Tensor> out;
    if (!there.defined()) return out;
    for (const EndToEndCache& c : caches) out.insert(out.end(), {c.keys, c.values});
    out.push_back(there);
    return out;
  }
  std::vector<Tensor> flat() const {
    std::vector<Tensor> out = weights;
    std::ranges::copy(rows(), std::back_inserter(out));
    return out;
  }
  Memory with(std::span<const Tensor> new_weights, std::span<const Tensor> new_rows) const {
    Memory out = *this;
    out.weights.assign(new_weights.begin(), new_weights.end());
    if (!there.defined()) return out;
    auto at = new_rows.begin();
    for (EndToEndCache& c : out.caches) c.keys = *at++, c.values = *at++;
    out.there = *at;
    return out;
  }
  Memory with(std::span<const Tensor> flat) const {
    return with(flat.first(weights.size()), flat.subspan(weights.size()));
  }
  // Reads rows h [batch, tokens, width] with these weights: the states of the last block. The caches go on by them.
  Tensor read(const Learner& learner, const std::vector<Tensor>& w, Tensor h) {
    const Tensor out = learner.chunk(h, w, caches, there);
    if (!there.defined()) return out;
    const std::int64_t rows = there.dim(0), own = h.dim(1);
    const Tensor tokens = broadcast_to(constant(1.0, h.dtype()), {own});
    there = slice(concat({there, tokens}, 0), 0, own, own + rows);
    return out;
  }
};

// A chunk read and learnt from.
struct EndToEndModel::Chunk {
  Tensor of_all, clipped_norm;  // [batch, tokens]; [batch]
  Memory after;

  // rows: of the chunk, as the first blocks leave them; next: its labels.
  Chunk(const Learner& learner, const Memory& before, Tensor rows, Tensor next) : after(before) {
    const bool full = learner.config().meta == ttt::Policy::Meta::full;
    std::vector<Tensor> at = before.weights;
    for (Tensor& w : at) w = probe(full ? w : stop_gradient(w));
    of_all = learner.of_all(after.read(learner, at, rows), next);
    const Tensor loss = learner.counted(of_all, next);
    const std::vector<Tensor> gradients = grad(sum(learner.inner_loss(loss, next)), at);
    if (!full) {
      after = before;
      of_all = learner.of_all(after.read(learner, before.weights, rows), next);
    }
    const std::int64_t batch = rows.dim(0);
    const auto [weights, squares] = learner.step(learner.start(batch).with(before.weights), gradients);
    after.weights = weights;
    clipped_norm = sqrt(reshape(squares, {batch}));
  }
};

namespace {

// [batch, time, ..] -> [chunks, batch, chunk, ..] of the whole chunks.
Tensor in_chunks(Tensor x, std::int64_t chunk) {
  const std::int64_t chunks = x.dim(1) / chunk;
  Shape shape = x.shape();
  shape[1] = chunk, shape.insert(shape.begin() + 1, chunks);
  std::vector<int> order(shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::swap(order[0], order[1]);
  return permute(reshape(slice(x, 1, 0, chunks * chunk), shape), order);
}

}  // namespace

Tensor EndToEndReading::mean_loss() const {
  return counts.defined() ? sum(loss) / max(sum(counts), 1.0) : mean(loss);
}

EndToEndModel::EndToEndModel(const EndToEndConfig& config, const Params& params, Tensor step)
    : learner_(std::make_unique<Learner>(config, params, step)) {}

EndToEndModel::~EndToEndModel() = default;

ttt::Weights EndToEndModel::start(std::int64_t batch) const { return learner_->start(batch); }

Tensor EndToEndModel::loss_at(const ttt::Weights& w, Tensor tokens) const {
  const std::int64_t time = tokens.dim(1) - 1;
  const Tensor h = learner_->first_blocks(slice(tokens, 1, 0, time));
  return learner_->loss(learner_->whole(h, w.values()), slice(tokens, 1, 1, time + 1));
}

EndToEndReading EndToEndModel::read(Tensor tokens) const {
  const EndToEndConfig& c = learner_->config();
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1) - 1, whole = time / c.chunk * c.chunk;
  const Tensor h = learner_->first_blocks(slice(tokens, 1, 0, time)), next = slice(tokens, 1, 1, time + 1);
  Memory memory = Memory::start(*learner_, h.dtype(), batch, std::min(c.window, time) - 1);
  EndToEndReading out;
  out.counts = learner_->counts(next);
  std::vector<Tensor> losses;
  if (whole > 0) {
    const ScanResult r = scan(
        [&](const std::vector<Tensor>& before, const std::vector<Tensor>& xs) -> StepOutput {
          const Chunk chunk(*learner_, memory.with(before), xs[0], xs[1]);
          return {chunk.after.flat(), {chunk.of_all, chunk.clipped_norm}};
        },
        memory.flat(), {in_chunks(h, c.chunk), in_chunks(next, c.chunk)},
        {.checkpoint_every = c.checkpoint_every});
    losses.push_back(reshape(permute(r.ys[0], {1, 0, 2}), {batch, whole}));
    out.clipped_norm = permute(r.ys[1], {1, 0});
    memory = memory.with(r.carries);
  }
  out.last = learner_->start(batch).with(memory.weights);
  if (whole < time)
    losses.push_back(learner_->of_all(memory.read(*learner_, memory.weights, slice(h, 1, whole, time)),
                                      slice(next, 1, whole, time)));
  out.of_all = losses.size() == 1 ? losses[0] : concat(losses, 1);
  out.loss = out.counts.defined() ? out.of_all * out.counts : out.of_all;
  return out;
}

std::vector<EndToEndStep> EndToEndModel::steps(Tensor tokens) const {
  const EndToEndConfig& c = learner_->config();
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1) - 1;
  if (time < c.chunk || time % c.chunk != 0)
    throw ShapeError(fmt::format("[end_to_end] {} tokens are no whole chunks of {}", time, c.chunk));
  const Tensor h = learner_->first_blocks(slice(tokens, 1, 0, time)), next = slice(tokens, 1, 1, time + 1);
  const auto probes = [](std::vector<Tensor> of) {
    for (Tensor& w : of) w = probe(w);
    return of;
  };
  Memory memory = Memory::start(*learner_, h.dtype(), batch, std::min(c.window, time) - 1);
  const ttt::Weights names = learner_->start(batch);
  std::vector<EndToEndStep> out;
  for (std::int64_t begin = 0; begin < time; begin += c.chunk) {
    const Tensor rows = slice(h, 1, begin, begin + c.chunk), labels = slice(next, 1, begin, begin + c.chunk);
    EndToEndStep step;
    const std::vector<Tensor> read = probes(memory.weights), learnt = probes(memory.weights);
    step.read = names.with(read), step.learnt = names.with(learnt);
    Memory after = memory, inner = memory, again = memory;
    step.loss = learner_->loss(after.read(*learner_, read, rows), labels);
    const Tensor inner_loss = learner_->loss(inner.read(*learner_, learnt, rows), labels);
    const std::vector<Tensor> gradients = grad(sum(learner_->inner_loss(inner_loss, labels)), learnt);
    const Tensor squares = sum_of_squares(gradients, true);
    const auto [weights, clipped] = learner_->step(names.with(memory.weights), gradients);
    step.norm = sqrt(reshape(squares, {batch})), step.clipped_norm = sqrt(reshape(clipped, {batch}));
    step.loss_after = learner_->loss(again.read(*learner_, weights, rows), labels);
    memory = after;
    memory.weights = weights;
    out.push_back(std::move(step));
  }
  return out;
}

// What is carried from token to token, besides what the first blocks carry: `prime`, the weights; `cache`, of the
// tokens before this one; of the chunk that is being read `chunk.cache`, of the tokens before it, `chunk.rows` and
// `chunk.tokens`, and `chunk.slot`.
namespace {

std::vector<Tensor> states(ttt::Stream& stream, const std::string& name, std::vector<Tensor> start) {
  for (std::size_t i = 0; i < start.size(); ++i)
    start[i] = stream.state(fmt::format("{} {}", name, i), start[i]);
  return start;
}

void carry(ttt::Stream& stream, const std::string& name, const std::vector<Tensor>& next) {
  for (std::size_t i = 0; i < next.size(); ++i) stream.carry(fmt::format("{} {}", name, i), next[i]);
}

void carry_chunk(ttt::Stream& stream, const std::string& name, const std::vector<Tensor>& next,
                 std::int64_t chunk) {
  for (std::size_t i = 0; i < next.size(); ++i)
    stream.carry_chunk(fmt::format("{} {}", name, i), next[i], chunk, {});
}

}  // namespace

Tensor EndToEndModel::step(Tensor token, ttt::Stream& stream) const {
  if (stream.is_learning()) {
    learn(token, stream);
    return {};
  }
  const EndToEndConfig& c = learner_->config();
  const std::int64_t batch = token.dim(0);
  const Tensor h = learner_->first_blocks(token, stream);
  const DType dtype = h.dtype();
  const Memory start = Memory::start(*learner_, dtype, batch, c.window - 1);
  Memory now = start.with(states(stream, "prime", start.weights), states(stream, "cache", start.rows()));
  const Tensor out = learner_->logits(now.read(*learner_, now.weights, h));
  carry_chunk(stream, "prime", now.weights, c.chunk);
  carry(stream, "cache", now.rows());
  carry_chunk(stream, "chunk.cache", states(stream, "chunk.cache", start.rows()), c.chunk);

  const Tensor slot = stream.counter("chunk.slot", c.chunk, dtype);
  const auto keep = [&](const char* name, Tensor row) {  // [batch, 1, size], in its place
    const Tensor rows = stream.state(name, zeros(dtype, {batch, c.chunk, row.dim(2)}));
    stream.carry_row(name, select(equal(iota(dtype, {c.chunk, 1}, 0), slot), row, rows), row, slot);
  };
  keep("chunk.rows", h);
  keep("chunk.tokens", reshape(cast(token, dtype), {batch, 1, 1}));
  return out;
}

void EndToEndModel::learn(Tensor next, ttt::Stream& stream) const {
  const EndToEndConfig& c = learner_->config();
  const std::int64_t batch = next.dim(0);
  const DType dtype = learner_->dtype();
  const Memory start = Memory::start(*learner_, dtype, batch, c.window - 1),
               before = start.with(states(stream, "prime", start.weights),
                                   states(stream, "chunk.cache", start.rows()));
  const std::vector<Tensor> now = states(stream, "cache", start.rows());
  const auto kept = [&](const char* name, std::int64_t size) {
    const Tensor rows = stream.state(name, zeros(dtype, {batch, c.chunk, size}));
    stream.carry(name, rows);
    return rows;
  };
  const Tensor rows = kept("chunk.rows", c.hidden_size),
               read = cast(reshape(kept("chunk.tokens", 1), {batch, c.chunk}), DType::i32);
  const Tensor labels = c.chunk == 1 ? next : concat({slice(read, 1, 1, c.chunk), next}, 1);
  carry_chunk(stream, "prime", Chunk(*learner_, before, rows, labels).after.weights, c.chunk);
  carry(stream, "cache", now);
  carry_chunk(stream, "chunk.cache", now, c.chunk);
}

}  // namespace nestgrad
