#include "ttt/forms/law.h"

#include <fmt/format.h>

#include "autograd/scan.h"
#include "ops/rules.h"
#include "ttt/forms/affine.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

namespace {

bool is_constant_one(Tensor t) {
  const Node& n = node_of(t);
  if (n.op->kind != OpKind::constant || literal_of(n).size() != 1) return false;
  return literal_of(n).cast(DType::f64).as<double>()[0] == 1.0;
}

// A value of the traced step.
struct Value {
  enum class Kind : std::uint8_t { unknown, coefficient, linear, opaque } kind = Kind::unknown;
  Tensor rows;                // coefficient: on rows of gates
  std::vector<Tensor> terms;  // linear: coefficient of every state and of the gradient; undefined: 0
};

// Rows <-> columns: [.., tokens, in] <-> [.., in, 1] for one token.
bool is_column(const Spec& spec, std::int64_t in) {
  return spec.rank() < 2 ? spec.size() == 1
                         : spec.shape.back() == 1 && (spec.shape[spec.shape.size() - 2] == 1 ||
                                                      spec.shape[spec.shape.size() - 2] == in);
}
Tensor as_rows(Tensor column) { return column.rank() < 2 ? column : transpose(column); }

class Interpreter {
 public:
  using Fn =
      std::function<std::vector<Tensor>(const std::vector<Tensor>& state, Tensor g, const Gates& gates)>;

  Interpreter(const std::vector<Tensor>& state, const Gates& rows, const Fn& fn)
      : weight_(state[0].spec()), one_(constant(1.0, state[0].dtype())) {
    Graph& parent = emit_state().graph ? *emit_state().graph : state[0].graph();
    graph_ = std::make_unique<Graph>(GraphOptions{.parent = &parent, .hoist = false});
    std::vector<Tensor> inputs;
    Tensor g;
    Gates columns;
    {
      const GraphScope scope(*graph_);
      for (const Tensor& s : state) inputs.push_back(graph_->input(s.spec()));
      g = graph_->input(weight_, "gradient");
      for (const auto& [name, value] : rows) {
        Spec spec = value.spec();
        spec.shape[spec.shape.size() - 2] = spec.shape.back();
        spec.shape.back() = 1;
        columns[name] = graph_->input(spec, name);
      }
      const OwnLines lines;
      for (const Tensor& t : fn(inputs, g, columns)) outs_.push_back(graph_->lift(t));
    }
    values_.resize(static_cast<std::size_t>(graph_->size()));
    basis_ = state.size() + 1;
    for (std::size_t i = 0; i < state.size(); ++i)
      at(inputs[i].id()) = state[i].spec() == weight_ ? unit(i) : Value{Value::Kind::opaque, {}, {}};
    at(g.id()) = unit(state.size());
    for (const auto& [name, value] : rows) at(columns[name].id()) = {Value::Kind::coefficient, value, {}};
    for (const Capture& c : graph_->captures())
      at(c.id) = is_column(c.outer.spec(), weight_.shape[weight_.shape.size() - 2])
                     ? Value{Value::Kind::coefficient, as_rows(c.outer), {}}
                     : Value{Value::Kind::opaque, {}, {}};
    for (NodeId id = 0; id < graph_->size(); ++id) visit(id);
  }

  // Coefficients of out i.
  const std::vector<Tensor>& terms(std::size_t i) {
    const Value& v = at(outs_[i]);
    if (v.kind != Value::Kind::linear) refuse(outs_[i], "it is not linear in the state and the gradient");
    return v.terms;
  }

 private:
  Value& at(NodeId id) { return values_[static_cast<std::size_t>(id)]; }
  Value unit(std::size_t i) const {
    Value v{Value::Kind::linear, {}, std::vector<Tensor>(basis_)};
    v.terms[i] = one_;
    return v;
  }
  [[noreturn]] void refuse(NodeId id, const std::string& why) {
    throw FormError(fmt::format("[update] the step is not linear with one coefficient a token: at {}, {}",
                                describe_step(graph_->tensor(id)), why));
  }

  bool elementwise(const Node& n) const {
    return is_elementwise(*n.op, graph_->node(n.inputs[0]).spec, n.spec);
  }

