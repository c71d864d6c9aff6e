#include "ttt/inner_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/scan.h"
#include "ttt/check_gates.h"
#include "ttt/forms/law.h"

namespace nestgrad::ttt {

namespace {

// One number for each place of a chunk, or for each token of a sequence that is shorter.
void check_position(const Policy& policy, Tensor position, std::int64_t time) {
  if (!position.defined()) return;
  const std::int64_t chunk = policy.chunk_of(time), least = std::min(chunk, time);
  if (position.rank() == 1 && position.dim(0) >= least && position.dim(0) <= chunk) return;
  throw ShapeError(
      fmt::format("[inner_loop] position rates are {} ({}); they must be [{}], one for each place of a chunk",
                  to_string(position.spec()), describe(position), chunk));
}

// The tokens that are asked, and the position rates.
void check_tokens(const Policy& policy, const Views& views) {
  const std::int64_t time = views.k.dim(2);
  const bool whole = policy.chunk == Policy::kWholeSequence || policy.chunk >= time;
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  if (views.q.dim(2) != time && !(whole && per_chunk))
    throw ShapeError(
        fmt::format("[inner_loop] q is {} and k is {}: only a policy with one step for the whole sequence "
                    "may ask more or fewer tokens than it learns from",
                    to_string(views.q.spec()), to_string(views.k.spec())));
  if (views.position.defined() && per_chunk)
    throw ConfigError(
        "[inner_loop] position rates are for update = per_token: a step per chunk has no token's place");
  check_position(policy, views.position, time);
}

void check_views(const Policy& policy, const Views& views) {
  policy.check();
  if (views.alignment < 1)
    throw ConfigError(fmt::format(
        "[inner_loop] packed documents begin at multiples of {} tokens (Views::alignment); it must be 1 or more",
        views.alignment));
  if (views.k.rank() != 4 || views.q.rank() != 4 || views.v.rank() != 4)
    throw ShapeError(fmt::format("[inner_loop] views are [batch, heads, time, dim]; q is {}, k {}, v {}",
                                 to_string(views.q.spec()), to_string(views.k.spec()),
                                 to_string(views.v.spec())));
  const std::int64_t time = views.k.dim(2);
  if (time < 1)
    throw ShapeError(fmt::format("[inner_loop] k is {}: there is no token to train along; give at least one",
                                 to_string(views.k.spec())));
  if (views.starts.defined() && views.starts.shape() != Shape{views.k.dim(0), 1, time, 1})
    throw ShapeError(
        fmt::format("[inner_loop] starts of packed documents are {}; they must be {} beside k {}",
                    to_string(views.starts.spec()), to_string(Shape{views.k.dim(0), 1, time, 1}),
                    to_string(views.k.spec())));
  // Documents that are at least as long as the sequence begin with it, whatever its chunks are.
  const bool begins_inside = views.starts.defined() && views.alignment < time;
  if (begins_inside && policy.chunk_of(time) >= time)
    throw ConfigError(
        "[inner_loop] documents are packed, but the whole sequence is one chunk: the state can begin anew only between "
        "chunks. Give the policy chunks, of which each document has whole ones, or one document a sequence");
  if (begins_inside && views.alignment % policy.chunk != 0)
    throw ConfigError(fmt::format(
        "[inner_loop] packed documents begin at multiples of {} tokens, and chunks at multiples of {}: a document could "
        "begin inside of a chunk, whose tokens all learn from the same weights. Pack them at multiples of {}",
        views.alignment, policy.chunk, policy.chunk));
  if (views.v.dim(2) != time)
    throw ShapeError(fmt::format("[inner_loop] v is {} and k is {}: they must have as many tokens",
                                 to_string(views.v.spec()), to_string(views.k.spec())));
  check_tokens(policy, views);
}

// One tensor [chunks, ..] beside each weight that learns, or none.
void check_offsets(const char* option, const std::vector<Tensor>& offsets, const Weights& learning,
                   std::int64_t chunks) {
  if (offsets.empty()) return;
  if (offsets.size() != learning.size())
    throw ShapeError(fmt::format(
        "[inner_loop] {} has {} tensors, and {} weights learn; give one for each, as zero_offsets() does",
        option, offsets.size(), learning.size()));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    Shape wanted = learning.at(i).value.shape();
    wanted.insert(wanted.begin(), chunks);
    if (!offsets[i].defined() || offsets[i].shape() != wanted)
      throw ShapeError(fmt::format("[inner_loop] {} of weight '{}' is {}; it must be {}, one for each chunk",
                                   option, learning.at(i).name,
                                   offsets[i].defined() ? to_string(offsets[i].spec()) : "undefined",
                                   to_string(wanted)));
  }
}

// Weights cut from their past where `cut` is 1, [1] or [batch, 1, 1, 1].
State cut_state(const State& s, Tensor cut) {
  std::vector<Tensor> flat = s.flat();
  for (Tensor& t : flat) t = select(cut, stop_gradient(t), t);
  return s.with(flat);
}

// Of each chunk of packed documents, its number in its document, [chunks, batch, 1, 1, 1].
Tensor numbers_in_documents(Tensor starts, std::int64_t chunk, std::int64_t chunks) {
  const std::int64_t batch = starts.dim(0), time = starts.dim(2);
  const Tensor whole = concat({starts, zeros(starts.dtype(), {batch, 1, chunks * chunk - time, 1})}, 2);
  const Tensor first = slice(reshape(whole, {batch, chunks, chunk, 1, 1}), 2, 0, 1);
  const StepFn next = [](const Tensors& carry, const Tensors& begins) -> StepOutput {
    const Tensor number = (1.0 - begins[0]) * (carry[0] + 1.0);
    return {{number}, {number}};
  };
  const Tensor none = zeros(starts.dtype(), {batch, 1, 1, 1}) - 1.0;
  return scan(next, {none}, {permute(first, {1, 0, 2, 3, 4})}).ys[0];
}

// 1 where the weights that a chunk begins with are cut from their past, [chunks, batch or 1, 1, 1, 1]: where the horizon
// divides the chunk's number in its sequence or document, but for 0, which has no past. before: as
// InnerLoopOptions::chunks_before.
Tensor cuts_of_chunks(const Views& views, std::int64_t chunk, std::int64_t horizon, Tensor before) {
  const std::int64_t chunks = (views.k.dim(2) + chunk - 1) / chunk;
  Tensor number;
  if (views.starts.defined()) {
    number = numbers_in_documents(views.starts, chunk, chunks);
  } else {
    number = iota(views.k.dtype(), {chunks, 1, 1, 1, 1}, 0);
    if (before.defined()) number = number + before;
  }
  const auto period = static_cast<double>(horizon);
  const Tensor multiple = cast(cast(number / period, DType::i32), number.dtype()) * period;
  return equal(multiple, number) * (1.0 - equal(number, 0.0));
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

// What one step of the scan over blocks reads; outside of the scan, of all blocks, side by side.
struct BlockInputs {
  Block block;
  Laws laws;
  std::vector<Tensor> state_offset;
  Tensor cut;     // 1 where the weights are cut from their past; undefined: nowhere
  Tensor starts;  // 1 where a document begins; undefined: none does

  std::vector<Tensor*> tensors() {
    std::vector<Tensor*> out{&block.q, &block.k, &block.v};
    for (auto& [name, rows] : block.gates) out.push_back(&rows);
    for (Tensor* law : laws.tensors()) out.push_back(law);
    for (std::vector<Tensor>* offsets : {&block.offset, &state_offset})
      for (Tensor& offset : *offsets) out.push_back(&offset);
    if (cut.defined()) out.push_back(&cut);
    if (starts.defined()) out.push_back(&starts);
    return out;
  }
};

// A loop over so few chunks of so many tokens runs without its last one.
constexpr std::int64_t kFewBlocks = 16, kLargeBlock = 128;
// Where a step has coefficients of its own for each input feature, every pair of a block's tokens has as many: with 32
// features, blocks of 64 tokens take six to seven times as long as these.
constexpr std::int64_t kBlockOfFeatureGates = 8;

// Carries the state along the blocks of a sequence and gathers what they give.
class BlockWalk {
 public:
  BlockWalk(const DerivedLearner& learner, const Views& views, const InnerLoopOptions& options, State start)
      : learner_(learner),
        policy_(learner.policy()),
        views_(views),
        options_(options),
        lead_{views.k.dim(0), views.k.dim(1)},
        start_(start),
        state_(std::move(start)),
        losses_(3),
        points_(state_.weights.size()) {
    if (options.track_loss) first_ = state_.weights;
    if (policy_.meta == Policy::Meta::truncated)
      cuts_ = cuts_of_chunks(views, learner.chunk(), policy_.horizon, options.chunks_before);
  }

  void run(const FormRow& row) {
    const std::unique_ptr<Form> form = row.make(learner_, first_);
    const std::int64_t size = block_size(row.block), full = learner_.time() / size * size;
    // What the last large chunk makes of the weights is often read by nobody: outside of the loop, or of the
    // chunks that are worked on at once, it is then left out, with its derivative.
    const std::int64_t chunks = full / learner_.chunk();
    const bool by_chunks = row.block == BlockSize::one_chunk || row.block == BlockSize::all_chunks;
    const bool apart = by_chunks && chunks > 1 && chunks <= kFewBlocks && learner_.chunk() >= kLargeBlock &&
                       policy_.read == Policy::Read::before_write;
    const std::int64_t together = apart ? full - learner_.chunk() : full;
    if (row.block == BlockSize::all_chunks) {
      run_block(*form, 0, together);
    } else if (const std::int64_t looped = together / size; looped == 1) {
      run_block(*form, 0, size);
    } else if (looped > 1) {
      scan_blocks(*form, size, looped);
    }
    if (apart) run_block(*form, together, full);
    if (full == learner_.time()) return;
    if (row.block == BlockSize::one_chunk || row.block == BlockSize::any)
      return run_block(*form, full, learner_.time());
    // Whole chunks that fill no block, then a part of one.
    const std::unique_ptr<Form> dual = row_of(FormChoice::dual, row.update).make(learner_, first_);
    walk_chunks(full, learner_.time(), learner_.chunk(),
                [&](std::int64_t begin, std::int64_t end) { run_block(*dual, begin, end); });
  }

  InnerLoopResult result() const {
    InnerLoopResult out;
    out.output = outputs_.size() == 1 ? outputs_[0] : concat(outputs_, 2);
    for (const std::vector<Tensor>& parts : points_)
      if (!parts.empty()) out.points.push_back(concat(parts, 0));
    out.state = state_;
    if (!options_.track_loss) return out;
    const auto per_token = [&](const std::vector<Tensor>& parts) { return sum(concat(parts, 2), {-1}); };
    out.loss_initial = per_token(losses_[0]);
    out.loss_before = per_token(losses_[1]);
    out.loss_after = per_token(losses_[2]);
    return out;
  }

 private:
  std::int64_t block_size(BlockSize size) const {
    const std::int64_t chunk = learner_.chunk(), time = learner_.time();
    const std::int64_t most = learner_.has_feature_gates() ? kBlockOfFeatureGates : options_.block;
    const std::int64_t asked = std::min({options_.block, time, most});
    switch (size) {
      case BlockSize::one_chunk:
        return chunk;
      case BlockSize::any:
        return asked;
      case BlockSize::whole_chunks:
        return std::max(chunk, asked / chunk * chunk);
      case BlockSize::all_chunks:
        return time / chunk * chunk;
    }
    return chunk;
  }

  void run_block(const Form& form, std::int64_t begin, std::int64_t end) {
    Block block = block_of(views_, policy_, begin, end);
    const std::int64_t index = begin / learner_.chunk();
    block.offset = at_chunk(options_.gradient_offset, index);
    if (views_.starts.defined()) state_ = begun(state_, start_, slice(views_.starts, 2, begin, begin + 1));
    state_ = moved_by(state_, at_chunk(options_.state_offset, index));
    if (cuts_.defined()) state_ = cut_state(state_, at_chunk({cuts_}, index).front());
    block = form.with_own_gates(state_, std::move(block));
    const BlockResult r =
        form.run(state_, block, form.prepare(state_, block.gates, lead_, block.tokens(), block.position));
    outputs_.push_back(r.output);
    for (std::size_t i = 0; i < r.losses.size(); ++i) losses_[i].push_back(r.losses[i]);
    if (options_.keep_points) {
      const std::vector<Tensor> at = form.points(state_, block);
      for (std::size_t i = 0; i < at.size(); ++i) {
        Shape shape = at[i].shape();
        shape.insert(shape.begin(), 1);
        points_[i].push_back(reshape(at[i], shape));
      }
    }
    state_ = r.next;
  }

  BlockInputs inputs_of_all(const Form& form, std::int64_t size, std::int64_t blocks) const {
    BlockInputs all;
    all.block = split_chunks(block_of(views_, policy_, 0, blocks * size), blocks);
    if (Tensor& position = all.block.position; position.defined())
      position = slice(views_.position, 0, 0, std::min(size, views_.position.dim(0)));
    Shape lead = lead_;
    lead.insert(lead.begin(), blocks);
    if (learner_.own_gates().empty())
      all.laws = form.prepare(state_, all.block.gates, lead, size, all.block.position);
    for (const Tensor& offset : options_.gradient_offset)
      all.block.offset.push_back(slice(offset, 0, 0, blocks));
    for (const Tensor& offset : options_.state_offset)
      all.state_offset.push_back(slice(offset, 0, 0, blocks));
    if (views_.starts.defined()) {
      const Tensor each = reshape(slice(views_.starts, 2, 0, blocks * size), {lead_[0], blocks, size});
      all.starts = reshape(permute(slice(each, 2, 0, 1), {1, 0, 2}), {blocks, lead_[0], 1, 1, 1});
    }
    if (cuts_.defined()) all.cut = slice(cuts_, 0, 0, blocks);
    return all;
  }

  void scan_blocks(const Form& form, std::int64_t size, std::int64_t blocks) {
    BlockInputs all = inputs_of_all(form, size, blocks);
    const std::vector<Tensor*> tensors = all.tensors();
    Tensors xs;
    std::vector<std::size_t> varying;  // laws may be the same for all blocks
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i]->rank() >= static_cast<int>(lead_.size()) + 3 && tensors[i]->dim(0) == blocks) {
        varying.push_back(i);
        xs.push_back(*tensors[i]);
      }
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          BlockInputs now = all;
          const std::vector<Tensor*> own = now.tensors();
          for (std::size_t i = 0; i < varying.size(); ++i) *own[varying[i]] = x[i];
          State state = moved_by(begun(state_.with(carry), start_, now.starts), now.state_offset);
          if (now.cut.defined()) state = cut_state(state, now.cut);
          if (!learner_.own_gates().empty()) {
            now.block = form.with_own_gates(state, std::move(now.block));
            now.laws = form.prepare(state, now.block.gates, lead_, size, now.block.position);
          }
          const BlockResult b = form.run(state, now.block, now.laws);
          StepOutput step{b.next.flat(), b.losses};
          step.ys.push_back(b.output);
          if (options_.keep_points)
            for (const Tensor& placed : form.points(state, now.block)) step.ys.push_back(placed);
          return step;
        },
        state_.flat(), xs, {.checkpoint_every = options_.checkpoint_every});
    auto y = r.ys.begin();
    if (options_.track_loss)
      for (std::vector<Tensor>& parts : losses_) parts.push_back(join_chunks(*y++));
    outputs_.push_back(join_chunks(*y++));
    for (std::size_t i = 0; y != r.ys.end(); ++i) points_[i].push_back(*y++);
    state_ = state_.with(r.carries);
  }

  const DerivedLearner& learner_;
  const Policy& policy_;
  const Views& views_;
  const InnerLoopOptions& options_;
  const Shape lead_;
  Weights first_;      // with track_loss: the first of the sequence
  const State start_;  // of every document
  State state_;
  Tensor cuts_;  // as cuts_of_chunks() gives them; undefined: there are none
  std::vector<Tensor> outputs_;
  std::vector<std::vector<Tensor>> losses_;  // [initial, before, after]
  std::vector<std::vector<Tensor>> points_;  // of each weight
};

}  // namespace

