#include "tests/golden_check/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/core/error.h"
#include "ttt/learners/lact.h"
#include "ttt/learners/matrix_memory.h"
#include "ttt/learners/mesa_net.h"
#include "ttt/learners/titans.h"
#include "ttt/system.h"
#include "ttt/vision.h"

namespace nestgrad {

using ttt::FormChoice;
using ttt::InnerLoopResult;
using ttt::Policy;
using ttt::Views;
using ttt::Weights;

// ---- what the file says ----

Tensor GoldenOperation::input(const std::string& name, int rank) const {
  asked.insert(name);
  const auto at = in.find(name);
  if (at == in.end())
    throw IoError(
        fmt::format("{}: it has no tensor 'in.{}', which files of this operation have", path, name));
  if (at->second.rank() != rank)
    throw IoError(fmt::format("{}: 'in.{}' is {}; it must have {} axes", path, name,
                              to_string(at->second.spec()), rank));
  return at->second;
}

bool GoldenOperation::says(const std::string& key) const {
  const auto at = metadata.find(key);
  return at != metadata.end() && at->second != "None";
}

const std::string& GoldenOperation::text(const std::string& key) const {
  const auto at = metadata.find(key);
  if (at == metadata.end())
    throw IoError(fmt::format("{}: its metadata has no '{}', which files of this operation have", path, key));
  return at->second;
}

namespace {

template <class T>
T parsed(const GoldenOperation& op, const std::string& key, std::string_view text, const char* what) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not {}", op.path, key, op.text(key), what));
  return value;
}

}  // namespace

std::int64_t GoldenOperation::integer(const std::string& key, std::int64_t least) const {
  const auto value = parsed<std::int64_t>(*this, key, text(key), "an integer");
  if (value < least)
    throw IoError(
        fmt::format("{}: '{}' in the metadata is {}, it must be at least {}", path, key, value, least));
  return value;
}

double GoldenOperation::number(const std::string& key) const {
  return parsed<double>(*this, key, text(key), "a number");
}

bool GoldenOperation::flag(const std::string& key) const {
  const std::string& value = text(key);
  if (value != "True" && value != "False")
    throw IoError(fmt::format("{}: '{}' in the metadata is '{}', not True or False", path, key, value));
  return value == "True";
}

void GoldenOperation::only(const std::string& key, const std::vector<std::string>& known) const {
  if (std::ranges::count(known, text(key)) > 0) return;
  throw IoError(fmt::format("{}: '{}' in the metadata is '{}'; only '{}' can be checked", path, key,
                            text(key), fmt::join(known, "' and '")));
}

std::vector<std::int64_t> GoldenOperation::integers(const std::string& key) const {
  std::vector<std::int64_t> out;
  std::string_view rest = text(key);
  while (!rest.empty()) {
    const std::size_t from = rest.find_first_not_of("[]() ,"),
                      to = std::min(rest.find_first_of("]) ,", from), rest.size());
    if (from == rest.npos) break;
    out.push_back(parsed<std::int64_t>(*this, key, rest.substr(from, to - from), "a list of integers"));
    rest.remove_prefix(to);
  }
  return out;
}