  void visit(NodeId id) {
    Value& v = at(id);
    if (v.kind != Value::Kind::unknown) return;
    const Node& n = graph_->node(id);
    if (n.op->kind == OpKind::input) return;
    if (n.op->kind == OpKind::constant) {
      if (is_column(n.spec, weight_.shape[weight_.shape.size() - 2]))
        v = {Value::Kind::coefficient, as_rows(constant(literal_of(n))), {}};
      else v.kind = Value::Kind::opaque;
      return;
    }
    bool linear = false, opaque = false;
    for (NodeId in : n.inputs) {
      linear = linear || at(in).kind == Value::Kind::linear;
      opaque = opaque || at(in).kind == Value::Kind::opaque || at(in).kind == Value::Kind::unknown;
    }
    if (!linear && (opaque || n.inputs.empty() || !elementwise(n))) {
      if (n.op == &broadcast_op && !opaque) v = at(n.inputs[0]);  // a coefficient spread over the weight
      else v.kind = Value::Kind::opaque;
      return;
    }
    if (!linear) {
      std::vector<Tensor> in;
      for (NodeId i : n.inputs) in.push_back(at(i).rows);
      v = {Value::Kind::coefficient, emit(*n.op, in, n.attrs, n.loc), {}};
      return;
    }
    if (n.op == &broadcast_op && n.spec == weight_ && graph_->node(n.inputs[0]).spec == weight_) {
      v = at(n.inputs[0]);
      return;
    }
    if (opaque)
      refuse(id,
             "a value that is no gate joins the state (a constant offset, or a factor per weight element)");
    if (!elementwise(n)) refuse(id, "it mixes the elements of the weight");
    v = through(id, n);
  }

  // An elementwise op with a linear operand: its coefficient is what the op's derivative makes of it.
  Value through(NodeId id, const Node& n) {
    const NodeCall call(graph_->nodes(), n);
    for (std::size_t i = 0; i < n.inputs.size(); ++i)
      if (at(n.inputs[i]).kind == Value::Kind::linear &&
          (!n.op->vjp || !n.op->linear_in || !n.op->linear_in(call, static_cast<int>(i))))
        refuse(id, fmt::format("'{}' is a nonlinear function of the state", n.op->name));
    check_rule(id, n);

    Value out{Value::Kind::linear, {}, std::vector<Tensor>(basis_)};
    std::vector<Tensor> in;
    for (NodeId i : n.inputs) in.push_back(at(i).kind == Value::Kind::linear ? one_ : at(i).rows);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      if (at(n.inputs[i]).kind != Value::Kind::linear) continue;
      for (std::size_t b = 0; b < basis_; ++b) {
        const Tensor c = at(n.inputs[i]).terms[b];
        if (!c.defined()) continue;
        const Tensor part = n.op->vjp({in, one_, c, n.attrs, static_cast<int>(i)});
        out.terms[b] = out.terms[b].defined() ? out.terms[b] + part : part;
      }
    }
    return out;
  }

  // The rule of a linear operand must mention every coefficient beside it (it is a factor, not an offset) and
  // no state. It never mentions the output: the operand is linear.
  void check_rule(NodeId id, const Node& n) {
    Graph scratch;
    const GraphScope scope(scratch);
    const Spec spec{weight_.dtype, {1, 1}};
    std::vector<Tensor> in;
    for (NodeId i : n.inputs) in.push_back(scratch.input(Spec{graph_->node(i).spec.dtype, {1, 1}}));
    const Tensor y = scratch.input(spec), ct = scratch.input(spec);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      if (at(n.inputs[i]).kind != Value::Kind::linear) continue;
      const Tensor d = n.op->vjp({in, y, ct, n.attrs, static_cast<int>(i)});
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        const bool mentioned = mentions(d, in[k]), state = at(n.inputs[k]).kind == Value::Kind::linear;
        if (state && mentioned) refuse(id, "it is a product of two values that depend on the state");
        if (!state && !mentioned) refuse(id, "it adds a constant offset to the state");
      }
    }
  }

  Spec weight_;
  Tensor one_;
  std::unique_ptr<Graph> graph_;
  std::vector<NodeId> outs_;
  std::vector<Value> values_;
  std::size_t basis_ = 0;
};

}  // namespace