void check(const InnerLoopOptions& options) {
  if (options.block < 1)
    throw ConfigError(fmt::format(
        "[inner_loop] {} tokens are to be worked on at once (InnerLoopOptions::block); it must be 1 or more",
        options.block));
  if (options.checkpoint_every < 0)
    throw ConfigError(fmt::format("[inner_loop] checkpoint_every is {}; it must be 0 or positive",
                                  options.checkpoint_every));
  if (options.chunks_before.defined() && options.chunks_before.shape() != Shape{1})
    throw ShapeError(fmt::format("[inner_loop] chunks_before is {}; it must be [1], how many there are",
                                 to_string(options.chunks_before.spec())));
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
  check(options);
  Views views = given_views;
  if (policy.query_is_key) views.q = views.k;
  check_views(policy, views);
  if (views.starts.defined() && options.chunks_before.defined())
    throw ConfigError(
        "[inner_loop] chunks_before is for sequences of one document: chunks of packed documents are counted from "
        "the start of each");
  const Trained trained = restrict_to(given, start, policy.trained);
  check_gates(trained, start.weights, views);
  const std::int64_t time = views.k.dim(2), chunk = policy.chunk_of(time),
                     chunks = (time + chunk - 1) / chunk;
  check_offsets("gradient_offset", options.gradient_offset, trained.start.weights, chunks);
  check_offsets("state_offset", options.state_offset, trained.start.weights, chunks);

  const DerivedLearner learner(*trained.learner, policy, trained.start, views);
  FormPlan plan = choose_form(learner, options.form);
  const bool by_step =
      !options.gradient_offset.empty() || !options.state_offset.empty() || options.keep_points;
  if (by_step && options.form == FormChoice::automatic &&
      row_of(plan.form, policy.update).block != BlockSize::one_chunk) {
    const bool dual = why_impossible(row_of(FormChoice::dual, policy.update), learner).empty();
    plan = choose_form(learner, dual ? FormChoice::dual : FormChoice::primal);
  }
  const FormRow& row = row_of(plan.form, policy.update);
  if (by_step && row.block != BlockSize::one_chunk)
    throw ConfigError(
        fmt::format("[inner_loop] offsets and points belong to chunks one after the other, which "
                    "the {} form does not have; ask for the dual or the primal form",
                    name(plan.form)));

  BlockWalk walk(learner, views, options, trained.start);
  walk.run(row);
  InnerLoopResult out = walk.result();
  out.plan = plan;
  out.state = with_trained(start, out.state, policy.trained);
  return out;
}