namespace {

// ---- sequences of heads: [batch, heads, time, ..], or [batch, time, heads, ..] with the layout 'B T H D'
// ----

bool time_first(const GoldenOperation& op) {
  if (!op.says("layout")) return false;
  op.only("layout", {"B T H D", "B H T D"});
  return op.text("layout") == "B T H D";
}

Tensor swap_if(bool swap, Tensor x) { return swap ? permute(x, {0, 2, 1, 3}) : x; }

Tensor rows(const GoldenOperation& op, const std::string& name) {
  return swap_if(time_first(op), op.input(name, 4));
}

// One number a token.
Tensor gate_rows(const GoldenOperation& op, const std::string& name) {
  const Tensor x = op.input(name, 3);
  return swap_if(time_first(op), reshape(x, {x.dim(0), x.dim(1), x.dim(2), 1}));
}

Views heads_of(const GoldenOperation& op) {
  Views views{rows(op, "q"), rows(op, "k"), rows(op, "v"), {}, {}};
  if (!op.metadata.contains("q_scale")) return views;
  const bool root = op.text("q_scale").starts_with("1/sqrt(d");
  views.q = views.q * (root ? 1.0 / std::sqrt(static_cast<double>(views.q.dim(-1))) : op.number("q_scale"));
  return views;
}

InnerLoopResult run(const GoldenOperation& op, const ttt::Learner& learner, const Weights& start,
                    const Views& views, const Policy& policy) {
  return train_along(learner, start, views, {.policy = policy, .form = op.form, .block = op.block});
}

// ---- memories that are one matrix ----

// values: how many features what it reads has.
GoldenOutputs matrix_memory(const GoldenOperation& op, const ttt::Learner& learner, const Policy& policy,
                            const Views& views, std::int64_t values) {
  const Shape shape{views.k.dim(0), views.k.dim(1), views.k.dim(3), values};
  const Tensor start = op.has("initial_state") ? op.input("initial_state", 4) : zeros(views.k.dtype(), shape);
  const InnerLoopResult r = run(op, learner, learner.init().with({start}), views, policy);
  return {{{"o", swap_if(time_first(op), r.output)}, {"final_state", r.last()["W"]}}, r.plan.form};
}

GoldenOutputs matrix_memory(const GoldenOperation& op, const std::string& system_name, const Views& views) {
  const ttt::System& system = ttt::system_named(system_name);
  const ttt::SystemSizes sizes{views.k.dim(1), views.k.dim(3)};
  return matrix_memory(op, *system.learner(op.params, sizes), system.policy(sizes), views, views.v.dim(3));
}

GoldenOutputs linear_attention(const GoldenOperation& op) {
  const Views views = heads_of(op);
  GoldenOutputs out = matrix_memory(op, "linear-attention", views);
  if (!op.says("normalize") || !op.flag("normalize")) return out;
  // Officially by the keys of this text alone, whatever the first state is.
  const Tensor keys = sum(views.q * cumsum(views.k, 2), {-1}, kKeep);
  out.out["o"] = out.out["o"] / (swap_if(time_first(op), keys) + 1e-10);
  return out;
}

// beta as a number of each value, which is an official option, weighs the features of the loss: the learner's targets are
// the values and, behind them, the weights.
GoldenOutputs delta_net_per_value(const GoldenOperation& op, Views views) {
  const std::int64_t values = views.v.dim(3);
  const Tensor beta = rows(op, "beta");
  if (beta.shape() != views.v.shape())
    throw IoError(fmt::format("{}: 'in.beta' is {}; it must be as 'in.v' or have 3 axes", op.path,
                              to_string(op.input("beta", 4).spec())));
  views.v = concat({views.v, beta}, 3);
  const ttt::InnerLoss loss{"1/2 sum beta (f(k) - v)^2", [values](Tensor f, Tensor target) {
                              const Tensor off = f - slice(target, -1, 0, values);
                              return 0.5 *
                                     sum(slice(target, -1, values, 2 * values) * square(off), {-1}, kKeep);
                            }};
  const ttt::SystemSizes sizes{views.k.dim(1), views.k.dim(3)};
  return matrix_memory(op, ttt::Composed(ttt::matrix_memory(op.params, sizes), loss), {.chunk = 1}, views,
                       values);
}

GoldenOutputs delta_net(const GoldenOperation& op) {
  Views views = heads_of(op);
  if (op.has("beta") && op.in.at("beta").rank() == 4) return delta_net_per_value(op, views);
  views.gates["rate"] = gate_rows(op, "beta");
  return matrix_memory(op, "delta-net", views);
}

GoldenOutputs gated_delta_net(const GoldenOperation& op) {
  Views views = heads_of(op);
  views.gates["rate"] = gate_rows(op, "beta");
  views.gates["forget"] = exp(gate_rows(op, "g"));
  return matrix_memory(op, "gated-delta-net", views);
}

GoldenOutputs gated_linear_attention(const GoldenOperation& op) {
  Views views = heads_of(op);
  views.gates["forget"] = exp(rows(op, "gk"));
  return matrix_memory(op, "gated-linear-attention", views);
}

// ---- MesaNet ----

GoldenOutputs mesa_net(const GoldenOperation& op) {
  if (op.says("start")) op.only("start", {"x0 = 0"});
  Views views = heads_of(op);
  views.gates["rate"] = gate_rows(op, "beta");
  views.gates["forget"] = exp(gate_rows(op, "g"));
  const std::int64_t heads = views.k.dim(1), dim = views.k.dim(3);
  const Tensor lamb = op.input("lamb", 2);
  const int steps = op.text("op") == "mesa_net_exact" ? ttt::MesaNet::kExact
                                                      : static_cast<int>(op.integer("cg_iterations", 1));
  const ttt::MesaNet learner(ttt::MesaNet::memories(lamb.dtype(), heads, dim, views.v.dim(3)),
                             reshape(lamb, {heads, 1, dim}), steps);
  const Weights zeros = ttt::for_batch(learner.init(), views.k.dim(0));
  const auto initial = [&](const char* name, std::size_t i) {
    return op.has(name) ? op.input(name, 4) : zeros.at(i).value;
  };
  const Weights start = zeros.with({initial("h_kk_init", 0), initial("h_kv_init", 1)});
  const InnerLoopResult r =
      run(op, learner, start, views, ttt::system_named("mesa-net").policy({heads, dim}));
  return {{{"o", swap_if(time_first(op), r.output)}, {"h_kk", r.last()["H_kk"]}, {"h_kv", r.last()["H_kv"]}},
          r.plan.form};
}

// ---- Titans ----

// Tokens whose gradients are taken at the same weights: those of all of `time`, at the first weights, if the file does not
// say.
std::int64_t titans_batch(const GoldenOperation& op, std::int64_t tokens, std::int64_t time) {
  if (!op.says("batch_size")) return (time / tokens + (time % tokens > 0)) * tokens;
  const std::int64_t batch = op.integer("batch_size", 1);
  if (batch % tokens != 0)
    throw IoError(fmt::format("{}: 'batch_size' {} in the metadata is no multiple of 'chunk_size' {}",
                              op.path, batch, tokens));
  return batch;
}

// Does the update have momentum? Officially it is of order 1, or there is none.
bool titans_momentum(const GoldenOperation& op) {
  if (!op.says("momentum_order")) return op.has("momentum");
  const std::int64_t order = op.integer("momentum_order", 0);
  if (order > 1)
    throw IoError(fmt::format("{}: 'momentum_order' in the metadata is {}; only 0 and 1 can be checked",
                              op.path, order));
  return order == 1;
}

// The only activation that the official perceptron has.
void check_titans_activation(const GoldenOperation& op, std::size_t matrices) {
  if (!op.says("activation")) return;
  const std::string& activation = op.text("activation");
  if (activation == "gelu (erf)" || activation == "gelu" || (activation == "-" && matrices == 1)) return;
  throw IoError(fmt::format("{}: 'activation' in the metadata is '{}'; only 'gelu (erf)' can be checked",
                            op.path, activation));
}

GoldenOutputs titans(const GoldenOperation& op, const std::vector<std::string>& weights) {
  const std::int64_t tokens = op.integer("chunk_size", 1);
  Views views = heads_of(op);
  const std::int64_t batch = titans_batch(op, tokens, views.k.dim(2));
  const bool momentum = titans_momentum(op);
  const Tensor decay = gate_rows(op, "decay"), keep = 1.0 - decay;
  const Tensor eta = momentum ? gate_rows(op, "momentum") : zeros(decay.dtype(), decay.shape());
  views.gates = ttt::titans_gates(gate_rows(op, "lr"), eta, keep, tokens);
  check_titans_activation(op, weights.size());
  std::vector<Tensor> start;
  for (const std::string& name : weights) start.push_back(op.input(name, 3));
  std::vector<std::int64_t> widths{start[0].dim(1)};
  for (const Tensor& w : start) widths.push_back(w.dim(2));
  Graph scratch;  // for the weights that a model of its own would start from
  ParamTable unused(scratch, views.k.dtype());
  const ttt::Model model = ttt::mlp(
      Params(unused), start[0].dim(0), widths, [](Tensor x) { return gelu(x); }, "gelu");
  const ttt::Composed learner(model, ttt::mean_squared_error(), ttt::titans_optimizer(tokens));
  const Weights first = ttt::for_batch(learner.init().with(start), views.k.dim(0));
  const InnerLoopResult r = run(op, learner, first, views, {.chunk = batch});
  GoldenOutputs out{{{"o", swap_if(time_first(op), r.output)}}, r.plan.form};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    out.out[fmt::format("final_{}", weights[i])] = r.last().at(i).value;
    if (momentum)
      out.out[fmt::format("final_momentum_{}", weights[i])] = -r.state.of(i)[1];  // theirs is of descent
  }
  return out;
}