bool StepLaw::accumulates() const { return p.size() == 1 && p[0][0].defined() && is_constant_one(p[0][0]); }

namespace {

std::int64_t width_of(const std::vector<const StepLaw*>& laws) {
  std::int64_t width = 1;
  const auto see = [&](const Tensor& t) {
    if (t.defined() && t.rank() > 0) width = std::max(width, t.dim(-1));
  };
  for (const StepLaw* law : laws) {
    for (const auto& row : law->p)
      for (const Tensor& t : row) see(t);
    for (const Tensor& t : law->r) see(t);
  }
  return width;
}

}  // namespace

bool StepLaw::per_feature() const { return width_of({this}) > 1; }

StepLaw StepLaw::of(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                    const Gates& gates) {
  if (optimizer.couples_weights())
    throw FormError("[update] the step is not linear: one norm over all weights couples them");
  const std::vector<Tensor> own = state.of(weight);
  const WeightKind kind = state.weights.at(weight).kind;
  Interpreter steps(own, gates, [&](const std::vector<Tensor>& s, Tensor g, const Gates& columns) {
    return optimizer.step(s, g, columns, kind);
  });
  StepLaw out;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::vector<Tensor>& terms = steps.terms(i);
    out.p.emplace_back(terms.begin(), terms.end() - 1);
    out.r.push_back(terms.back());
  }
  return out;
}

StepLaw StepLaw::of_gradient_point(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                                   const Gates& gates) {
  const std::vector<Tensor> own = state.of(weight);
  Interpreter point(own, gates, [&](const std::vector<Tensor>& s, Tensor, const Gates& columns) {
    return std::vector<Tensor>{optimizer.gradient_point(s, columns)};
  });
  const std::vector<Tensor>& terms = point.terms(0);
  return {{{terms.begin(), terms.end() - 1}}, {terms.back()}};
}

namespace {

// Coefficients over a block as a scan along its tokens.
struct Sums {
  // [time, lead.., ..] stacks before and after each token; [i] state.
  std::vector<Tensor> z_before, z_after;               // [time, lead.., tokens, width]
  std::vector<std::vector<Tensor>> c_before, c_after;  // [i][j]: [time, lead.., 1, width]
  std::vector<Tensor> z_end;                           // [lead.., tokens, width]
  std::vector<std::vector<Tensor>> c_end;              // [lead.., 1, width]
  std::int64_t width = 1;
};

Tensor add(Tensor a, Tensor b) { return !a.defined() ? b : !b.defined() ? a : a + b; }
Tensor times(Tensor a, Tensor b) { return a.defined() && b.defined() ? a * b : Tensor(); }

Sums run(const StepLaw& law, const Shape& lead, std::int64_t tokens, DType dtype, std::int64_t width) {
  const std::size_t n = law.p.size();
  Sums out;
  out.width = width;
  Shape one = lead, all = lead;
  one.insert(one.end(), {1, width});
  all.insert(all.end(), {tokens, width});
  const int rank = static_cast<int>(all.size());

  // xs: every coefficient that differs from token to token, tokens first; then the unit vectors e_t.
  Tensors xs;
  std::vector<std::vector<int>> p_at(n, std::vector<int>(n, -1));
  std::vector<int> r_at(n, -1);
  std::vector<int> order{rank - 2};
  for (int d = 0; d < rank - 2; ++d) order.push_back(d);
  order.push_back(rank - 1);
  const auto per_token = [&](Tensor rows, int& at) {
    if (!rows.defined() || rows.rank() < 2 || rows.dim(-2) == 1) return;
    at = static_cast<int>(xs.size());
    Shape moved{tokens};
    moved.insert(moved.end(), one.begin(), one.end());
    xs.push_back(reshape(permute(broadcast_to(rows, all), order), moved));
  };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) per_token(law.p[i][j], p_at[i][j]);
    per_token(law.r[i], r_at[i]);
  }
  const Tensor identity = equal(iota(dtype, {tokens, tokens, 1}, 0), iota(dtype, {tokens, tokens, 1}, 1));
  xs.push_back(identity);  // [time, tokens, 1]

  // carries: z_i, then c_ij.
  Tensors init;
  for (std::size_t i = 0; i < n; ++i) init.push_back(zeros(dtype, all));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) init.push_back(full(dtype, one, i == j ? 1.0 : 0.0));
  const ScanResult r = scan(
      [&](const Tensors& carry, const Tensors& x) -> Step {
        const auto p = [&](std::size_t i, std::size_t j) {
          return p_at[i][j] < 0 ? law.p[i][j] : x[static_cast<std::size_t>(p_at[i][j])];
        };
        const auto gain = [&](std::size_t i) {
          return r_at[i] < 0 ? law.r[i] : x[static_cast<std::size_t>(r_at[i])];
        };
        Step step;
        for (std::size_t i = 0; i < n; ++i) {
          Tensor z = times(gain(i), x.back());
          for (std::size_t j = 0; j < n; ++j) z = add(z, times(p(i, j), carry[j]));
          step.carries.push_back(z.defined() ? broadcast_to(z, all) : zeros(dtype, all));
        }
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            Tensor c;
            for (std::size_t k = 0; k < n; ++k) c = add(c, times(p(i, k), carry[n + k * n + j]));
            step.carries.push_back(c.defined() ? broadcast_to(c, one) : zeros(dtype, one));
          }
        step.ys = carry;
        step.ys.insert(step.ys.end(), step.carries.begin(), step.carries.end());
        return step;
      },
      init, xs);
  const std::size_t total = init.size();
  const auto square_of = [&](const Tensors& from, std::size_t base) {
    std::vector<std::vector<Tensor>> m(n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) m[i].push_back(from[base + n + i * n + j]);
    return m;
  };
  for (std::size_t i = 0; i < n; ++i) {
    out.z_before.push_back(r.ys[i]);
    out.z_after.push_back(r.ys[total + i]);
    out.z_end.push_back(r.carries[i]);
  }
  out.c_before = square_of(r.ys, 0);
  out.c_after = square_of(r.ys, total);
  out.c_end = square_of(r.carries, 0);
  return out;
}

