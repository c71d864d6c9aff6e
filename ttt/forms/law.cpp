#include "ttt/forms/law.h"

#include <algorithm>

#include "autograd/scan.h"

namespace nestgrad::ttt {

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

std::vector<Tensor*> coefficients(StepLaw& law) {
  std::vector<Tensor*> out;
  for (std::size_t i = 0; i < law.p.size(); ++i) {
    for (Tensor& p : law.p[i]) out.push_back(&p);
    out.push_back(&law.r[i]);
  }
  return out;
}

// z and c after one more token, of which e is the unit vector; carry: z of each state, then c of each pair.
Tensors next_sums(const StepLaw& law, const Tensors& carry, Tensor e, const Shape& z_shape,
                  const Shape& c_shape) {
  const std::size_t n = law.p.size();
  const DType dtype = e.dtype();
  Tensors out;
  for (std::size_t i = 0; i < n; ++i) {
    Tensor z = times(law.r[i], e);
    for (std::size_t j = 0; j < n; ++j) z = add(z, times(law.p[i][j], carry[j]));
    out.push_back(z.defined() ? broadcast_to(z, z_shape) : zeros(dtype, z_shape));
  }
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      Tensor c;
      for (std::size_t k = 0; k < n; ++k) c = add(c, times(law.p[i][k], carry[n + k * n + j]));
      out.push_back(c.defined() ? broadcast_to(c, c_shape) : zeros(dtype, c_shape));
    }
  return out;
}

Sums run(const StepLaw& law, const Shape& lead, std::int64_t tokens, DType dtype, std::int64_t width,
         Tensor starts = {}) {
  const std::size_t n = law.p.size();
  Shape one = lead, all = lead;
  one.insert(one.end(), {1, width});
  all.insert(all.end(), {tokens, width});
  const int rank = static_cast<int>(all.size());

  // xs: every coefficient that differs from token to token, tokens first; then the unit vectors e_t.
  StepLaw rows = law;
  Tensors xs;
  std::vector<std::size_t> varying;
  std::vector<int> order{rank - 2};
  for (int d = 0; d < rank - 2; ++d) order.push_back(d);
  order.push_back(rank - 1);
  Shape moved = one;
  moved.insert(moved.begin(), tokens);
  const std::vector<Tensor*> each = coefficients(rows);
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (!each[i]->defined() || each[i]->rank() < 2 || each[i]->dim(-2) == 1) continue;
    varying.push_back(i);
    xs.push_back(reshape(permute(broadcast_to(*each[i], all), order), moved));
  }
  xs.push_back(reshape(eye(dtype, tokens), {tokens, tokens, 1}));  // [time, tokens, 1]
  if (starts.defined()) xs.push_back(permute(reshape(starts, {lead[0], 1, tokens, 1, 1}), {2, 0, 1, 3, 4}));

  Tensors init;
  for (std::size_t i = 0; i < n; ++i) init.push_back(zeros(dtype, all));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) init.push_back(full(dtype, one, i == j ? 1.0 : 0.0));
  const ScanResult r = scan(
      [&](const Tensors& carry, const Tensors& x) -> StepOutput {
        StepLaw now = law;
        const std::vector<Tensor*> own = coefficients(now);
        for (std::size_t i = 0; i < varying.size(); ++i) *own[varying[i]] = x[i];
        Tensors before = carry;
        if (starts.defined())
          for (std::size_t i = 0; i < before.size(); ++i) before[i] = select(x.back(), init[i], carry[i]);
        StepOutput step{next_sums(now, before, x[varying.size()], all, one), before};
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
  Sums out;
  out.width = width;
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

std::vector<Tensor*> Laws::tensors() {
  std::vector<Tensor*> out;
  const auto see = [&](Reads& r) {
    if (r.z.defined()) out.push_back(&r.z);
    for (Tensor& c : r.c)
      if (c.defined()) out.push_back(&c);
  };
  for (BlockLaw& law : each) {
    see(law.after);
    see(law.before);
    for (Reads& r : law.end) see(r);
  }
  for (Reads& r : points) see(r);
  return out;
}

BlockLaw sum_up(const StepLaw& step, const Shape& lead, std::int64_t tokens, DType dtype, Tensor position,
                Tensor starts) {
  const Scope scope("update law");
  BlockLaw out;
  const std::size_t n = step.p.size();
  const Tensor last = position.defined() ? slice(position, 0, tokens - 1, tokens) : position;
  if (step.accumulates() && !starts.defined()) {
    Tensor r = step.r[0];
    if (r.rank() < 2) r = broadcast_to(r, {tokens, 1});
    if (r.dim(-1) == 1) {
      Shape rows = r.shape();
      rows[rows.size() - 2] = tokens;
      r = transpose(broadcast_to(r, rows));
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
  const Sums sums = run(step, lead, tokens, dtype, step.width(), starts);
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
  const Sums sums = run(step, lead, tokens, dtype, std::max(step.width(), point.width()));
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