GoldenOutputs titans_linear(const GoldenOperation& op) { return titans(op, {"w"}); }
GoldenOutputs titans_mlp(const GoldenOperation& op) {
  std::vector<std::string> weights{"w1"};  // and as many more as there are
  while (op.has(fmt::format("w{}", weights.size() + 1)))
    weights.push_back(fmt::format("w{}", weights.size() + 1));
  return titans(op, weights);
}

// ---- LaCT: heads are folded into the batch ----

Tensor one_head(Tensor x) { return reshape(x, {x.dim(0), 1, x.dim(1), x.dim(2)}); }
Tensor no_head(Tensor x) { return reshape(x, {x.dim(0), x.dim(2), x.dim(3)}); }

Views lact_views(const GoldenOperation& op) {
  Views views{one_head(op.input("q", 3)), one_head(op.input("k", 3)), one_head(op.input("v", 3)), {}, {}};
  for (const char* i : {"0", "1", "2"})
    views.gates[fmt::format("rate.W{}", i)] = one_head(op.input(fmt::format("lr{}", i), 3));
  return views;
}

// A SwiGLU that starts from the file's matrices; they are [out, in] in files of the language model's variant.
InnerLoopResult run_lact(const GoldenOperation& op, const Views& views, const ttt::InnerOptimizer& optimizer,
                         const Policy& policy, bool transposed) {
  std::vector<Tensor> start;
  for (const char* name : {"w0", "w1", "w2"}) {
    const Tensor w = one_head(op.input(name, 3));
    start.push_back(transposed ? transpose(w) : w);
  }
  Graph scratch;  // for the weights that a model of its own would start from
  ParamTable unused(scratch, views.k.dtype());
  const ttt::Composed learner(
      ttt::swiglu(Params(unused), {1, start[0].dim(-2), start[0].dim(-1), start[1].dim(-1)}),
      ttt::inner_product(), optimizer);
  return run(op, learner, learner.init().with(start), views, policy);
}

