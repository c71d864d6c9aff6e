#include "tests/fuzz/loop_by_hand.h"

#include <algorithm>

#include "autograd/grad.h"
#include "ops/accumulate.h"

namespace nestgrad::fuzz {

namespace {

using ttt::Policy;
using ttt::Weights;
using Tensors = std::vector<Tensor>;

Tensor rows_of(Tensor x, std::int64_t begin, std::int64_t end) { return slice(x, 2, begin, end); }

Tensor length(Tensor x, ttt::Per per) {
  return per == ttt::Per::column ? norm(x, {-2}, kKeep) : norm(x, {-2, -1}, kKeep);
}
Tensor clipped(Tensor g, Tensor length, double most) {
  const Tensor longer = greater(length, most);
  return select(longer, most * g / select(longer, length, 1.0 + zero_like(length)), g);
}

// X / (|X| + eps), then X <- a X + (b X X' + c (X X')^2) X.
Tensor newton_schulz(Tensor x, const ttt::QuinticSteps& steps, double eps) {
  x = x / (norm(x, {-2, -1}, kKeep) + eps);
  for (const auto& [a, b, c] : steps) {
    const Tensor gram = matmul(x, transpose(x));
    x = a * x + b * matmul(gram, x) + c * matmul(gram, matmul(gram, x));
  }
  return x;
}

// The gates of one step, as columns [batch, heads, 1 or in, 1].
using Now = std::function<Tensor(const std::string& gate)>;

class Hand {
 public:
  explicit Hand(const TracedCase& traced)
      : traced_(traced), loop_(traced.loop), policy_(loop_.policy), views_(traced.views) {
    if (policy_.query_is_key) views_.q = views_.k;
    for (std::size_t i = 0; i < traced.start.size(); ++i) states_.push_back(start_of(traced.start.at(i)));
  }

  ttt::InnerLoopResult run() {
    const std::int64_t time = loop_.time;
    for (std::int64_t begin = 0; begin < time; begin += loop_.chunk()) {
      const std::int64_t index = begin / loop_.chunk();
      if (policy_.meta == Policy::Meta::truncated && index > 0 && index % policy_.horizon == 0)
        for (std::size_t i = 0; i < states_.size(); ++i)
          for (Tensor& t : states_[i])
            if (learns(i)) t = stop_gradient(t);
      const std::int64_t end = std::min(begin + loop_.chunk(), time);
      if (loop_.per_chunk()) chunk_at_once(begin, end);
      else token_by_token(begin, end);
    }
    ttt::InnerLoopResult out;
    out.output = concat(outputs_, 2);
    out.state = ttt::State::start(traced_.learner, weights());  // names and kinds of slots
    Tensors flat;
    for (const Tensors& s : states_) flat.insert(flat.end(), s.begin(), s.end());
    out.state = out.state.with(flat);
    const auto joined = [](const Tensors& parts) { return sum(concat(parts, 2), {-1}); };
    out.loss_initial = joined(initial_), out.loss_before = joined(before_), out.loss_after = joined(after_);
    return out;
  }

 private:
  // ---- the optimiser ----

  Tensors start_of(const ttt::FastWeight& w) const {
    Tensors s{w.value};
    const Tensor zero = 0.0 * w.value;
    for (const Piece& p : loop_.optimizer.pieces) {
      using Kind = Piece::Kind;
      if (p.kind == Kind::momentum || p.kind == Kind::nesterov) s.push_back(zero);
      if (p.kind == Kind::adam || p.kind == Kind::leapfrog) s.insert(s.end(), {zero, zero});
    }
    if (loop_.optimizer.anchored) s.push_back(w.value);
    if (has_fisher()) s.push_back(zero);
    const Optimizer::Norm norm = loop_.optimizer.norm;
    if (norm == Optimizer::Norm::none || w.kind == ttt::WeightKind::row) return s;
    const Tensor kept = norm == Optimizer::Norm::detached ? stop_gradient(w.value) : w.value;
    s.push_back(length(kept, ttt::Per::column));
    if (norm == Optimizer::Norm::prenorm) s.push_back(w.value);
    return s;
  }

  bool has_fisher() const { return loop_.optimizer.anchored && loop_.optimizer.anchor.fisher_memory > 0; }

  Tensor value_of(const Number& n, const Now& now) const {
    switch (n.from) {
      case Number::From::gate:
        return now(n.name);
      case Number::From::parameter:
        return n.parameter(traced_.params);
      case Number::From::constant:
        break;
    }
    return constant(n.value, DType::f64);
  }

