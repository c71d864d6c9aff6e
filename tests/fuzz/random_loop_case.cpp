#include "tests/fuzz/random_loop_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/core/random.h"
#include "ops/collectives.h"

namespace nestgrad::fuzz {

namespace {

using ttt::InnerOptimizer;
using ttt::Per;
using ttt::Policy;

class Equipped : public ttt::Learner {
 public:
  Equipped(RandomLearner::Made made, InnerOptimizer optimizer)
      : made_(std::move(made)), optimizer_(std::move(optimizer)) {}
  ttt::Weights init() const override { return made_.model.start; }
  Tensor predict(const ttt::Weights& w, Tensor x) const override { return made_.model.f(w, x); }
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override { return made_.loss(w, k, v); }
  InnerOptimizer optimizer() const override { return optimizer_; }

 private:
  RandomLearner::Made made_;
  InnerOptimizer optimizer_;
};

ttt::Hyper hyper(const Number& n, const Params& params) {
  if (n.from == Number::From::gate) return ttt::gate(n.name);
  if (n.from == Number::From::parameter) return n.parameter(params);
  return n.value;
}

const char* name_of(Per per) {
  return per == Per::column ? "column" : per == Per::matrix ? "matrix" : "all weights";
}

// ---- draws ----

class Lecturer {
 public:
  explicit Lecturer(Draws& draws) : draws_(draws) {}

  LoopCase loop() {
    LoopCase& l = loop_;
    l.batch = draws_.of<std::int64_t>({1, 2, 1, 3});
    l.heads = draws_.of<std::int64_t>({1, 2, 1, 3});
    l.in = draws_.between(1, 5);
    l.out = draws_.one_in(4) ? draws_.between(1, 5) : l.in;
    l.learner = draw_learner(draws_, l.in, l.out);
    policy();
    l.policy.trained = trained();
    rates();
    optimizer();
    l.position = !l.per_chunk() && draws_.one_in(6);
    numbers();
    return std::move(l);
  }

 private:
  void policy() {
    LoopCase& l = loop_;
    Policy& p = l.policy;
    p.update = draws_.below(5) < 3 ? Policy::Update::per_token : Policy::Update::per_chunk;
    p.chunk = draws_.of<std::int64_t>({1, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, Policy::kWholeSequence});
    const std::int64_t chunk = p.chunk == Policy::kWholeSequence ? 6 : p.chunk;
    const std::int64_t whole = draws_.below(p.chunk == 1 ? 8 : 4);
    l.time = std::clamp<std::int64_t>(whole * chunk + draws_.below(static_cast<int>(chunk)), 1, 20);
    p.read = draws_.below(2) ? Policy::Read::before_write : Policy::Read::after_write;
    p.ascent = draws_.one_in(8);
    p.query_is_key = draws_.one_in(8);
    p.partial_chunk_writes = !draws_.one_in(3);
    p.carry = draws_.one_in(8);
    if (l.per_chunk()) {
      p.average = draws_.one_in(3);
      p.steps = draws_.one_in(4) ? draws_.between(2, 3) : 1;
    }
    p.meta = draws_.of<Policy::Meta>({Policy::Meta::full, Policy::Meta::full, Policy::Meta::full,
                                      Policy::Meta::first_order, Policy::Meta::truncated});
    if (p.meta == Policy::Meta::truncated) p.horizon = draws_.between(1, 3);
    const bool one_step = l.per_chunk() && l.chunk() >= l.time;
    if (one_step && !p.query_is_key && draws_.one_in(6)) l.asked = draws_.between(1, 9);
  }

  std::vector<std::string> trained() {
    std::vector<std::string> out;
    const auto& weights = loop_.learner.weights;
    if (weights.size() < 2 || !draws_.one_in(5)) return out;
    for (const RandomModel::Weight& w : weights)
      if (draws_.one_in(2)) out.push_back(w.name);
    if (out.empty()) out.push_back(weights.front().name);
    if (draws_.one_in(2)) std::ranges::reverse(out);
    return out;
  }