// [time, lead.., rows, width] -> [lead.., time, rows, width]
Tensor time_inside(Tensor stack) {
  const int rank = stack.rank();
  std::vector<int> order;
  for (int d = 1; d < rank - 2; ++d) order.push_back(d);
  order.insert(order.end(), {0, rank - 2, rank - 1});
  return permute(stack, order);
}

Tensor drop_axis(Tensor x, int axis) {
  Shape shape = x.shape();
  shape.erase(shape.end() + axis);
  return reshape(x, shape);
}

// Every slice of the axis `times` times in a row.
Tensor repeat_axis(Tensor x, int axis, std::int64_t times) {
  const int at = x.rank() + axis;
  Shape apart = x.shape(), together = x.shape();
  apart.insert(apart.begin() + at + 1, 1);
  const Tensor parts = reshape(x, apart);
  apart[static_cast<std::size_t>(at) + 1] = times;
  together[static_cast<std::size_t>(at)] *= times;
  return reshape(broadcast_to(parts, apart), together);
}

// Sums as what is read of one state.
Reads reads_of(const Tensor& z, const std::vector<Tensor>& c, std::int64_t width) {
  Reads out;
  const Tensor inside = time_inside(z);  // [lead.., time, tokens, width]
  out.z = width == 1 ? drop_axis(inside, -1) : inside;
  out.feature_axis = width > 1;
  for (const Tensor& each : c) out.c.push_back(drop_axis(time_inside(each), -2));  // [lead.., time, width]
  return out;
}

// Only `position` of the way from the block's first weight.
void go_part_of_the_way(Reads& reads, Tensor position, std::int64_t rows) {
  if (!position.defined()) return;
  const Tensor p = reshape(position, {rows, 1});
  reads.z = reads.z * (reads.feature_axis ? reshape(position, {rows, 1, 1}) : p);
  if (reads.keeps) return;
  for (std::size_t j = 0; j < reads.c.size(); ++j)
    if (reads.c[j].defined()) reads.c[j] = j == 0 ? 1.0 + p * (reads.c[j] - 1.0) : p * reads.c[j];
}

}  // namespace