  // Of all weights that learn, before each weight's own step.
  void join(std::vector<Tensor*> gradients) const {
    for (const Piece& p : loop_.optimizer.pieces) {
      if (p.per != ttt::Per::all) continue;
      Tensor squares;
      for (const Tensor* g : gradients) {
        const Tensor own = sum(square(*g), {-2, -1}, kKeep);
        accumulate(squares, own);
      }
      const Tensor all = root(squares);
      for (Tensor* g : gradients)
        *g = p.kind == Piece::Kind::clip ? clipped(*g, all, p.size) : *g / (all + p.size);
    }
  }
  // Without a derivative where it is zero.
  static Tensor root(Tensor squares) {
    const Tensor some = greater(squares, 0.0);
    return select(some, sqrt(select(some, squares, 1.0 + zero_like(squares))), zero_like(squares));
  }

  // What a piece makes of the gradient; s: its slots.
  Tensor after_piece(const Piece& p, Tensor g, std::span<Tensor> s, const Now& now, bool is_row) const {
    using Kind = Piece::Kind;
    switch (p.kind) {
      case Kind::scale:
        return value_of(p.number, now) * g;
      case Kind::momentum:
        return s[0] = value_of(p.number, now) * s[0] + g;
      case Kind::nesterov:
        s[0] = value_of(p.number, now) * s[0] + g;
        return g + value_of(p.number, now) * s[0];
      case Kind::adam:
        s[0] = 0.8 * s[0] + 0.2 * g;
        s[1] = 0.9 * s[1] + 0.1 * g * g;
        return s[0] / sqrt(s[1] + 1e-2);
      case Kind::muon:
        return is_row ? g : newton_schulz(g, p.quintics, p.size);
      case Kind::normalize:
        return p.per == ttt::Per::all ? g : g / (length(g, p.per) + p.size);
      case Kind::clip:
        return p.per == ttt::Per::all ? g : clipped(g, length(g, p.per), p.size);
      case Kind::leapfrog: {
        const Tensor n = value_of(p.number, now), place = s[0], speed = s[1];
        s[0] = 0.5 * place - speed / (1.0 + n);
        s[1] = 0.25 * speed + exp(-n) * g + exp(-n) * place;
        return s[0] + s[1] + 0.1 * g;
      }
      case Kind::soft_sign:
        break;
    }
    return g / (1.0 + abs(g));
  }
  static std::size_t slots_of(const Piece& p) {
    using Kind = Piece::Kind;
    return p.kind == Kind::momentum || p.kind == Kind::nesterov ? 1
           : p.kind == Kind::adam || p.kind == Kind::leapfrog   ? 2
                                                                : 0;
  }

  void step(Tensors g, const Now& now) {
    std::vector<Tensor*> learning;
    for (std::size_t i = 0; i < g.size(); ++i)
      if (learns(i)) learning.push_back(&g[i]);
    join(learning);
    const Optimizer& o = loop_.optimizer;
    for (std::size_t i = 0; i < g.size(); ++i) {
      if (!learns(i)) continue;
      Tensors& s = states_[i];
      const bool is_row = traced_.start.at(i).kind == ttt::WeightKind::row;
      std::size_t at = 1;
      Tensor d = g[i];
      for (const Piece& p : o.pieces) {
        d = after_piece(p, d, std::span(s).subspan(at, slots_of(p)), now, is_row);
        at += slots_of(p);
      }
      const std::size_t anchor = at;
      at += (o.anchored ? 1U : 0U) + (has_fisher() ? 1U : 0U);
      const bool normed = o.norm != Optimizer::Norm::none && !is_row;
      Tensor& moved = normed && o.norm == Optimizer::Norm::prenorm ? s[at + 1] : s[0];
      const Tensor found = moved;
      moved = value_of(o.keep, now) * found - d;
      if (o.anchored) {
        Tensor pull = found - s[anchor];
        if (has_fisher()) {
          const double memory = o.anchor.fisher_memory;
          s[anchor + 1] = memory * s[anchor + 1] + (1 - memory) * g[i] * g[i];
          pull = pull * s[anchor + 1];
        }
        moved = moved - value_of(o.pull, now) * pull;
      }
      if (normed) s[0] = moved * s[at] / (length(moved, ttt::Per::column) + o.norm_eps);
      if (o.anchored) s[anchor] = s[anchor] + o.anchor.follow * (s[0] - s[anchor]);
    }
  }

  // ---- the loop ----