  // Steps have to be small: by the rate of each token, by that of each weight, or by the optimiser.
  void rates() {
    const int kind = draws_.of<int>({0, 0, 0, 1, 2, 3});
    if (kind == 0 || kind == 1) loop_.gates.push_back({"rate", loop_.rate()});
    else if (kind == 3) loop_.optimizer.pieces.push_back(constant_scale());
    if (kind == 0) return;
    for (const RandomModel::Weight& w : loop_.learner.weights)
      if (loop_.learns(w.name) && (kind == 2 || draws_.one_in(2)))
        loop_.gates.push_back({"rate." + w.name, kind == 2 ? loop_.rate() : 1.5});
  }
  Piece constant_scale() const {
    return {Piece::Kind::scale, {.value = 0.5 * loop_.rate()}, Per::matrix, 0, {}};
  }

  // Numbers per feature are for matrices that all have as many inputs as a key has features.
  bool features_fit() const {
    for (const RandomModel::Weight& w : loop_.learner.weights)
      if (loop_.learns(w.name) && (w.kind != ttt::WeightKind::matrix || w.in != loop_.in)) return false;
    return true;
  }
  Number number(const char* what) {
    Number n{.value = draws_.of<double>({0.5, 0.9, 0.25}), .heads = loop_.heads, .in = loop_.in};
    n.from = draws_.of<Number::From>({Number::From::constant, Number::From::gate, Number::From::parameter});
    if (n.from == Number::From::constant) return n;
    n.per_feature = features_fit() && draws_.one_in(2);
    n.name = fmt::format("{}{}", what, ++count_);
    n.per_head = n.per_feature || !draws_.one_in(3);
    if (n.from == Number::From::gate) loop_.gates.push_back({n.name, 1, n.per_feature});
    return n;
  }

  void piece() {
    using Kind = Piece::Kind;
    Piece p;
    const std::vector<Kind> linear{Kind::scale, Kind::momentum, Kind::nesterov, Kind::leapfrog},
        all{Kind::scale,     Kind::momentum, Kind::nesterov, Kind::adam,     Kind::muon,
            Kind::normalize, Kind::clip,     Kind::leapfrog, Kind::soft_sign};
    p.kind = draws_.of(linear_ ? linear : all);
    const bool has_number = p.kind == Kind::scale || p.kind == Kind::momentum || p.kind == Kind::nesterov ||
                            p.kind == Kind::leapfrog;
    if (has_number) p.number = number("number");
    if (p.kind == Kind::muon) p.quintics = ttt::muon_published(draws_.between(1, 2));
    if (p.kind == Kind::normalize || p.kind == Kind::clip)
      p.per = draws_.of<Per>({Per::matrix, Per::column, Per::all});
    if (p.kind == Kind::clip) p.size = draws_.of<double>({0.1, 0.02, 1});
    loop_.optimizer.pieces.push_back(p);
    const bool unit = p.kind == Kind::adam || p.kind == Kind::muon || p.kind == Kind::normalize;
    if (unit) loop_.optimizer.pieces.push_back(constant_scale());
  }

  void optimizer() {
    Optimizer& o = loop_.optimizer;
    linear_ = !draws_.one_in(3);
    for (int n = 0; n < 3 && draws_.below(5) >= 3; ++n) piece();
    if (draws_.one_in(3)) {
      o.keep = number("keep");
      const bool evenly = o.keep.from != Number::From::gate;
      o.keep_before = (loop_.per_chunk() || loop_.policy.chunk == 1 || evenly) && draws_.one_in(3);
    }
    if (draws_.one_in(5)) {
      o.anchored = true;
      o.pull = number("pull");
      o.anchor = {.fisher_memory = linear_ ? 0 : draws_.of<double>({0, 0.6}),
                  .follow = draws_.of<double>({0, 0, 0.3})};
    }
    if (linear_ && draws_.below(4) < 3) return;
    o.norm = draws_.of<Optimizer::Norm>({Optimizer::Norm::none, Optimizer::Norm::none, Optimizer::Norm::none,
                                         Optimizer::Norm::none, Optimizer::Norm::none,
                                         Optimizer::Norm::weight_norm, Optimizer::Norm::detached,
                                         Optimizer::Norm::prenorm});
  }

  void numbers() {
    LoopCase& l = loop_;
    l.block = draws_.of<std::int64_t>({64, 1, 2, 3, 5, 8});
    l.checkpoint_every = draws_.of<int>({0, 0, 1, 2, 3});
    if (draws_.one_in(6))
      for (std::int64_t t = 0; t < l.time; ++t)
        if (draws_.one_in(3)) l.zeros.push_back(static_cast<int>(t));
    l.seed = draws_.seed();
  }

