#include "ttt/inner_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/scan.h"
#include "ttt/forms/chunk_parallel.h"

namespace nestgrad::ttt {

namespace {

// [batch, heads, chunks * tokens, dim] -> [chunks, batch, heads, tokens, dim]
Tensor split(Tensor x, std::int64_t chunks) {
  const Tensor parts = reshape(x, {x.dim(0), x.dim(1), chunks, x.dim(2) / chunks, x.dim(3)});
  return permute(parts, {2, 0, 1, 3, 4});
}
Tensor join(Tensor x) {
  const Tensor parts = permute(x, {1, 2, 0, 3, 4});
  return reshape(parts, {parts.dim(0), parts.dim(1), parts.dim(2) * parts.dim(3), parts.dim(4)});
}

Gates each(const Gates& gates, const std::function<Tensor(Tensor)>& fn) {
  Gates out;
  for (const auto& [name, value] : gates) out[name] = fn(value);
  return out;
}

Block range(const Views& views, std::int64_t begin, std::int64_t end) {
  const auto cut = [&](Tensor x) { return slice(x, 2, begin, end); };
  const bool whole = begin == 0 && end == views.k.dim(2);  // q may then be longer
  return {whole ? views.q : cut(views.q),
          cut(views.k),
          cut(views.v),
          each(views.gates, cut),
          views.position.defined() ? slice(views.position, 0, 0, std::min(end - begin, views.position.dim(0)))
                                   : Tensor(),
          true,
          {}};
}

Block chunked(const Block& all, std::int64_t chunks) {
  const auto parts = [&](Tensor x) { return split(x, chunks); };
  Block out{parts(all.q), parts(all.k), parts(all.v), each(all.gates, parts), all.position, true, {}};
  return out;
}

// Numbers per input feature fit weights that have these
// inputs, and no rate: it multiplies a token's whole gradient.
void check_gate_widths(const Learner& learner, const Weights& weights, const Gates& gates) {
  const std::vector<std::string> used = learner.optimizer().gates();
  for (const auto& [name, rows] : gates) {
    const std::int64_t width = rows.dim(-1);
    const auto refuse = [&, &name = name, &rows = rows](const std::string& why) {
      throw ShapeError(
          fmt::format("[inner_loop] the gate '{}' is {}: {}", name, to_string(rows.spec()), why));
    };
    if (width == 1) continue;
    if (name == "rate" || name.starts_with("rate."))
      refuse("a rate is one number a token, [batch, heads, time, 1]");
    if (std::ranges::find(used, name) == used.end()) continue;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const FastWeight& w = weights.at(i);
      if (w.kind == WeightKind::row)
        refuse(
            fmt::format("it has a number per input feature, and '{}' is a row that has no inputs", w.name));
      if (w.value.dim(-2) != width)
        refuse(fmt::format("it has {} numbers a token, and '{}' is {} with {} inputs", width, w.name,
                           to_string(w.value.spec()), w.value.dim(-2)));
    }
  }
}

void check_views(const Learner& learner, const Policy& policy, const Views& views) {
  policy.check();
  for (const std::string& name : learner.optimizer().gates())
    if (!views.gates.contains(name))
      throw ConfigError(fmt::format(
          "[inner_loop] the learner's optimiser ({}) needs the gate '{}', which the views do not have",
          learner.optimizer().str(), name));
  if (views.k.rank() != 4 || views.q.rank() != 4 || views.v.rank() != 4)
    throw ShapeError(fmt::format("[inner_loop] views are [batch, heads, time, dim]; q is {}, k {}, v {}",
                                 to_string(views.q.spec()), to_string(views.k.spec()),
                                 to_string(views.v.spec())));
  const std::int64_t time = views.k.dim(2);
  if (time < 1)
    throw ShapeError(fmt::format("[inner_loop] k is {}: there is no token to train along; give at least one",
                                 to_string(views.k.spec())));
  for (const auto& [name, rows] : views.gates)
    if (rows.rank() != 4 || rows.dim(2) != time || rows.dim(0) != views.k.dim(0) ||
        rows.dim(1) != views.k.dim(1))
      throw ShapeError(fmt::format(
          "[inner_loop] the gate '{}' is {}; it must be [batch, heads, time, 1 or in] beside k {}", name,
          to_string(rows.spec()), to_string(views.k.spec())));
  if (views.v.dim(2) != time)
    throw ShapeError(fmt::format("[inner_loop] v is {} and k is {}: they must have as many tokens",
                                 to_string(views.v.spec()), to_string(views.k.spec())));
  const bool whole = policy.chunk == Policy::kWholeSequence || policy.chunk >= time;
  const bool after = policy.update == Policy::Update::per_chunk;
  if (views.q.dim(2) != time && !(whole && after))
    throw ShapeError(
        fmt::format("[inner_loop] q is {} and k is {}: only a policy with one step for the whole sequence "
                    "may ask more or fewer "
                    "tokens than it learns from",
                    to_string(views.q.spec()), to_string(views.k.spec())));
  const std::int64_t chunk = policy.chunk_of(time);
  if (views.position.defined() && after)
    throw ConfigError(
        "[inner_loop] position rates are for update = per_token: a step per chunk has no token's place");
  if (views.position.defined() && views.position.dim(0) < std::min(chunk, time))
    throw ShapeError(fmt::format("[inner_loop] position rates are {}, chunks have {} tokens",
                                 to_string(views.position.spec()), chunk));
}

// A learner of which only some weights learn; the others are constants of the inner loop.
class Restricted : public Learner {
 public:
  Restricted(const Learner& whole, Weights all, const std::vector<std::string>& trained)
      : whole_(whole), all_(std::move(all)) {
    for (const std::string& name : trained) {
      places_.push_back(all_.index(name));
      if (std::ranges::count(places_, places_.back()) > 1)
        throw ConfigError(fmt::format("[policy] '{}' is named twice among the weights that learn", name));
    }
  }
  Weights init() const override { return pick(whole_.init()); }
  Tensor predict(const Weights& w, Tensor x) const override { return whole_.predict(merged(w, x), x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return whole_.loss(merged(w, k), k, v); }
  InnerOptimizer optimizer() const override { return whole_.optimizer(); }

  Weights pick(const Weights& all) const {
    std::vector<FastWeight> out;
    for (std::size_t i : places_) out.push_back(all.at(i));
    return Weights(std::move(out));
  }

 private:
  Weights merged(const Weights& w, Tensor rows) const {
    std::vector<Tensor> values = all_.spread(rows.dim(-2)).values();
    std::vector<Tensor> held = values;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      values[places_[i]] = w.at(i).value;
      held[places_[i]] = w.held(w.at(i).name);
    }
    return all_.with(values).with_held(held);
  }
  const Learner& whole_;
  Weights all_;
  std::vector<std::size_t> places_;
};

std::unique_ptr<Form> make_form(FormChoice form, const FormOptions& options) {
  const bool per_chunk = options.policy.update == Policy::Update::per_chunk;
  switch (form) {
    case FormChoice::wy:
      return make_wy(options);
    case FormChoice::parallel:
      return make_dual(options);
    case FormChoice::dual:
      return per_chunk ? make_per_chunk(options, true) : make_dual(options);
    default:
      return per_chunk ? make_per_chunk(options, false) : make_primal(options);
  }
}

// Weights cut from their past where `cut` [1] is 1.
State cut_state(const State& s, Tensor cut) {
  std::vector<Tensor> flat = s.flat();
  for (Tensor& t : flat) t = select(cut, stop_gradient(t), t);
  return s.with(flat);
}

// Weights with `offset` added, one a weight, or none.
State moved_by(const State& s, std::span<const Tensor> offset) {
  if (offset.empty()) return s;
  State out = s;
  std::vector<Tensor> values = s.weights.values();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] + offset[i];
  out.weights = s.weights.with(values);
  return out;
}

