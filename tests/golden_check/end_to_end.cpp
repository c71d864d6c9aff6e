// Golden files of language models that go on training while they read, against models/end_to_end.h.
#include "models/end_to_end.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>

#include "autograd/grad.h"
#include "models/json.h"
#include "ops/ops.h"
#include "tests/golden_check/comparison.h"
#include "tests/golden_check/golden_file.h"
#include "tests/golden_check/metadata.h"

namespace nestgrad {

namespace {

using nlohmann::json;

// What the official configuration says where it leaves a field out. Sizes are always asked of the file.
json official_defaults() {
  return {{"prime", false},
          {"qk_norm", true},
          {"pre_norm", true},
          {"post_norm", true},
          {"tie_word_embeddings", false},
          {"seq_modeling_block", "self_attention"},
          {"feed_forward_prime", "swiglu"},
          {"train_mode", "pretrain"},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},
          {"spec_inner", json::array({"**"})},
          {"optimizer_inner", json::object()},
          {"ilr_init", 1.0},
          {"ilr_warmup_steps", 0},
          {"bos_token_id", 1},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0}};
}
json official_sgd() { return {{"optimizer_type", "sgd"}, {"lr", 0.01}, {"clip_gradient", 0.0}}; }

// Is the whole of a sequence matched by a pattern, of which some items stand for any number of the sequence's?
template <class Pattern, class Items>
bool matches(const Pattern& pattern, const Items& items, const auto& is_any, const auto& same) {
  std::vector<bool> up_to(items.size() + 1, false);  // are so many of them matched by the pattern so far
  up_to[0] = true;
  for (const auto& p : pattern) {
    if (is_any(p)) {
      for (std::size_t i = 1; i <= items.size(); ++i) up_to[i] = up_to[i] || up_to[i - 1];
      continue;
    }
    for (std::size_t i = items.size(); i > 0; --i) up_to[i] = up_to[i - 1] && same(p, items[i - 1]);
    up_to[0] = false;
  }
  return up_to.back();
}
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> out{""};
  for (const char c : name)
    if (c == '.') out.emplace_back();
    else out.back() += c;
  return out;
}

// Of names with dots: ** is any number of parts, * any letters of one.
bool names(const std::string& pattern, const std::string& name) {
  const auto in_part = [](const std::string& p, const std::string& part) {
    return matches(
        p, part, [](char c) { return c == '*'; }, std::equal_to<char>());
  };
  return matches(
      parts_of(pattern), parts_of(name), [](const std::string& p) { return p == "**"; }, in_part);
}

// The official configuration, as far as it is ours: what it says otherwise is no file that can be checked.
class OfficialConfig {
 public:
  OfficialConfig(const SafeTensors& file, const std::string& path)
      : says_{path, file.metadata}, parameters_(names_under(file, "param.")) {
    json_ = parse_json(says_.text("config"));
    if (!json_.is_object()) refuse("its 'config' is no JSON object");
    complete(json_, official_defaults());
    inner_ = json_["optimizer_inner"];
    if (!inner_.is_object()) refuse_option("optimizer_inner", inner_, "a step of SGD");
    complete(inner_, official_sgd());
    if (inner_["clip_gradient"].is_null()) inner_["clip_gradient"] = 0.0;  // clips nothing
    none_is_masked_ = says_.says("labels") && says_.text("labels").ends_with("none is masked");
  }

  // Of the outer training, from 0; -1: before it, where a ramp begins. Without a ramp nothing depends on it.
  double step() const {
    if (!says_.says("step_index") && get<double>(json_, "ilr_warmup_steps") <= 0) return 0;
    const double step = says_.number("step_index", -1);
    if (step != std::floor(step)) refuse(fmt::format("its 'step_index' is {}, no integer", step));
    return step;
  }

  EndToEndConfig model() const {
    check_options();
    check_ramp();
    return {.vocab_size = get<std::int64_t>(json_, "vocab_size"),
            .hidden_size = get<std::int64_t>(json_, "hidden_size"),
            .intermediate_size = get<std::int64_t>(json_, "intermediate_size"),
            .num_hidden_layers = get<std::int64_t>(json_, "num_hidden_layers"),
            .num_attention_heads = get<std::int64_t>(json_, "num_attention_heads"),
            .suffix_len = get<std::int64_t>(json_, "suffix_len"),
            .window = get<std::int64_t>(json_, "sliding_window_size"),
            .chunk = get<std::int64_t>(json_, "mini_batch_size"),
            .rate = get<double>(inner_, "lr"),
            .rate_init = get<double>(json_, "ilr_init"),
            .rate_warmup_steps = get<std::int64_t>(json_, "ilr_warmup_steps"),
            .clip = get<double>(inner_, "clip_gradient"),
            .bos_token = bos_token(),
            .rms_norm_eps = get<double>(json_, "rms_norm_eps"),
            .rope_theta = get<double>(json_, "rope_theta")};
  }

