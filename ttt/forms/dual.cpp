#include "ttt/forms/dual.h"

namespace nestgrad::ttt {

namespace {

Gates means(const Gates& rows, std::int64_t chunk) {
  return each(rows, [&](Tensor value) {
    Shape parts = value.shape();
    parts[parts.size() - 2] /= chunk;
    parts.insert(parts.end() - 1, chunk);
    return mean(reshape(value, parts), {-2});
  });
}

}  // namespace

Laws DualForm::prepare(const State& state, const Gates& gates, const Shape& lead, std::int64_t tokens,
                       Tensor position) const {
  Laws out;
  const DType dtype = state.weights.at(0).value.dtype();
  const bool per_chunk = policy_.update == Policy::Update::per_chunk;
  const std::int64_t chunk = per_chunk ? policy_.chunk : 1;
  const Gates steps = per_chunk ? means(gates, chunk) : gates;
  for (std::size_t i = 0; i < state.weights.size(); ++i) {
    BlockLaw law = sum_up(StepLaw::of(optimizer_, state, i, steps), lead, tokens / chunk, dtype, position);
    if (per_chunk) {
      spread_over_tokens(law.after, chunk, true);
      spread_over_tokens(law.before, chunk, true);
      for (Reads& end : law.end) spread_over_tokens(end, chunk, false);
      if (policy_.average) {
        const double weight = 1.0 / static_cast<double>(chunk);
        for (Reads* r : {&law.after, &law.before}) r->z = r->z * weight;
        for (Reads& end : law.end) end.z = end.z * weight;
      }
    }
    if (tokens == chunk) law.before.z = {};  // nothing has been added before the block's only step
    out.each.push_back(std::move(law));
  }
  return out;
}

Factors DualForm::factors(const State& state, const Block& block, const Laws&) const {
  return factors_at(derived_, gradient_point(state, block), block.k, block.v);
}

BlockResult DualForm::run(const State& state, const Block& block, const Laws& laws) const {
  Factors f = factors(state, block, laws);
  for (Factor& each : f)
    if (const Tensor rate = rate_of(block.gates, state.weights.at(each.weight)); rate.defined())
      each.b = each.b * rate;
  std::vector<Reads> after, before, unmoved(state.weights.size());
  for (const BlockLaw& law : laws.each) {
    after.push_back(law.after);
    before.push_back(law.before);
  }
  for (Reads& r : unmoved) r.keeps = true;

  BlockResult out;
  const LearnerTrace& predict = derived_.predict(state.weights, block.q.spec());
  out.output = read(predict, state, f, policy_.read == Policy::Read::after_write ? after : before,
                    std::span(&block.q, 1));
  out.next = end_state(state, f, laws.each);
  if (!tracking()) return out;
  const LearnerTrace& loss = derived_.loss(state.weights, block.k.spec(), block.v.spec());
  const Tensor rows[] = {block.k, block.v};
  const State first{first_, std::vector<std::vector<FastWeight>>(first_.size())};
  out.losses = {read(loss, first, {}, unmoved, rows), read(loss, state, f, before, rows),
                read(loss, state, f, after, rows)};
  return out;
}

}  // namespace nestgrad::ttt
