#include "ttt/inner_loop.h"

#include <fmt/format.h>

#include "autograd/scan.h"

namespace nestgrad::ttt {

namespace {

// One mini-batch.
struct Chunk {
  Tensor q, k, v;     // [batch, heads, tokens, dim]
  Tensor token_rate;  // [batch, heads, 1, tokens]
};

struct ChunkResult {
  Tensor output;
  Weights next;
  std::vector<Tensor> losses;  // initial, before, after; [batch, heads, tokens, 1]
};

// -eta, masked so that a token sees the gradients up to its own: [batch, heads, tokens, tokens].
Tensor step_matrix(const Chunk& chunk, Tensor position) {
  const std::int64_t tokens = chunk.k.dim(-2);
  const Tensor rows = reshape(slice(position, 0, 0, tokens), {tokens, 1});
  return tril(-(rows * chunk.token_rate));
}

ChunkResult run_chunk(const Form& form, const Weights& first, const Weights& w, const Chunk& chunk,
                      Tensor position, bool track) {
  const Tensor z = step_matrix(chunk, position);
  const Gradients g = form.gradients(w, chunk.k, chunk.v);
  ChunkResult out;
  out.output = form.predict(w, g, z, chunk.q);
  const std::int64_t tokens = z.dim(-2);
  out.next = form.end_state(w, g, slice(z, -2, tokens - 1, tokens));
  if (!track) return out;
  const Tensor before = pad(slice(z, -2, 0, tokens - 1), -2, 1, 0);  // each row one token earlier
  out.losses = {form.loss(first, g, {}, chunk.k, chunk.v), form.loss(w, g, before, chunk.k, chunk.v),
                form.loss(w, g, z, chunk.k, chunk.v)};
  return out;
}

// [batch, heads, chunks * tokens, dim] -> [chunks, batch, heads, tokens, dim]
Tensor split(Tensor x, std::int64_t chunks) {
  const Tensor parts = reshape(x, {x.dim(0), x.dim(1), chunks, x.dim(2) / chunks, x.dim(3)});
  return permute(parts, {2, 0, 1, 3, 4});
}
Tensor join(Tensor x) {
  const Tensor parts = permute(x, {1, 2, 0, 3, 4});
  return reshape(parts, {parts.dim(0), parts.dim(1), parts.dim(2) * parts.dim(3), parts.dim(4)});
}

Tensor as_row(Tensor rate) { return reshape(rate, {rate.dim(0), rate.dim(1), 1, rate.dim(2)}); }

Chunk range(const Views& views, const Rates& rates, std::int64_t begin, std::int64_t end) {
  return {slice(views.q, 2, begin, end), slice(views.k, 2, begin, end), slice(views.v, 2, begin, end),
          as_row(slice(rates.token, 2, begin, end))};
}

}  // namespace

Weights for_batch(const Weights& w, std::int64_t batch) {
  std::vector<Tensor> values;
  for (const Tensor& t : w.values()) {
    Shape shape = t.shape();
    shape.insert(shape.begin(), batch);
    values.push_back(broadcast_to(t, shape));
  }
  return w.with(values);
}

InnerLoopResult train_along(const Learner& learner, const Weights& start, const Views& views,
                            const Rates& rates, const InnerLoopOptions& options) {
  const Scope scope("inner loop");
  const std::int64_t time = views.k.dim(2), size = options.mini_batch;
  if (size < 1)
    throw ConfigError(fmt::format("[inner_loop] the mini-batch size must be at least 1, it is {}", size));
  const std::int64_t chunks = time / size, full = chunks * size;
  if (rates.position.dim(0) < std::min(size, time))
    throw ShapeError(fmt::format("[inner_loop] position rates are {}, mini-batches have {} tokens",
                                 to_string(rates.position.spec()), size));

  Weights w = start;
  std::vector<Tensor> outputs;
  std::vector<std::vector<Tensor>> losses(3);
  const auto collect = [&](Tensor output, const std::vector<Tensor>& chunk_losses) {
    outputs.push_back(output);
    for (std::size_t i = 0; i < chunk_losses.size(); ++i) losses[i].push_back(chunk_losses[i]);
  };
  const auto run_alone = [&](std::int64_t begin, std::int64_t end) {
    const Chunk chunk = range(views, rates, begin, end);
    const ChunkResult r = run_chunk(*make_form(learner, options.form, w, chunk.k, chunk.v), start, w, chunk,
                                    rates.position, options.track_loss);
    collect(r.output, r.losses);
    w = r.next;
  };

  if (chunks == 1) run_alone(0, size);
  if (chunks > 1) {
    const Chunk all = range(views, rates, 0, full);
    const Tensor token_rate = split(reshape(all.token_rate, {all.k.dim(0), all.k.dim(1), full, 1}), chunks);
    const Tensors xs{split(all.q, chunks), split(all.k, chunks), split(all.v, chunks), token_rate};
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> Step {
          const Weights now = w.with(carry);
          const Chunk chunk{x[0], x[1], x[2], as_row(x[3])};
          const ChunkResult c = run_chunk(*make_form(learner, options.form, now, x[1], x[2]), start, now,
                                          chunk, rates.position, options.track_loss);
          Step step{c.next.values(), {c.output}};
          step.ys.insert(step.ys.end(), c.losses.begin(), c.losses.end());
          return step;
        },
        w.values(), xs, {.checkpoint_every = options.checkpoint_every});
    std::vector<Tensor> joined;
    for (std::size_t i = 1; i < r.ys.size(); ++i) joined.push_back(join(r.ys[i]));
    collect(join(r.ys[0]), joined);
    w = w.with(r.carries);
  }
  if (full < time) run_alone(full, time);