  bool learns(std::size_t weight) const { return loop_.learns(traced_.start.at(weight).name); }
  Weights weights() const {
    Tensors w;
    for (const Tensors& s : states_) w.push_back(s[0]);
    return traced_.start.with(w);
  }
  // Of the way from one to the other.
  Weights between(const Weights& from, const Weights& to, Tensor share) const {
    Tensors w;
    for (std::size_t i = 0; i < from.size(); ++i)
      w.push_back(learns(i) ? (1.0 - share) * from.at(i).value + share * to.at(i).value : from.at(i).value);
    return from.with(w);
  }
  // Where a gradient is taken.
  Weights point(const Weights& w, const Now& now) const {
    Tensors at = w.values();
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (!learns(i)) continue;
      if (loop_.optimizer.keep_before) at[i] = value_of(loop_.optimizer.keep, now) * at[i];
      if (policy_.meta == Policy::Meta::first_order) at[i] = stop_gradient(at[i]);
    }
    return w.with(at);
  }
  // fn of the tokens [begin, end): of one after the other, or of all at once if they mix.
  Tensor over_tokens(std::int64_t begin, std::int64_t end,
                     const std::function<Tensor(std::int64_t begin, std::int64_t end)>& fn) const {
    if (loop_.learner.mixes) return fn(begin, end);
    Tensors parts;
    for (std::int64_t t = begin; t < end; ++t) parts.push_back(fn(t, t + 1));
    return concat(parts, 2);
  }
  Tensor loss(const Weights& w, std::int64_t begin, std::int64_t end) const {
    return over_tokens(begin, end, [&](std::int64_t from, std::int64_t to) {
      return traced_.learner.loss(w.spread(to - from), rows_of(views_.k, from, to),
                                  rows_of(views_.v, from, to));
    });
  }
  Tensor rate(std::size_t weight, std::int64_t begin, std::int64_t end) const {
    Tensor out = constant(policy_.ascent ? -1.0 : 1.0, DType::f64);
    for (const std::string& name : {std::string("rate"), "rate." + traced_.start.at(weight).name})
      if (const auto found = views_.gates.find(name); found != views_.gates.end())
        out = out * rows_of(found->second, begin, end);
    return out;
  }

  // The sum of the gradients of the losses of tokens [begin, end), times their rates.
  Tensors gradient(const Weights& at, std::int64_t begin, std::int64_t end) const {
    Tensors g(at.size());
    const auto add = [&](std::int64_t from, std::int64_t to) {
      Tensors probes = at.values();
      for (Tensor& w : probes) w = probe(w);
      const Weights seen = at.with(probes).spread(to - from).with_held(at.spread(to - from).values());
      const Tensor l = traced_.learner.loss(seen, rows_of(views_.k, from, to), rows_of(views_.v, from, to));
      for (std::size_t i = 0; i < g.size(); ++i) {
        if (!learns(i)) continue;
        const Tensor d = grad(sum(rate(i, from, to) * l), {probes[i]})[0];
        accumulate(g[i], d);
      }
    };
    if (loop_.learner.mixes) add(begin, end);
    else
      for (std::int64_t t = begin; t < end; ++t) add(t, t + 1);
    return g;
  }

  void token_by_token(std::int64_t begin, std::int64_t end) {
    const Weights first = weights();
    Weights found = first;
    for (std::int64_t t = begin; t < end; ++t) {
      const Now now = [&](const std::string& gate) {
        return transpose(rows_of(views_.gates.at(gate), t, t + 1));
      };
      step(gradient(point(first, now), t, t + 1), now);
      Weights left = weights();
      if (loop_.position) left = between(first, left, slice(views_.position, 0, t - begin, t - begin + 1));
      const Weights& read = policy_.read == Policy::Read::after_write ? left : found;
      outputs_.push_back(traced_.learner.predict(read, rows_of(views_.q, t, t + 1)));
      record(found, left, t, t + 1);
      found = left;
    }
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i][0] = found.at(i).value;
  }

  void chunk_at_once(std::int64_t begin, std::int64_t end) {
    const Weights before = weights();
    const Now now = [&](const std::string& gate) {
      return transpose(mean(rows_of(views_.gates.at(gate), begin, end), {2}, kKeep));
    };
    const bool writes = end - begin == loop_.chunk() || policy_.partial_chunk_writes;
    for (int n = 0; writes && n < policy_.steps; ++n) {
      Tensors g = gradient(point(weights(), now), begin, end);
      if (policy_.average)
        for (Tensor& each : g)
          if (each.defined()) each = each / static_cast<double>(end - begin);
      step(g, now);
    }
    const Weights after = weights();
    const Weights& read = policy_.read == Policy::Read::after_write ? after : before;
    outputs_.push_back(
        over_tokens(begin, loop_.asked ? loop_.asked : end, [&](std::int64_t from, std::int64_t to) {
          return traced_.learner.predict(read.spread(to - from), rows_of(views_.q, from, to));
        }));
    record(before, after, begin, end);
  }

  void record(const Weights& before, const Weights& after, std::int64_t begin, std::int64_t end) {
    initial_.push_back(loss(traced_.start, begin, end));
    before_.push_back(loss(before, begin, end));
    after_.push_back(loss(after, begin, end));
  }

  const TracedCase& traced_;
  const LoopCase& loop_;
  const Policy& policy_;
  ttt::Views views_;
  std::vector<Tensors> states_;  // per weight: the weight, then its slots
  Tensors outputs_, initial_, before_, after_;
};

}  // namespace

ttt::InnerLoopResult loop_by_hand(const TracedCase& traced) { return Hand(traced).run(); }

}  // namespace nestgrad::fuzz