  Draws& draws_;
  LoopCase loop_;
  bool linear_ = true;  // are the steps linear in the gradient
  int count_ = 0;
};

void say(Draws& draws, const LoopCase& l) {
  draws.say(fmt::format("batch {}, heads {}, time {}, in {}, out {}{}", l.batch, l.heads, l.time, l.in, l.out,
                        l.asked ? fmt::format(", {} tokens asked", l.asked) : ""));
  draws.say("learner    " + l.learner.text);
  std::vector<std::string> weights, gates;
  for (const RandomModel::Weight& w : l.learner.weights)
    weights.push_back(fmt::format("{} [{}, {}]", w.name, w.in, w.out));
  for (const Gate& g : l.gates)
    gates.push_back(fmt::format("{} = {} sigmoid{}", g.name, g.factor, g.per_feature ? " per feature" : ""));
  draws.say(fmt::format("weights    {}", fmt::join(weights, ", ")));
  draws.say("optimiser  " + l.optimizer.text());
  draws.say("policy     " + l.policy.str());
  draws.say(fmt::format("gates      {}{}", fmt::join(gates, ", "), l.position ? "; position rates" : ""));
  draws.say(fmt::format("numbers    seed {}, zero tokens [{}], blocks of {}, checkpoints {}", l.seed,
                        fmt::join(l.zeros, " "), l.block, l.checkpoint_every));
}

}  // namespace

std::function<Tensor(Tensor raw)> Gate::shape() const {
  return [factor = factor](Tensor raw) { return factor * sigmoid(raw); };
}

Tensor Number::parameter(const Params& params) const {
  return sigmoid(params("optimizer." + name, per_head ? Shape{heads, per_feature ? in : 1, 1} : Shape{}));
}

std::string Number::text() const {
  if (from == From::constant) return fmt::format("{}", value);
  return fmt::format("{} {}{}", from == From::gate ? "gate" : "learned", name,
                     per_feature ? " per feature" : "");
}

std::string Piece::text() const {
  constexpr const char* kKinds[] = {"scale",     "momentum", "Nesterov", "Adam",     "Muon",
                                    "normalise", "clip",     "leapfrog", "soft sign"};
  std::string out = kKinds[static_cast<int>(kind)];
  if (kind == Kind::normalize || kind == Kind::clip)
    return fmt::format("{} per {}, {}", out, name_of(per), size);
  if (kind == Kind::muon) return fmt::format("{} of {} steps", out, quintics.size());
  return kind == Kind::adam || kind == Kind::soft_sign ? out : out + " " + number.text();
}

std::string Optimizer::text() const {
  std::vector<std::string> out;
  for (const Piece& p : pieces) out.push_back(p.text());
  out.push_back(fmt::format("keep {}{}", keep.text(), keep_before ? " before the gradient" : ""));
  if (anchored)
    out.push_back(fmt::format("anchor {}, Fisher over {}, following by {}", pull.text(), anchor.fisher_memory,
                              anchor.follow));
  constexpr const char* kNorms[] = {"", "weight norm", "weight norm detached",
                                    "weight norm of a master copy"};
  if (norm != Norm::none) out.emplace_back(kNorms[static_cast<int>(norm)]);
  return fmt::format("{}", fmt::join(out, ", "));
}

InnerOptimizer Optimizer::make(const Params& params) const {
  InnerOptimizer out;
  for (const Piece& p : pieces) {
    const ttt::Hyper number = hyper(p.number, params);
    switch (p.kind) {
      case Piece::Kind::scale:
        out.scale(number);
        break;
      case Piece::Kind::momentum:
      case Piece::Kind::nesterov:
        out.momentum(number, p.kind == Piece::Kind::nesterov);
        break;
      case Piece::Kind::adam:
        out.adam(0.8, 0.9, 1e-2);
        break;
      case Piece::Kind::muon:
        out.muon(p.quintics, p.size);
        break;
      case Piece::Kind::normalize:
        out.normalize(p.per, p.size);
        break;
      case Piece::Kind::clip:
        out.clip(p.per, p.size);
        break;
      case Piece::Kind::leapfrog:
        out.piece("leapfrog",
                  [number](Tensor g, std::span<Tensor> slots, const ttt::Gates& gates) {
                    const Tensor n = number.at(gates, g), old = slots[0];
                    slots[0] = 0.5 * old - slots[1] / (1.0 + n);
                    slots[1] = 0.25 * slots[1] + exp(-n) * (g + old);
                    return slots[0] + slots[1] + 0.1 * g;
                  },
                  {"running", "speed"});
        break;
      case Piece::Kind::soft_sign:
        out.piece("soft sign",
                  [](Tensor g, std::span<Tensor>, const ttt::Gates&) { return g / (1.0 + abs(g)); });
        break;
    }
  }
  out.keep(hyper(keep, params), keep_before);
  if (anchored) out.anchor(hyper(pull, params), anchor);
  if (norm == Norm::prenorm) out.prenorm(norm_eps);
  else if (norm != Norm::none) out.weight_norm(norm_eps, norm == Norm::detached);
  return out;
}

bool Optimizer::smooth() const {
  return std::ranges::none_of(
      pieces, [](const Piece& p) { return p.kind == Piece::Kind::clip || p.kind == Piece::Kind::soft_sign; });
}

bool LoopCase::smooth() const { return learner.smooth && optimizer.smooth(); }

bool LoopCase::learns(const std::string& weight) const {
  return policy.trained.empty() || std::ranges::find(policy.trained, weight) != policy.trained.end();
}

std::unique_ptr<ttt::Learner> LoopCase::make(const Params& params) const {
  RandomLearner::Made made = learner.make(params, heads);
  return std::make_unique<Equipped>(std::move(made), optimizer.make(params));
}

LoopCase draw_loop_case(Draws& draws) {
  LoopCase loop = Lecturer(draws).loop();
  say(draws, loop);
  return loop;
}

Function program(const LoopCase& l, std::int64_t time,
                 const std::function<std::vector<Tensor>(const TracedCase&)>& fn, const ProcessGroup* ranks) {
  const auto rows = [&](std::int64_t tokens, std::int64_t dim) {
    return Spec{DType::f64, {l.batch, l.heads, tokens, dim}};
  };
  std::vector<Spec> specs{rows(l.asked ? l.asked : time, l.in), rows(time, l.in), rows(time, l.out)};
  for (const Gate& gate : l.gates) specs.push_back(rows(time, gate.per_feature ? l.in : 1));
  if (l.position) specs.push_back({DType::f64, {l.chunk()}});
  return trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*context().emit.graph, DType::f64);
        Params params(table);
        std::vector<Tensor> here = in;
        if (ranks) {
          params = params.through(
              [whole = params, ranks](const Params::Request& r) { return vary(whole.get(r), *ranks); });
          for (std::size_t i = 0; i < here.size(); ++i)
            here[i] = i < 3 + l.gates.size() ? own(in[i], *ranks) : vary(in[i], *ranks);
        }
        const std::unique_ptr<ttt::Learner> learner = l.make(params);
        ttt::Views views{here[0], here[1], here[2], {}, {}};
        for (std::size_t i = 0; i < l.gates.size(); ++i)
          views.gates[l.gates[i].name] = l.gates[i].shape()(here[3 + i]);
        if (l.position) views.position = sigmoid(here.back());
        std::vector<Tensor> inputs = in;
        inputs.insert(inputs.end(), table.tensors().begin(), table.tensors().end());
        return fn({l, params, *learner, ttt::for_batch(learner->init(), l.batch), views, inputs});
      },
      specs);
}

std::vector<Array> numbers_for(const LoopCase& l, const Function& program) {
  std::vector<Array> out;
  for (std::size_t i = 0; i < program.inputs().size(); ++i) {
    const Spec spec = program.input_spec(i);
    out.push_back(random_normal(spec, 0, 0.5, l.seed, i));
    if (i > 2) continue;
    const auto numbers = out.back().as<double>();
    const auto tokens = spec.shape[2], dim = spec.shape[3];
    for (std::int64_t n = 0; n < spec.size(); ++n)
      if (std::ranges::count(l.zeros, static_cast<int>(n / dim % tokens)))
        numbers[static_cast<std::size_t>(n)] = 0;
  }
  return out;
}

}  // namespace nestgrad::fuzz
