#include "ttt/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/scan.h"
#include "ops/collectives.h"

namespace nestgrad::ttt {

namespace {

// The sequence that a rank works on in each round.
Tensor sequence_of_round(std::int64_t batch, const ProcessGroup& ranks) {
  std::vector<double> sequences;
  for (std::int64_t round = 0; round < batch + ranks.size() - 1; ++round)
    sequences.push_back(static_cast<double>(std::clamp<std::int64_t>(round - ranks.rank(), 0, batch - 1)));
  const auto rounds = static_cast<std::int64_t>(sequences.size());
  return constant(Array::of(sequences, {rounds}, DType::i32));
}

// A view of one sequence, as a batch of one.
Tensor of_one(Tensor x) {
  Shape shape = x.shape();
  shape.insert(shape.begin(), 1);
  return reshape(x, shape);
}

}  // namespace

std::string why_not_passed_on(const Policy& policy, const Views& views, std::int64_t time) {
  if (policy.chunk == Policy::kWholeSequence) return "it learns from the whole sequence at once";
  if (time % policy.chunk != 0)
    return fmt::format("slices of {} tokens are not whole chunks of {}", time, policy.chunk);
  if (views.starts.defined()) return "packed documents would begin with what the rank before has left";
  return {};
}

Tensor train_along_slices(const Learner& learner, const Weights& start, const Views& views,
                          const InnerLoopOptions& options, const ProcessGroup& ranks,
                          const std::string& who) {
  if (const std::string why = why_not_passed_on(options.policy, views, views.k.dim(2)); !why.empty())
    throw ConfigError(fmt::format(
        "[pipeline] {}: its heads cannot be shared by {} slices of a sequence, and states cannot be passed on either: {}",
        who, ranks.size(), why));
  const std::int64_t batch = views.q.dim(0), rounds = batch + ranks.size() - 1;
  const Tensor sequences = sequence_of_round(batch, ranks);
  std::vector<std::string> gates;
  Tensors rows{gather(views.q, sequences), gather(views.k, sequences), gather(views.v, sequences)};
  for (const auto& [name, gate] : views.gates) gates.push_back(name), rows.push_back(gather(gate, sequences));
  // 0 at the first rank, which no one passes anything on to, and 1 elsewhere: no rank's program may lack what others wait for.
  const Tensor has_before = rank_before(zero_like(views.q) + 1.0, ranks);
  const Tensor mask = slice(reshape(has_before, {has_before.spec().size()}), 0, 0, 1);
  const State first = State::start(learner, start);
  const StepFn round = [&](const Tensors& left, const Tensors& x) -> StepOutput {
    Tensors begin;
    for (std::size_t i = 0; i < left.size(); ++i)
      begin.push_back(select(mask, rank_before(left[i], ranks), first.flat()[i]));
    Views own{of_one(x[0]), of_one(x[1]), of_one(x[2]), {}, views.position};
    for (std::size_t i = 0; i < gates.size(); ++i) own.gates[gates[i]] = of_one(x[3 + i]);
    const InnerLoopResult r = train_along(learner, first.with(begin), own, options);
    return {r.state.flat(), {r.output}};
  };
  const Tensor answers = scan(round, first.flat(), rows).ys[0];  // [rounds, 1, heads, time, dim]
  Shape shape = answers.shape();
  shape.erase(shape.begin() + 1);
  return slice(reshape(answers, shape), 0, ranks.rank(), ranks.rank() + (rounds - ranks.size() + 1));
}

}  // namespace nestgrad::ttt