GoldenOutputs lact(const GoldenOperation& op) {
  if (op.says("order")) op.only("order", {"apply then update; last chunk only applied"});
  Views views = lact_views(op);
  const ttt::LactOptions options{.momentum = op.flag("use_momentum"),
                                 .muon = op.flag("use_muon"),
                                 .muon_in_f64 = true,  // also of files that are verified in f32
                                 .prenorm = op.text("op").ends_with("_prenorm")};
  if (options.momentum) views.gates["momentum"] = one_head(op.input("momentum", 3));
  const Policy policy = ttt::system_named("lact").policy({.chunk = op.integer("chunk_size", 1)});
  const InnerLoopResult r = run_lact(op, views, ttt::lact_optimizer(options), policy, true);
  return {{{"o", no_head(r.output)}}, r.plan.form};
}

GoldenOutputs lact_nvs(const GoldenOperation& op) {
  Views views = lact_views(op);
  const auto range = [&](const char* key, Tensor x) {
    const std::vector<std::int64_t> ends = op.integers(key);
    if (ends.size() != 2)
      throw IoError(
          fmt::format("{}: '{}' in the metadata is '{}', not [begin, end]", op.path, key, op.text(key)));
    return slice(x, 2, ends[0], ends[1]);
  };
  views.q = range("apply_range", views.q);
  views.k = range("update_range", views.k);
  views.v = range("update_range", views.v);
  for (auto& [name, rate] : views.gates) rate = range("update_range", rate);
  const InnerLoopResult r =
      run_lact(op, views, ttt::lact_nvs_optimizer(static_cast<int>(op.integer("muon_update_steps", 0)), true),
               ttt::system_named("lact-nvs").policy({}), false);
  GoldenOutputs out{{{"o", no_head(r.output)}}, r.plan.form};
  for (const char* i : {"0", "1", "2"})
    out.out[fmt::format("w{}", i)] = no_head(r.last()[fmt::format("W{}", i)]);
  return out;
}

