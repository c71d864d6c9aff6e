#include "models/end_to_end.h"

#include <fmt/format.h>

#include <cmath>

#include "models/config.h"
#include "ops/numerics/functions.h"
#include "ttt/attention.h"
#include "ttt/compose.h"
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
  if (fast_layers < 0 || fast_layers > num_hidden_layers)
    throw ConfigError(
        fmt::format("[end_to_end] {} of {} blocks cannot have an extra MLP", fast_layers, num_hidden_layers));
  if (!(rate >= 0) || !std::isfinite(rate) || (learned_rate && rate == 0))
    throw ConfigError(fmt::format("[end_to_end] the rate must be {}, it is {}",
                                  learned_rate ? "positive if it is learned" : "finite and not negative",
                                  rate));
}

namespace {

// A score that no softmax notices, finite in every type.
constexpr double kUnread = 1e9;

// A pre-norm block: attention in a window, the extra MLP if it has one, the MLP.
struct Block {
  Block(const EndToEndConfig& c, const Params& params, bool learns) : config(c) {
    const std::int64_t width = c.hidden_size, hidden = c.intermediate_size;
    const Params own = params.at("seq_modeling_block"), mlp = params.at("mlp");
    seq_norm = params("seq_norm.weight", {width}, Init::ones());
    q = own("q_proj.weight", {width, width});
    k = own("k_proj.weight", {width, width});
    v = own("v_proj.weight", {width, width});
    o = own("o_proj.weight", {width, width});
    ffn_norm = params("ffn_norm.weight", {width}, Init::ones());
    gate = mlp("gate_proj.weight", {hidden, width});
    up = mlp("up_proj.weight", {hidden, width});
    down = mlp("down_proj.weight", {width, hidden});
    if (!learns) return;
    fast_norm = params("fast_norm.weight", {width}, Init::ones());
    fast = ttt::swiglu(params.at("fast_mlp"), {.heads = 1, .in = width, .hidden = hidden, .out = width});
  }

  Tensor norm(Tensor h, Tensor gain) const { return rms_norm(h, gain, config.rms_norm_eps); }

  // h [batch, time, width]. there [batch, time, 1], or undefined: 0 where a row is no token, so that nobody
  // reads it.
  Tensor attend(Tensor h, Tensor there) const {
    const Tensor x = norm(h, seq_norm), positions = iota(h.dtype(), {h.dim(1)}, 0);
    const auto heads = [&](Tensor weight) {
      return ttt::split_heads(ttt::linear(x, weight), config.num_attention_heads);
    };
    Tensor queries = rope(heads(q), positions, config.rope_theta),
           keys = rope(heads(k), positions, config.rope_theta);
    const double scale = 1.0 / std::sqrt(static_cast<double>(queries.dim(3)));
    if (there.defined()) {  // a feature more, by which every query scores such a key out of reach
      const Shape column{queries.dim(0), queries.dim(1), queries.dim(2), 1};
      const Tensor mark = reshape((there - 1.0) * kUnread, {column[0], 1, column[2], 1});
      queries = concat({queries, broadcast_to(constant(1.0, h.dtype()), column)}, 3);
      keys = concat({keys, broadcast_to(mark, column)}, 3);
    }
    const Tensor mixed = ttt::attention(queries, keys, heads(v), {.window = config.window, .scale = scale});
    return ttt::linear(ttt::join_heads(mixed), o);
  }

  // w: the extra MLP's weights.
  Tensor operator()(Tensor h, Tensor there, const ttt::Weights& w) const {
    h = h + attend(h, there);
    if (fast_norm.defined()) {
      const Tensor x = norm(h, fast_norm);
      h = h + reshape(fast.f(w, reshape(x, {x.dim(0), 1, x.dim(1), x.dim(2)})), h.shape());
    }
    const Tensor x = norm(h, ffn_norm);
    return h + ttt::linear(silu(ttt::linear(x, gate)) * ttt::linear(x, up), down);
  }

  const EndToEndConfig& config;
  Tensor seq_norm, q, k, v, o, fast_norm, ffn_norm, gate, up, down;
  ttt::Model fast;
};

// rows [batch, 1, time, dim] -> for each chunk its own rows and the `before` ones in front of them, one chunk
// after the other. Zeros stand before the first.
Tensor with_rows_before(Tensor rows, std::int64_t chunk, std::int64_t before) {
  const std::int64_t time = rows.dim(2);
  const Tensor padded = pad(rows, 2, before, 0);
  std::vector<Tensor> parts;
  for (std::int64_t begin = 0; begin < time; begin += chunk)
    parts.push_back(slice(padded, 2, begin, before + std::min(begin + chunk, time)));
  return parts.size() == 1 ? parts[0] : concat(parts, 2);
}

}  // namespace