// The part of chunk `index`, [chunks, ..] -> [..].
std::vector<Tensor> at_chunk(const std::vector<Tensor>& offsets, std::int64_t index) {
  std::vector<Tensor> out;
  for (const Tensor& offset : offsets)
    out.push_back(
        reshape(slice(offset, 0, index, index + 1), Shape(offset.shape().begin() + 1, offset.shape().end())));
  return out;
}

}  // namespace

Views part(const Views& views, std::int64_t begin, std::int64_t end) {
  const auto cut = [&](Tensor x) { return slice(x, 2, begin, end); };
  return {cut(views.q), cut(views.k), cut(views.v), each(views.gates, cut), views.position};
}

std::vector<Tensor> zero_offsets(const Weights& weights, std::int64_t chunks) {
  std::vector<Tensor> out;
  for (const Tensor& w : weights.values()) {
    Shape shape = w.shape();
    shape.insert(shape.begin(), chunks);
    out.push_back(probe(full(w.dtype(), shape, 0)));
  }
  return out;
}

Trained restrict_to(const Learner& learner, const State& start, const std::vector<std::string>& trained) {
  if (trained.empty()) return {nullptr, &learner, start};
  auto restricted = std::make_unique<Restricted>(learner, start.weights, trained);
  State own{restricted->pick(start.weights), {}};
  for (const std::string& name : trained) own.slots.push_back(start.slots[start.weights.index(name)]);
  const Learner* which = restricted.get();
  return {std::move(restricted), which, own};
}

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
                            const InnerLoopOptions& options) {
  return train_along(learner, State::start(learner, start), views, options);
}