void spread_over_tokens(Reads& r, std::int64_t chunk, bool rows) {
  const int features = r.feature_axis ? 1 : 0;
  r.z = repeat_axis(r.z, -1 - features, chunk);
  if (!rows) return;
  r.z = repeat_axis(r.z, -2 - features, chunk);
  for (Tensor& c : r.c)
    if (c.defined()) c = repeat_axis(c, -2, chunk);
}

BlockLaw sum_up(const StepLaw& step, const Shape& lead, std::int64_t tokens, DType dtype, Tensor position) {
  const Scope scope("update law");
  BlockLaw out;
  const std::size_t n = step.p.size();
  const Tensor last = position.defined() ? slice(position, 0, tokens - 1, tokens) : position;
  if (step.accumulates()) {
    Tensor r = step.r[0];
    if (r.rank() < 2) r = broadcast_to(r, {tokens, 1});
    if (r.dim(-1) == 1) {
      Shape rows = r.shape();
      rows[rows.size() - 1] = 1;
      rows[rows.size() - 2] = tokens;
      r = transpose(broadcast_to(r, rows));
      rows[rows.size() - 2] = tokens;
      rows[rows.size() - 1] = tokens;
      r = broadcast_to(r, rows);
      out.after.keeps = out.before.keeps = true;
      out.after.z = tril(r);
      out.before.z = tril(r, -1);
      Reads end;
      end.keeps = true;
      end.z = slice(out.after.z, -2, tokens - 1, tokens);
      go_part_of_the_way(end, last, 1);
      out.end.push_back(end);
      Tensor earlier;
      if (position.defined()) earlier = pad(slice(position, 0, 0, tokens - 1), 0, 1, 0);
      go_part_of_the_way(out.after, position, tokens);
      go_part_of_the_way(out.before, earlier, tokens);
      return out;
    }
  }
  const Sums sums = run(step, lead, tokens, dtype, width_of({&step}));
  out.after = reads_of(sums.z_after[0], sums.c_after[0], sums.width);
  out.before = reads_of(sums.z_before[0], sums.c_before[0], sums.width);
  for (std::size_t i = 0; i < n; ++i) {
    Reads end;
    end.feature_axis = sums.width > 1;
    Shape row = sums.z_end[i].shape();
    row.insert(row.end() - 2, 1);
    end.z = reshape(sums.z_end[i], row);
    if (sums.width == 1) end.z = drop_axis(end.z, -1);
    end.c = sums.c_end[i];
    if (i == 0) go_part_of_the_way(end, last, 1);
    out.end.push_back(end);
  }
  if (position.defined()) {
    go_part_of_the_way(out.before, pad(slice(position, 0, 0, tokens - 1), 0, 1, 0), tokens);
    go_part_of_the_way(out.after, position, tokens);
  }
  return out;
}

Reads gradient_points(const StepLaw& step, const StepLaw& point, const Shape& lead, std::int64_t tokens,
                      DType dtype) {
  const std::size_t n = step.p.size();
  if (step.accumulates() && point.accumulates()) return sum_up(step, lead, tokens, dtype, {}).before;
  const Sums sums = run(step, lead, tokens, dtype, width_of({&step, &point}));
  // point . (what each state is before the token)
  Reads out;
  out.feature_axis = sums.width > 1;
  std::vector<Tensor> c(n);
  Tensor z;
  for (std::size_t i = 0; i < n; ++i) {
    const Tensor p = point.p[0][i];  // rows [.., tokens, width]
    if (!p.defined()) continue;
    const Reads state = reads_of(sums.z_before[i], sums.c_before[i], sums.width);
    const Tensor factor = out.feature_axis && p.rank() >= 2 ? [&] {
      Shape shape = p.shape();
      shape.insert(shape.end() - 1, 1);
      return reshape(p, shape);
    }()
                                                            : p;
    z = add(z, factor * state.z);
    for (std::size_t j = 0; j < n; ++j) c[j] = add(c[j], p * state.c[j]);
  }
  out.z = z;
  out.c = c;
  return out;
}

}  // namespace nestgrad::ttt
