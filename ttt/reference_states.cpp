#include "ttt/reference_states.h"

#include "autograd/scan.h"
#include "ttt/forms/per_chunk.h"

namespace nestgrad::ttt {

namespace {

// [..] -> [1, ..]
Tensor as_part(Tensor t) {
  Shape shape = t.shape();
  shape.insert(shape.begin(), 1);
  return reshape(t, shape);
}

// The form that was chosen for the whole sequence may not suit a part, which has few chunks. So each part chooses its own, unless
// primal was asked for.
InnerLoopOptions for_part(const Policy& policy, FormChoice form) {
  return {.policy = policy, .form = form == FormChoice::primal ? form : FormChoice::automatic};
}

// Whole parts of so many tokens in a scan, so that the graph does not grow with their number.
struct Parts {
  std::int64_t count, tokens, rest;  // tokens after the last whole one
  Parts(std::int64_t time, std::int64_t every)
      : count(time / every), tokens(every), rest(time - count * every) {}
};

}  // namespace

std::vector<Tensor> states_along(const Learner& learner, const State& start, const Views& views,
                                 const Policy& policy, FormChoice form, std::int64_t every) {
  const InnerLoopOptions options = for_part(policy, form);
  const std::int64_t time = views.k.dim(2);
  const Parts parts(time, std::min(every, time));
  State state = start;
  std::vector<std::vector<Tensor>> found(state.flat().size());
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    state = train_along(learner, state, part(views, begin, end), options).state;
    const std::vector<Tensor> flat = state.flat();
    for (std::size_t i = 0; i < flat.size(); ++i) found[i].push_back(as_part(flat[i]));
  };
  if (parts.count == 1) {
    run(0, parts.tokens);
  } else {
    const Block all =
        split_chunks(Block{part(views, 0, parts.count * parts.tokens), true, {}, {}}, parts.count);
    Tensors xs{all.q, all.k, all.v};
    for (const auto& [name, rows] : all.gates) xs.push_back(rows);
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          Views now{x[0], x[1], x[2], {}, views.position};
          std::size_t at = 3;
          for (const auto& [name, rows] : all.gates) now.gates[name] = x[at++];
          const Tensors next = train_along(learner, state.with(carry), now, options).state.flat();
          return {next, next};
        },
        state.flat(), xs);
    for (std::size_t i = 0; i < found.size(); ++i) found[i].push_back(r.ys[i]);
    state = state.with(r.carries);
  }
  if (parts.rest > 0) run(time - parts.rest, time);
  std::vector<Tensor> out;
  for (const std::vector<Tensor>& each : found) out.push_back(concat(each, 0));
  return out;
}

InnerSteps inner_steps(const Learner& learner, const State& start, const Views& views, const Policy& policy,
                       FormChoice form) {
  const std::int64_t time = views.k.dim(2), chunk = policy.chunk_of(time);
  const Parts parts(time, std::min(chunk, time));
  const std::int64_t chunks = parts.count + (parts.rest > 0 ? 1 : 0);
  std::vector<Tensor> before =
      states_along(learner, start, views, policy, form, chunk);  // after each, so far
  const std::vector<Tensor> first = start.flat();
  for (std::size_t i = 0; i < before.size(); ++i)
    before[i] = concat({as_part(first[i]), slice(before[i], 0, 0, chunks - 1)}, 0);

  const Trained trained = restrict_to(learner, start, policy.trained);
  const DerivedLearner derived(*trained.learner, policy, trained.start, views);
  const PerChunkForm steps(derived, {});
  const std::size_t weights = trained.start.weights.size();
  std::vector<std::vector<Tensor>> gradients(weights);
  std::vector<Tensor> predictions;
  // Chunks [begin, end), whole ones side by side or the last.
  const auto take = [&](std::int64_t begin, std::int64_t end, std::int64_t tokens) {
    const Views own = part(views, begin * parts.tokens, begin * parts.tokens + (end - begin) * tokens);
    std::vector<Tensor> flat;
    for (const Tensor& t : before) flat.push_back(slice(t, 0, begin, end));
    const Trained now = restrict_to(learner, start.with(flat), policy.trained);
    const Block block = steps.with_own_gates(now.start, split_chunks(Block{own, true, {}, {}}, end - begin));
    const Weights at = now.start.weights.with(steps.points(now.start, block));
    const std::vector<Tensor> g = steps.mean_gradients(at, block);
    for (std::size_t i = 0; i < weights; ++i) gradients[i].push_back(g[i]);
    predictions.push_back(join_chunks(steps.predict(at, block.k)));
  };
  take(0, parts.count, parts.tokens);
  if (parts.rest > 0) take(parts.count, chunks, parts.rest);

  InnerSteps out;
  for (std::size_t i = 0; i < weights; ++i) {
    out.names.push_back(trained.start.weights.at(i).name);
    out.gradients.push_back(concat(gradients[i], 0));
  }
  out.predictions = concat(predictions, 2);
  return out;
}

}  // namespace nestgrad::ttt
