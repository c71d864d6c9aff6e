#include "tests/golden_check/operations.h"

#include <fmt/format.h>

#include <algorithm>
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

namespace {

// ---- sequences of heads: [batch, heads, time, ..], or [batch, time, heads, ..] with the layout 'B T H D'
// ----

// Of MesaNet without a layout, of which nothing is agreed: where q has as many heads as lamb.
bool heads_behind(const GoldenOperation& op) {
  const Tensor q = op.input("q", 4);
  const std::int64_t heads = op.input("lamb", 2).dim(0);
  const bool before = q.dim(1) == heads, behind = q.dim(2) == heads;
  if (before == behind && !(before && heads == 1)) op.text("layout");  // which is not there: IoError
  return behind;
}

bool time_first(const GoldenOperation& op) {
  const std::string& name = op.text("op");
  if (!op.says("layout"))
    return name.starts_with("mesa_net") ? heads_behind(op)
                                        : name != "delta_rule" && !name.starts_with("titans");
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

// By what q is multiplied. Where the file does not say, MesaNet and Titans take it as it is and memories that are one
// matrix have 1/sqrt(d_k), but for gated linear attention, of which nothing is agreed.
double q_scale(const GoldenOperation& op, std::int64_t keys) {
  const std::string& name = op.text("op");
  if (!op.says("q_scale") && (name.starts_with("mesa_net") || name.starts_with("titans"))) return 1;
  const bool agreed = !op.says("q_scale") && name != "gated_linear_attention";
  const bool root = agreed || op.text("q_scale") == "1/sqrt(d)" || op.text("q_scale") == "1/sqrt(d_k)";
  return root ? 1.0 / std::sqrt(static_cast<double>(keys)) : op.number("q_scale");
}

Views heads_of(const GoldenOperation& op) {
  Views views{rows(op, "q"), rows(op, "k"), rows(op, "v"), {}, {}};
  const double scale = q_scale(op, views.q.dim(-1));
  if (scale != 1) views.q = views.q * scale;
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

constexpr std::int64_t kMostIterations = 256;  // each is a part of the traced program

GoldenOutputs mesa_net(const GoldenOperation& op) {
  if (op.says("start")) op.only("start", {"x0 = 0"});
  if (op.says("chunk_size")) op.integer("chunk_size", 1);  // the numbers do not depend on it
  Views views = heads_of(op);
  views.gates["rate"] = gate_rows(op, "beta");
  views.gates["forget"] = exp(gate_rows(op, "g"));
  const std::int64_t heads = views.k.dim(1), dim = views.k.dim(3);
  const Tensor lamb = op.input("lamb", 2);
  const bool exact = op.text("op") == "mesa_net_exact";
  const std::int64_t asked = exact ? 0 : op.integer("cg_iterations", 0, kMostIterations);
  // What is read behind no step is the start, 0, whatever the memories are.
  const int steps = exact ? ttt::MesaNet::kExact : static_cast<int>(std::max<std::int64_t>(asked, 1));
  const ttt::MesaNet learner(ttt::MesaNet::memories(lamb.dtype(), heads, dim, views.v.dim(3)),
                             reshape(lamb, {heads, 1, dim}), steps);
  const Weights zeros = ttt::for_batch(learner.init(), views.k.dim(0));
  const auto initial = [&](const char* name, std::size_t i) {
    return op.has(name) ? op.input(name, 4) : zeros.at(i).value;
  };
  const Weights start = zeros.with({initial("h_kk_init", 0), initial("h_kv_init", 1)});
  const InnerLoopResult r =
      run(op, learner, start, views, ttt::system_named("mesa-net").policy({heads, dim}));
  const Tensor o = !exact && asked == 0 ? nestgrad::zeros(r.output.dtype(), r.output.shape()) : r.output;
  return {{{"o", swap_if(time_first(op), o)}, {"h_kk", r.last()["H_kk"]}, {"h_kv", r.last()["H_kv"]}},
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
  return op.integer("momentum_order", 0, 1) == 1;
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
  const std::int64_t time = views.k.dim(2), batch = titans_batch(op, tokens, time);
  const bool momentum = titans_momentum(op);
  const Tensor decay = gate_rows(op, "decay"), keep = 1.0 - decay;
  if (decay.dim(2) != time / tokens)
    throw IoError(fmt::format(
        "{}: 'chunk_size' in the metadata is {}, of which {} tokens have {}; 'in.decay' is for {}", op.path,
        tokens, time, time / tokens, decay.dim(2)));
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

constexpr std::int64_t kMostMuonSteps = 64;  // each is a part of the traced program

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
  const bool momentum = op.says("use_momentum") ? op.flag("use_momentum") : op.has("momentum");
  const ttt::LactOptions options{.momentum = momentum,
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
  const std::int64_t time = views.k.dim(2);
  const auto cut = [&](const std::string& key, Tensor x) {
    const auto [begin, end] = op.range(key, time);
    return slice(x, 2, begin, end);
  };
  if (op.says("apply_range")) views.q = cut("apply_range", views.q);  // otherwise to all
  views.k = cut("update_range", views.k);
  views.v = cut("update_range", views.v);
  for (auto& [name, rate] : views.gates) rate = cut("update_range", rate);
  const auto steps = static_cast<int>(op.integer("muon_update_steps", 0, kMostMuonSteps));
  const InnerLoopResult r = run_lact(op, views, ttt::lact_nvs_optimizer(steps, true),
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

// x and the weights say the sizes, too.
std::int64_t width_of(const GoldenOperation& op) {
  const std::int64_t width = op.input("x", 3).dim(2);
  if (op.says("dim") && op.integer("dim", 1) != width)
    throw IoError(fmt::format("{}: 'dim' in the metadata is {}, 'in.x' has {} features", op.path,
                              op.text("dim"), width));
  return width;
}

// Of w1, [1, heads, in, out].
std::int64_t extent_of_w1(const GoldenOperation& op, std::size_t axis) {
  const auto w1 = op.param_shapes.find("w1");
  return w1 != op.param_shapes.end() && w1->second.size() == 4 ? w1->second[axis] : 0;
}

std::int64_t heads_of_w1(const GoldenOperation& op) {
  const std::int64_t heads = extent_of_w1(op, 1);
  return heads < 1 || op.says("num_heads") ? op.integer("num_heads", 1) : heads;
}

GoldenOutputs vittt(const GoldenOperation& op) {
  const ttt::VisionResult r = ttt::vittt_block(op.input("x", 3), with_qkv_bias(op),
                                               {.width = width_of(op),
                                                .heads = heads_of_w1(op),
                                                .height = op.integer("h", 1),
                                                .image_width = op.integer("w", 1),
                                                .rate = op.says("lr") ? op.number("lr", 0) : 1,
                                                .scale = op.says("scale") ? op.number("scale") : 1.0 / 3,
                                                .form = op.form});
  return {{{"o", r.output}}, r.plan.form};
}

GoldenOutputs t5(const GoldenOperation& op, ttt::FastModel model) {
  const double eps = op.says("instance_norm_eps") ? op.number("instance_norm_eps", 0) : 1;
  const ttt::VisionResult r = ttt::t5_attention(op.input("x", 3), with_qkv_bias(op),
                                                {.width = width_of(op),
                                                 .heads = heads_of_w1(op),
                                                 .model = model,
                                                 .hidden = extent_of_w1(op, 3),
                                                 .norm_eps = eps,
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