namespace {

// InnerLoopOptions::chunks_before of what comes after these views: their last chunk counts, whole or not.
Tensor chunks_after(const InnerLoopOptions& options, const Views& views) {
  const std::int64_t time = views.k.dim(2), chunk = options.policy.chunk_of(time);
  const Tensor chunks =
      broadcast_to(constant(static_cast<double>((time + chunk - 1) / chunk), views.k.dtype()), {1});
  return options.chunks_before.defined() ? options.chunks_before + chunks : chunks;
}

}  // namespace

std::vector<InnerLoopResult> train_along_each(const Learner& learner, const Weights& start,
                                              const std::vector<Views>& sequences,
                                              const InnerLoopOptions& options) {
  std::vector<InnerLoopResult> out;
  State state = State::start(learner, start);
  InnerLoopOptions now = options;
  for (const Views& views : sequences) {
    out.push_back(train_along(learner, state, views, now));
    if (!options.policy.carry) continue;
    if (views.starts.defined())
      throw ConfigError(
          "[inner_loop] packed documents begin with the learner's own weights, and Policy::carry has a sequence begin with "
          "those of the one before: leave out one of the two");
    state = out.back().state;
    if (options.policy.meta == Policy::Meta::truncated) now.chunks_before = chunks_after(now, views);
  }
  return out;
}

}  // namespace nestgrad::ttt
