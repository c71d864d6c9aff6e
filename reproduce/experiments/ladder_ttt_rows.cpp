#include "reproduce/experiments/ladder_ttt_rows.h"

#include <fmt/format.h>

#include "ttt/learners/matrix_memory.h"

namespace nestgrad::reproduce::ladder {

std::vector<Row> table_1() {
  std::vector<Row> out;
  Row row;
  const auto add = [&](std::string name, double perplexity) {
    row.name = std::move(name), row.perplexity = perplexity;
    out.push_back(row);
  };
  add("1 linear attention", 15.91);
  row.learner = Row::Learner::plain;
  add("2 no normaliser, no feature map", 15.23);
  row.learner = Row::Learner::ttt;
  add("3 TTT equivalence", 15.23);
  row.learnt_start = true;
  add("4 + learnable W0", 15.27);
  row.residual_norm = true;
  add("5 + LN and residual in f", 14.05);
  row.mini_batch = 16;
  add("6 + mini-batches of 16", 12.35);
  row.learnt_rate = true;
  add("7 + learnable rate", 11.99);
  row.mamba = true;
  add("8 + Mamba-like backbone", 11.09);
  return out;
}

std::string name_of(std::int64_t mini_batch) {
  if (mini_batch == 16) return table_1()[6].name;
  return mini_batch == ttt::Policy::kWholeSequence ? "7, mini-batch of all tokens"
                                                   : fmt::format("7, mini-batches of {}", mini_batch);
}

const std::vector<Row>& all_rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> out = table_1();
    for (const std::int64_t b : kMiniBatches) {
      if (b == 16) continue;
      Row row = out[6];
      row.name = name_of(b), row.perplexity = kUnknown, row.mini_batch = b;
      out.push_back(row);
    }
    return out;
  }();
  return all;
}

const std::string& rung(std::size_t number) { return all_rows().at(number - 1).name; }

namespace {

// q W / (q n), W the sum of k' v and n that of k: sum_s <q, k_s> v_s / sum_s <q, k_s>, where no number of q and k is
// negative. As a learner: a step of rate 1 on a loss that is linear in both.
class Normalised : public ttt::Learner {
 public:
  Normalised(const Params& params, const ttt::SystemSizes& s)
      : start_{ttt::matrix("W", zeros(params.dtype(), {s.heads, s.dim, s.dim})),
               ttt::matrix("n", zeros(params.dtype(), {s.heads, s.dim, 1}))} {}
  ttt::Weights init() const override { return start_; }
  Tensor predict(const ttt::Weights& w, Tensor q) const override {
    return matmul(q, w["W"]) / matmul(q, w["n"]);
  }
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
    return -(sum(matmul(k, w["W"]) * v, {-1}, kKeep) + matmul(k, w["n"]));
  }
  Description describe() const override { return {"x W / (x n)", "-(<k W, v> + k n)"}; }

 private:
  ttt::Weights start_;
};

// elu(x) + 1 (Katharopoulos et al. 2020): x + 1, below 0 exp(x).
Tensor feature_map(Tensor x) { return relu(x) + exp(min(x, 0.0)); }

}  // namespace

ttt::System system_of(const Row& row) {
  using Kind = Row::Learner;
  ttt::System out{.name = "rung", .title = row.name, .source = "Sun et al. 2024, Table 1"};
  out.learner = [row](const Params& p, const ttt::SystemSizes& s) -> std::unique_ptr<ttt::Learner> {
    if (row.learner == Kind::normalised) return std::make_unique<Normalised>(p, s);
    if (row.learner == Kind::plain)
      return std::make_unique<ttt::Composed>(ttt::matrix_memory(p, s), ttt::inner_product());
    ttt::Model model = row.learnt_start ? ttt::linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim},
                                                      {.residual_norm = row.residual_norm})
                                        : ttt::matrix_memory(p, s);
    // From row 5 on as in the published program, where a rate is divided by the dimension of a head.
    const double most = row.residual_norm ? 1 / static_cast<double>(s.dim) : 1;
    ttt::InnerOptimizer step;
    step.scale(row.learnt_rate ? most : most / 2);
    return std::make_unique<ttt::Composed>(std::move(model), ttt::squared_error(), step);
  };
  // The gradient of linear attention's loss is the same at all weights: any mini-batch is as good as another.
  const bool any = row.learner != Kind::ttt;
  out.policy = [b = any ? 1 : row.mini_batch](const ttt::SystemSizes&) { return ttt::Policy{.chunk = b}; };
  if (row.learnt_rate) out.gates = {ttt::sigmoid_gate("rate", 0)};
  if (row.learner == Kind::normalised)
    out.prepare = [](ttt::Views& views) {
      views.q = feature_map(views.q);
      views.k = feature_map(views.k);
    };
  return out;
}

namespace {

// q and k rotated by their place in the context, as a Transformer has them.
class Rotated : public ttt::Task {
 public:
  Rotated(std::unique_ptr<ttt::Task> task, std::int64_t heads, std::string name)
      : task_(std::move(task)), heads_(heads), name_(std::move(name)) {}
  Joined views(Tensor x, ttt::Stream& stream) const override {
    const Joined given = task_->views(x, stream);
    const Tensor place = stream.positions(name_ + ".place", given.q);
    const auto rotated = [&](Tensor rows) {
      return ttt::join_heads(rope(ttt::split_heads(rows, heads_), place, 10000));
    };
    return {rotated(given.q), rotated(given.k), given.v};
  }

 private:
  std::unique_ptr<ttt::Task> task_;
  std::int64_t heads_;
  std::string name_;
};

}  // namespace

LanguageRun run_of(const Row& row, const Settings& settings) {
  LanguageRun run;
  run.model = model_of(64, 2, 2, 16);
  run.model.use_gate = run.model.share_qk = run.model.pre_conv = row.mamba;
  run.system = system_of(row);
  run.task = [c = run.model](const Params& params, std::int64_t width, const std::string& name) {
    std::unique_ptr<ttt::Task> task;
    if (c.share_qk) task = std::make_unique<ttt::SharedQkViews>(params, width, c.conv_kernel, name);
    else task = std::make_unique<ttt::ProjectedViews>(params, width);
    return std::make_unique<Rotated>(std::move(task), c.num_attention_heads, name);
  };
  run.context = settings.full() ? 512 : 256;
  run.steps = settings.full() ? 1000 : 600;
  return run;
}

}  // namespace nestgrad::reproduce::ladder