InnerLoopResult train_along(const Learner& given, const State& start, const Views& given_views,
                            const InnerLoopOptions& options) {
  const Scope scope("inner loop");
  const Policy& policy = options.policy;
  Views views = given_views;
  if (policy.query_is_key) views.q = views.k;
  check_views(given, policy, views);
  const Trained trained = restrict_to(given, start, policy.trained);
  const Learner& learner = *trained.learner;
  check_gate_widths(learner, trained.start.weights, views.gates);
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  const std::int64_t time = views.k.dim(2), chunk = policy.chunk_of(time);

  State state = trained.start;
  const Weights first = options.track_loss ? state.weights : Weights();
  const FormOptions form_options{learner, policy, first};
  const InnerOptimizer optimizer = learner.optimizer();

  InnerLoopResult out;
  const Block sample = range(views, 0, std::min(chunk, time));
  out.plan = choose_form(analyse(learner, policy, state, sample), policy, optimizer, views.position.defined(),
                         views.k.dim(0) * views.k.dim(1), time, options.form);
  const FormChoice choice = out.plan.form;
  const std::unique_ptr<Form> form = make_form(choice, form_options);

  // Tokens that the form takes at once.
  std::int64_t size = chunk;
  const bool free_size = choice == FormChoice::parallel || choice == FormChoice::wy;
  if (free_size) {
    size = std::max<std::int64_t>(1, std::min(options.block, time));
    if (per_chunk) size = std::max(chunk, size / chunk * chunk);
  }
  const bool by_step =
      !options.gradient_offset.empty() || !options.state_offset.empty() || options.keep_points;
  if (by_step && (free_size || choice == FormChoice::chunk_parallel))
    throw ConfigError(
        fmt::format("[inner_loop] offsets and points belong to chunks one after the other, which "
                    "the {} form does not have; ask for the dual or the primal form",
                    name(choice)));

  std::vector<Tensor> outputs;
  std::vector<std::vector<Tensor>> losses(3);
  const auto collect = [&](Tensor output, const std::vector<Tensor>& block_losses) {
    outputs.push_back(output);
    for (std::size_t i = 0; i < block_losses.size(); ++i) losses[i].push_back(block_losses[i]);
  };
  std::vector<std::vector<Tensor>> points(state.weights.size());
  const auto is_cut = [&](std::int64_t index) {
    return policy.meta == Policy::Meta::truncated && index > 0 && index % policy.horizon == 0;
  };
  const Shape lead{views.k.dim(0), views.k.dim(1)};
  const auto run_alone = [&](const Form& how, std::int64_t begin, std::int64_t end) {
    Block block = range(views, begin, end);
    block.writes = policy.writes(end - begin, time);
    const std::int64_t index = begin / chunk;
    block.offset = at_chunk(options.gradient_offset, index);
    state = moved_by(state, at_chunk(options.state_offset, index));
    if (is_cut(index)) state = cut_state(state, constant(1.0, views.k.dtype()));
    const auto prepared = how.prepare(state, block.gates, lead, block.tokens(), block.position);
    const BlockResult r = how.run(state, block, prepared.get());
    collect(r.output, r.losses);
    if (options.keep_points) {
      const std::vector<Tensor> at = how.points(state, block);
      for (std::size_t i = 0; i < at.size(); ++i) {
        Shape shape = at[i].shape();
        shape.insert(shape.begin(), 1);
        points[i].push_back(reshape(at[i], shape));
      }
    }
    state = r.next;
  };

  const std::int64_t blocks = time / size, full = blocks * size;
  if (choice == FormChoice::chunk_parallel && blocks > 0) {
    const ChunkParallelResult r = run_chunks(form_options, state, chunked(range(views, 0, full), blocks));
    collect(r.output, r.losses);
    state = r.last;
  } else if (blocks == 1) {
    run_alone(*form, 0, size);
  } else if (blocks > 1) {
    const Block all = chunked(range(views, 0, full), blocks);
    const Tensor position = views.position.defined()
                                ? slice(views.position, 0, 0, std::min(size, views.position.dim(0)))
                                : Tensor();
    Shape lead_all = lead;
    lead_all.insert(lead_all.begin(), blocks);
    const auto prepared = form->prepare(state, all.gates, lead_all, size, position);

    Tensors xs{all.q, all.k, all.v};
    std::vector<std::string> gate_names;
    for (const auto& [name, rows] : all.gates) {
      gate_names.push_back(name);
      xs.push_back(rows);
    }
    // What was prepared for each block (other prepared tensors are the same for all).
    std::vector<std::size_t> varying;
    if (prepared) {
      const std::vector<Tensor*> tensors = prepared->tensors();
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i]->rank() >= static_cast<int>(lead_all.size()) + 2 && tensors[i]->dim(0) == blocks) {
          varying.push_back(i);
          xs.push_back(*tensors[i]);
        }
    }
    for (const auto* offsets : {&options.gradient_offset, &options.state_offset})
      for (const Tensor& offset : *offsets) xs.push_back(slice(offset, 0, 0, blocks));
    if (policy.meta == Policy::Meta::truncated) {
      std::vector<double> cuts;
      for (std::int64_t i = 0; i < blocks; ++i) cuts.push_back(is_cut(i) ? 1.0 : 0.0);
      xs.push_back(constant(Array::of(cuts, {blocks, 1}, views.k.dtype())));
    }
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> Step {
          std::size_t at = 3;
          State now = state.with(carry);
          Block block{x[0], x[1], x[2], {}, position, true, {}};
          for (const std::string& name : gate_names) block.gates[name] = x[at++];
          std::unique_ptr<Prepared> own = prepared ? prepared->clone() : nullptr;
          for (std::size_t i : varying) *own->tensors()[i] = x[at++];
          for (std::size_t i = 0; i < options.gradient_offset.size(); ++i) block.offset.push_back(x[at++]);
          now = moved_by(now, std::span(x).subspan(at, options.state_offset.size()));
          at += options.state_offset.size();
          if (policy.meta == Policy::Meta::truncated) now = cut_state(now, x[at]);
          const BlockResult b = form->run(now, block, own.get());
          Step step{b.next.flat(), {b.output}};
          step.ys.insert(step.ys.end(), b.losses.begin(), b.losses.end());
          if (options.keep_points)
            for (const Tensor& placed : form->points(now, block)) step.ys.push_back(placed);
          return step;
        },
        state.flat(), xs, {.checkpoint_every = options.checkpoint_every});
    std::vector<Tensor> joined;
    const std::size_t kept = options.keep_points ? points.size() : 0;
    for (std::size_t i = 1; i < r.ys.size() - kept; ++i) joined.push_back(join(r.ys[i]));
    for (std::size_t i = 0; i < kept; ++i) points[i].push_back(r.ys[r.ys.size() - kept + i]);
    collect(join(r.ys[0]), joined);
    state = state.with(r.carries);
  }
  if (full < time) {
    // The rest: whole chunks that fill no block, then a part of one.
    std::int64_t begin = full;
    if (per_chunk) {
      const auto rest = make_per_chunk(form_options, choice != FormChoice::primal);
      for (; begin < time; begin += chunk) run_alone(*rest, begin, std::min(begin + chunk, time));
    } else {
      run_alone(*form, begin, time);
    }
  }

  out.output = outputs.size() == 1 ? outputs[0] : concat(outputs, 2);
  for (const std::vector<Tensor>& parts : points)
    if (!parts.empty()) out.points.push_back(concat(parts, 0));
  out.state = state;
  if (!policy.trained.empty()) {
    State whole = start;
    std::vector<Tensor> values = whole.weights.values();
    for (std::size_t i = 0; i < policy.trained.size(); ++i) {
      const std::size_t place = whole.weights.index(policy.trained[i]);
      values[place] = state.weights.at(i).value;
      whole.slots[place] = state.slots[i];
    }
    whole.weights = whole.weights.with(values);
    out.state = whole;
  }
  if (options.track_loss) {
    const auto per_token = [&](const std::vector<Tensor>& parts) { return sum(concat(parts, 2), {-1}); };
    out.loss_initial = per_token(losses[0]);
    out.loss_before = per_token(losses[1]);
    out.loss_after = per_token(losses[2]);
  }
  return out;
}

std::vector<InnerLoopResult> train_along_each(const Learner& learner, const Weights& start,
                                              const std::vector<Views>& sequences,
                                              const InnerLoopOptions& options) {
  std::vector<InnerLoopResult> out;
  State state = State::start(learner, start);
  for (const Views& views : sequences) {
    out.push_back(train_along(learner, state, views, options));
    if (options.policy.carry) state = out.back().state;
  }
  return out;
}

}  // namespace nestgrad::ttt