// Model and learner in one. k: rows [batch, 1, before + own, width + 1], the states of a chunk's tokens and
// of those before it as the first blocks left them, and a last feature that is 1 for tokens and 0 for rows
// before the first. v: i32 [batch, 1, before + own, 1], the next tokens.
class EndToEndModel::Learner : public ttt::Learner {
 public:
  Learner(const EndToEndConfig& c, const Params& params) : config_(c) {
    config_.check();
    if (config_.fast_layers == 0)
      config_.fast_layers = std::max<std::int64_t>(1, config_.num_hidden_layers / 4);
    const Params model = params.at("model");
    embedding_ = model("embed_tokens.weight", {config_.vocab_size, config_.hidden_size});
    std::vector<ttt::FastWeight> start;
    const std::int64_t fixed = config_.num_hidden_layers - config_.fast_layers;
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string name = fmt::format("layers.{}", i);
      std::vector<Block>& part = i < fixed ? fixed_ : fast_;
      part.emplace_back(config_, model.at(name), i >= fixed);
      const ttt::Weights& own = part.back().fast.start;
      for (std::size_t j = 0; j < own.size(); ++j)
        start.push_back(ttt::matrix(fmt::format("{}.{}", name, own.at(j).name), own.at(j).value));
    }
    start_ = ttt::Weights(std::move(start));
    norm_ = model("norm.weight", {config_.hidden_size}, Init::ones());
    const ttt::Hyper rate =
        config_.learned_rate
            ? ttt::Hyper(exp(params("inner_log_rate", {1, 1}, {Init::Kind::constant, m::log(config_.rate)})))
            : ttt::Hyper(config_.rate);
    optimizer_.clip(ttt::Per::all, config_.clip).scale(rate);
  }

  ttt::Weights init() const override { return start_; }
  ttt::InnerOptimizer optimizer() const override { return optimizer_; }
  Description describe() const override {
    return {"the last blocks of a transformer", "next-token cross-entropy"};
  }

  // -> logits of the chunk's own tokens, [batch, 1, own, vocab].
  Tensor predict(const ttt::Weights& w, Tensor x) const override {
    const std::int64_t width = config_.hidden_size, rows = x.dim(2);
    const Tensor flat = reshape(x, {x.dim(0), rows, width + 1});
    const Tensor h = last_blocks(w, slice(flat, 2, 0, width), slice(flat, 2, width, width + 1));
    const Tensor own = logits(slice(h, 1, before(), rows));
    return reshape(own, {x.dim(0), 1, rows - before(), config_.vocab_size});
  }
  // The rows before the chunk are there to be read: they have no loss.
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
    const Tensor labels = slice(v, 2, before(), v.dim(2)), own = predict(w, k);
    const Tensor each = cross_entropy(own, reshape(labels, {v.dim(0), 1, own.dim(2)}));
    return pad(reshape(each, labels.shape()), 2, before(), 0);
  }

  Tensor first_blocks(Tensor tokens) const {
    Tensor h = gather(embedding_, tokens);
    for (const Block& block : fixed_) h = block(h, {}, {});
    return h;
  }
  Tensor last_blocks(const ttt::Weights& w, Tensor h, Tensor there) const {
    for (std::size_t i = 0; i < fast_.size(); ++i) {
      const ttt::Weights& own = fast_[i].fast.start;
      std::vector<Tensor> values;
      for (std::size_t j = 0; j < own.size(); ++j) values.push_back(w.at(i * own.size() + j).value);
      h = fast_[i](h, there, own.with(values));
    }
    return h;
  }
  Tensor logits(Tensor h) const { return ttt::linear(rms_norm(h, norm_, config_.rms_norm_eps), embedding_); }

  // Rows that a chunk needs in front of its own.
  std::int64_t before() const { return (config_.window - 1) * config_.fast_layers; }
  const EndToEndConfig& config() const { return config_; }

 private:
  EndToEndConfig config_;
  Tensor embedding_, norm_;
  std::vector<Block> fixed_, fast_;
  ttt::Weights start_;
  ttt::InnerOptimizer optimizer_;
};

EndToEndModel::EndToEndModel(const EndToEndConfig& config, const Params& params)
    : learner_(std::make_unique<Learner>(config, params)) {}

EndToEndModel::~EndToEndModel() = default;

ttt::Weights EndToEndModel::start() const { return learner_->init(); }

Tensor EndToEndModel::loss_at(const ttt::Weights& w, Tensor tokens) const {
  const std::int64_t time = tokens.dim(1) - 1;
  const Tensor h = learner_->first_blocks(slice(tokens, 1, 0, time));
  return cross_entropy(learner_->logits(learner_->last_blocks(w, h, {})), slice(tokens, 1, 1, time + 1));
}

Tensor EndToEndModel::loss(Tensor tokens) const {
  const EndToEndConfig& c = learner_->config();
  const std::int64_t batch = tokens.dim(0), time = tokens.dim(1) - 1, before = learner_->before();
  const Tensor h = learner_->first_blocks(slice(tokens, 1, 0, time));
  const Tensor there = broadcast_to(constant(1.0, h.dtype()), {batch, 1, time, 1});
  const Tensor rows = concat({reshape(h, {batch, 1, time, c.hidden_size}), there}, 3),
               next = reshape(slice(tokens, 1, 1, time + 1), {batch, 1, time, 1});
  const Tensor k = with_rows_before(rows, c.chunk, before), v = with_rows_before(next, c.chunk, before);
  const Tensor mean_of_chunk = constant(1.0 / static_cast<double>(c.chunk), h.dtype());
  const ttt::Views views{k, k, v, {{"rate", broadcast_to(mean_of_chunk, {batch, 1, k.dim(2), 1})}}, {}};
  // Tokens mix, so there is no form but the primal one.
  const ttt::InnerLoopOptions options{.policy = {.chunk = before + c.chunk,
                                                 .update = ttt::Policy::Update::per_chunk,
                                                 .read = ttt::Policy::Read::before_write,
                                                 .meta = c.meta},
                                      .form = ttt::FormChoice::primal,
                                      .checkpoint_every = c.checkpoint_every,
                                      .track_loss = true};
  const Tensor each = ttt::train_along(*learner_, ttt::for_batch(start(), batch), views, options).loss_before;

  // [batch, 1, chunks * (before + chunk)] without the rows before each chunk.
  std::vector<Tensor> own;
  for (std::int64_t begin = 0, at = 0; begin < time; begin += c.chunk) {
    const std::int64_t size = std::min(c.chunk, time - begin);
    own.push_back(slice(each, 2, at + before, at + before + size));
    at += before + size;
  }
  return reshape(concat(own, 2), {batch, time});
}

}  // namespace nestgrad