  // The token that the official program leaves out where it is the target; -1: there is none, or the file says that no
  // target was left out.
  std::int64_t bos_token() const {
    if (none_is_masked_ || json_.at("bos_token_id").is_null()) return -1;
    const auto token = get<std::int64_t>(json_, "bos_token_id");
    return token < get<std::int64_t>(json_, "vocab_size") ? std::max<std::int64_t>(token, -1) : -1;
  }

 private:
  void complete(json& config, const json& defaults) {
    for (const auto& [field, value] : defaults.items())
      if (!config.contains(field)) {
        config[field] = value;
        left_out_.insert(field);
      }
  }

  // What changes the numbers and is one thing here.
  void check_options() const {
    const auto only = [&](const json& from, const char* field, const json& wanted) {
      if (from.at(field) != wanted) refuse_option(field, from.at(field), wanted.dump());
    };
    for (const char* on : {"prime", "qk_norm", "pre_norm", "post_norm", "tie_word_embeddings"})
      only(json_, on, true);
    only(json_, "seq_modeling_block", "SWA");
    only(json_, "feed_forward_prime", "swiglu");
    only(json_, "train_mode", "meta");
    for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) only(json_, dropout, 0.0);
    only(inner_, "optimizer_type", "sgd");
    if (const json& last = json_.value("suffix_len", json()); last == 0)
      refuse_option("suffix_len", last, "a model of which a block learns");
    if (const json& spec = json_.at("spec_inner"); !learns_prime(spec))
      refuse_option("spec_inner", spec, "what names w1, w2 and w3 of feed_forward_prime and nothing else");
  }

  // Does it name the prime MLPs of the last blocks, whole and alone? In the inner loop the official program calls the
  // first blocks prefix_blocks, the last ones suffix_blocks, and stores the prime MLPs in these.
  bool learns_prime(const json& spec) const {
    if (!spec.is_array()) return false;
    const auto named = [&](const std::string& name) {
      return std::ranges::any_of(spec, [&](const json& pattern) {
        return pattern.is_string() && names(pattern.get<std::string>(), name);
      });
    };
    const std::string blocks = "h.blocks.", storage = "h.prime_storage.";
    for (const std::string& name : parameters_) {
      const bool prime = name.find(storage + "feed_forward_prime.") != name.npos;
      std::string first = name, last = name;
      if (const std::size_t at = name.find(blocks); at != name.npos) {
        first.replace(at, blocks.size(), "h.prefix_blocks.");
        last.replace(at, blocks.size(), "h.suffix_blocks.");
      }
      if (const std::size_t at = name.find(storage); at != name.npos)
        first = last.replace(at, storage.size(), "h.suffix_blocks.");
      if (named(first) != prime || named(last) != prime) return false;
    }
    return true;
  }

  void check_ramp() const {
    const double lr = get<double>(inner_, "lr"), init = get<double>(json_, "ilr_init"),
                 steps = get<double>(json_, "ilr_warmup_steps");
    const double ramp = steps > 0 ? init + (lr - init) * std::min(1.0, (step() + 1) / steps) : lr;
    const double rate = says_.says("inner_rate") ? says_.number("inner_rate") : ramp;
    if (!(std::abs(ramp - rate) < 1e-12))
      refuse(fmt::format("its 'inner_rate' is {}, its ramp says {} in step {}", rate, ramp, step()));
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw IoError(fmt::format("{}: a model that trains while it reads: {}", says_.path, why));
  }
  [[noreturn]] void refuse_option(const char* field, const json& value, const std::string& wanted) const {
    refuse(fmt::format("'{}' of its 'config' is {}{}; only {} can be checked", field, shown(value),
                       left_out_.contains(field) ? ", as it is officially where it is left out" : "",
                       wanted));
  }
  template <class T>
  T get(const json& from, const char* field) const {
    const auto at = from.find(field);
    if (at == from.end() || !fits(*at, T{}))
      refuse(fmt::format("'{}' of its 'config' is missing or of another type", field));
    return at->get<T>();
  }

  GoldenMetadata says_;
  std::vector<std::string> parameters_;
  std::set<std::string> left_out_;
  json json_, inner_;
  bool none_is_masked_ = false;
};

// Of a file whose configuration names the token that begins a text: which of its numbers leave such targets out. The
// official program masks them in a chunk's loss, and so in gradients, not in the losses of tokens.
struct Masked {
  bool chunks = false, tokens = false;
};