  InnerLoopResult out{
      .output = concat(outputs, 2), .last = w, .loss_initial = {}, .loss_before = {}, .loss_after = {}};
  if (options.track_loss) {
    const auto per_token = [&](const std::vector<Tensor>& parts) { return sum(concat(parts, 2), {-1}); };
    out.loss_initial = per_token(losses[0]);
    out.loss_before = per_token(losses[1]);
    out.loss_after = per_token(losses[2]);
  }
  return out;
}

Tensor train_step(const Learner& learner, const Weights& start, const Views& views, const Rates& rates,
                  Tensor slot, const InnerLoopOptions& options, Stream& stream, const std::string& name) {
  const Scope scope("inner step");
  const std::int64_t size = options.mini_batch, batch = views.k.dim(0), heads = views.k.dim(1);
  const DType dtype = views.k.dtype();
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < start.size(); ++i)
    values.push_back(stream.state(name + "." + start.at(i).name, start.at(i).value));
  const Weights w = start.with(values);
  const std::unique_ptr<Form> form = make_form(learner, options.form, w, views.k, views.v);

  // This token's gradient joins those of the mini-batch.
  const Tensor places = iota(dtype, {size, 1}, 0);
  const Tensor here = equal(places, slot);  // [size, 1]
  Gradients g = form->gradients(w, views.k, views.v);
  const auto remember = [&](Tensor& rows, const std::string& id) {
    if (!rows.defined()) return;
    Shape shape = rows.shape();
    shape[shape.size() - 2] = size;
    const Tensor cached = stream.state(id, zeros(dtype, shape));
    rows = select(here, rows, cached);
    stream.carry(id, rows);
  };
  for (std::size_t i = 0; i < g.size(); ++i) {
    remember(g[i].a, fmt::format("{}.gradient{}.a", name, i));
    remember(g[i].b, fmt::format("{}.gradient{}.b", name, i));
  }
  const Tensor seen_rates = stream.state(name + ".rate", zeros(dtype, {batch, heads, size, 1}));
  const Tensor token_rate = select(here, rates.token, seen_rates);
  stream.carry(name + ".rate", token_rate);

  const Tensor position = sum(here * reshape(rates.position, {size, 1}), {0});  // [1]
  const Tensor seen = less_equal(places, slot);
  const Tensor z = transpose(-(position * token_rate * seen));  // [batch, heads, 1, size]
  const Tensor out = form->predict(w, g, z, views.q);

  const Weights end = form->end_state(w, g, z);
  const Tensor full = equal(slot, static_cast<double>(size - 1));
  for (std::size_t i = 0; i < w.size(); ++i)
    stream.carry(name + "." + w.at(i).name, select(full, end.at(i).value, w.at(i).value));
  return out;
}

}  // namespace nestgrad::ttt