// ---- layers for images ----

// The projection of q, k and v has a bias or, officially an option, none: it is then zero.
Params with_qkv_bias(const GoldenOperation& op) {
  if (op.param_shapes.contains("qkv.bias")) return op.params;
  return op.params.through([own = op.params](const Params::Request& request) {
    return request.name == "qkv.bias" ? zeros(own.dtype(), request.shape) : own.get(request);
  });
}

GoldenOutputs vittt(const GoldenOperation& op) {
  const ttt::VisionResult r = ttt::vittt_block(op.input("x", 3), with_qkv_bias(op),
                                               {.width = op.integer("dim", 1),
                                                .heads = op.integer("num_heads", 1),
                                                .height = op.integer("h", 1),
                                                .image_width = op.integer("w", 1),
                                                .rate = op.number("lr"),
                                                .scale = op.number("scale"),
                                                .form = op.form});
  return {{{"o", r.output}}, r.plan.form};
}

GoldenOutputs t5(const GoldenOperation& op, ttt::FastModel model) {
  const auto w1 = op.param_shapes.find("w1");  // [1, heads, in, hidden]
  const std::int64_t hidden = w1 != op.param_shapes.end() && w1->second.size() == 4 ? w1->second[3] : 0;
  const ttt::VisionResult r = ttt::t5_attention(op.input("x", 3), with_qkv_bias(op),
                                                {.width = op.integer("dim", 1),
                                                 .heads = op.integer("num_heads", 1),
                                                 .model = model,
                                                 .hidden = hidden,
                                                 .norm_eps = op.number("instance_norm_eps"),
                                                 .form = op.form});
  return {{{"o", r.output}}, r.plan.form};
}

GoldenOutputs t5_two_layers(const GoldenOperation& op) { return t5(op, ttt::FastModel::two_layers); }
GoldenOutputs t5_three_layers(const GoldenOperation& op) { return t5(op, ttt::FastModel::three_layers); }
GoldenOutputs t5_swiglu(const GoldenOperation& op) { return t5(op, ttt::FastModel::swiglu); }

using Run = GoldenOutputs (*)(const GoldenOperation& op);
constexpr std::pair<std::string_view, Run> kOperations[] = {
    {"linear_attention", linear_attention},
    {"delta_rule", delta_net},
    {"gated_delta_rule", gated_delta_net},
    {"gated_linear_attention", gated_linear_attention},
    {"mesa_net_cg", mesa_net},
    {"mesa_net_exact", mesa_net},
    {"titans_linear", titans_linear},
    {"titans_mlp", titans_mlp},
    {"lact_block_causal_swiglu", lact},
    {"lact_block_causal_swiglu_prenorm", lact},
    {"lact_nvs_swiglu", lact_nvs},
    {"vittt_block", vittt},
    {"t5_attention_2layer", t5_two_layers},
    {"t5_attention_3layer", t5_three_layers},
    {"t5_attention_swiglu", t5_swiglu},
};

}  // namespace

GoldenOutputs run_golden_operation(const GoldenOperation& op) {
  std::vector<std::string_view> known;
  for (const auto& [name, run_it] : kOperations) {
    known.push_back(name);
    if (name != op.text("op")) continue;
    GoldenOutputs out = run_it(op);
    for (const auto& [input, value] : op.in)
      if (!op.asked.contains(input)) out.unread.push_back(input);
    return out;
  }
  throw IoError(fmt::format("{}: not a golden file of a known kind: there is no operation '{}'; there are {}",
                            op.path, op.text("op"), fmt::join(known, ", ")));
}

}  // namespace nestgrad