// A chunk's loss that is not the mean over all of its tokens was made with a mask, and so was a 0 for every such target.
Masked masked_in(const SafeTensors& file, std::int64_t bos, std::int64_t chunk, const std::string& path) {
  const Array& tokens = find_tokens(file, "tokens", path);
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1] - 1;
  const auto is_bos = [&](std::int64_t b, std::int64_t t) {
    return tokens.at(b * (time + 1) + t + 1) == static_cast<double>(bos);
  };
  std::int64_t targets = 0, zeros = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < time; ++t) targets += is_bos(b, t);
  if (targets == 0) return {};
  for (const char* needed : {"token_loss", "chunk_loss"})
    if (!file.tensors.contains(needed))
      throw IoError(fmt::format(
          "{}: 'bos_token_id' of its 'config' is {}, which is a target: without '{}' nothing says if it was "
          "left out",
          path, bos, needed));
  const Array &of_token = find(file, "token_loss", path), &of_chunk = find(file, "chunk_loss", path);
  if (of_token.shape() != Shape{batch, time} || of_chunk.shape() != Shape{batch, time / chunk}) return {};
  Masked out;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t c = 0; c < time / chunk; ++c) {
      double sum = 0;
      for (std::int64_t t = c * chunk; t < (c + 1) * chunk; ++t) {
        const double loss = of_token.at(b * time + t);
        zeros += is_bos(b, t) && loss == 0;
        sum += loss;
      }
      const double mean = sum / static_cast<double>(chunk);
      if (!(std::abs(of_chunk.at(b * (time / chunk) + c) - mean) <= 1e-6 * std::abs(mean))) out.chunks = true;
    }
  out.tokens = zeros == targets;
  out.chunks = out.chunks || out.tokens;
  return out;
}

}  // namespace

GoldenReport verify_end_to_end(const SafeTensors& file, const std::string& path,
                               const GoldenOptions& options) {
  const OfficialConfig official(file, path);
  EndToEndConfig config = official.model();
  config.check();
  const Array& tokens = find_tokens(file, "tokens", path);
  if ((tokens.shape()[1] - 1) % config.chunk != 0)
    throw IoError(
        fmt::format("{}: {} tokens are no whole chunks of {}", path, tokens.shape()[1] - 1, config.chunk));
  const Masked masked = masked_in(file, config.bos_token, config.chunk, path);
  if (!masked.chunks) config.bos_token = -1;
  const StateDict params = with_prefix(file, "param.", options.dtype);
  LanguageModelConfig{.vocab_size = config.vocab_size,
                      .hidden_size = config.hidden_size,
                      .intermediate_size = config.intermediate_size,
                      .num_hidden_layers = config.num_hidden_layers,
                      .num_attention_heads = config.num_attention_heads}
      .check_against(parameter_count(params), path);

  // Outputs by name, then the gradients.
  std::vector<std::string> names;
  const TracedModel model =
      trace_model(options.dtype, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& given) {
        const Tensor step = constant(official.step(), options.dtype);
        const EndToEndReading r = EndToEndModel(config, Params(table), step).read(given[0]);
        const std::int64_t batch = r.loss.dim(0), chunks = r.loss.dim(1) / config.chunk;
        const auto in_chunks = [&](Tensor x) { return reshape(x, {batch, chunks, config.chunk}); };
        // Of the targets that count; the loss is the mean of these, also where they are of unequal numbers of targets.
        const Tensor of_chunks = r.counts.defined()
                                     ? sum(in_chunks(r.loss), {2}) / max(sum(in_chunks(r.counts), {2}), 1.0)
                                     : mean(in_chunks(r.loss), {2});
        const Tensor loss = mean(of_chunks);
        std::vector<Tensor> out{reshape(loss, {1}), masked.tokens ? r.loss : r.of_all, of_chunks,
                                r.clipped_norm};
        names = {"loss", "token_loss", "chunk_loss", "clipped_norm"};
        const std::size_t weights = r.last.size();
        for (std::size_t j = 0; j < 3; ++j) {
          std::vector<Tensor> blocks;
          for (std::size_t i = j; i < weights; i += 3) {
            const Tensor w = r.last.at(i).value;
            blocks.push_back(reshape(w, {batch, 1, w.dim(1), w.dim(2)}));
          }
          out.push_back(blocks.size() == 1 ? blocks[0] : concat(blocks, 1));
          names.push_back(
              fmt::format("inner.language_model.model.h.prime_storage.feed_forward_prime.w{}.weight", j + 1));
        }
        if (!has_gradients(file)) return out;
        const std::vector<Tensor> grads = grad(loss, table.tensors());
        out.insert(out.end(), grads.begin(), grads.end());
        return out;
      });
  check_fits(model.params, params, path);
  const std::vector<Array> out = model.function(model.bind({tokens}, {&params}));

  Comparison comparison(file, path, {"tokens"});
  comparison.loss(out[0]);
  for (std::size_t k = 1; k < names.size(); ++k) comparison.output(out[k], names[k]);
  if (has_gradients(file))
    for (std::size_t i = 0; i < model.params.size(); ++i)
      comparison.gradient(out[names.size() + i], {model.params[i].name});
  return comparison.done();
}

}  // namespace nestgrad
