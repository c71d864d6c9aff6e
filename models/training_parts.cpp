// Training in parts: grains of a batch and slices of its sequences, which threads and processes share.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/run/spread.h"
#include "models/training.h"
#include "models/training_agreement.h"
#include "ops/collectives.h"
#include "ops/ops.h"

namespace nestgrad {

// Of a slice: each one's own.
std::vector<Tensor> Training::owned(std::vector<Tensor> batch, const ProcessGroup& slices) {
  for (Tensor& t : batch) t = own(t, slices);
  return batch;
}

namespace {

// The whole is the mean of slices: of losses and gradients that are each slice's own, or, of what all slices have added up, of equal
// ones. A loss of one kind with a gradient of the other would be so many times too large beside it as there are slices.
void require_one_kind(Tensor loss, const std::vector<Tensor>& gradients,
                      const std::vector<ParamSpec>& parameters) {
  const std::vector<Spread> kinds = spreads_of(loss.graph().nodes());
  const Spread& of_loss = kinds[uz(loss.id())];
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Spread& kind = kinds[uz(gradients[i].id())];
    if (!kind || !of_loss || kind == of_loss) continue;
    throw ConfigError(fmt::format(
        "[train] with slices the loss ({}) is {}, the gradient of '{}' is {}: they would not be of one loss. Let the "
        "objective give each slice's own loss, without all_sum(): the whole is the mean of them",
        describe(loss), text_of(of_loss), parameters[i].name, text_of(kind)));
  }
}

}  // namespace

// Of a grain or slice: its share of the loss, and of the gradients that there are.
std::vector<Tensor> Training::part_outputs(const Objective& objective, ParamTable& table, bool first) {
  const auto share = 1 / static_cast<double>(setup_.grains * setup_.slices);
  Objective of_batch{objective.loss * share};
  for (const Tensor& g : objective.gradients) of_batch.gradients.push_back(g.defined() ? g * share : g);
  const std::vector<Tensor> gradients = gradients_of(of_batch, table, first);
  if (setup_.slices > 1) require_one_kind(objective.loss, gradients, table.specs());
  std::vector<bool> stepped;
  for (const Tensor& g : gradients) stepped.push_back(g.defined());
  if (first) {
    sharded_ = std::make_unique<ShardedAdamW>(table.specs(), rules_, stepped, setup_.adamw,
                                              setup_.average_decay, leaves(), processes_);
    stepped_ = stepped;
  }
  if (stepped != stepped_)
    throw ConfigError(
        "[train] two kinds of grains change different parameters: with grains, the loss of each kind must "
        "depend on the same ones");
  std::vector<Tensor> out{of_batch.loss};
  for (const Tensor& g : gradients)
    if (g.defined()) out.push_back(g);
  return out;
}

Training::Step Training::step_grains(std::size_t kind, const GrainFn& batch_of, double rate) {
  if (here().has_slices()) throw ConfigError("[train] this training has slices: call step_parts()");
  require_function("train", "what makes the grains of a batch", batch_of);
  return step_parts(
      kind, [batch_of](std::int64_t grain, std::int64_t) { return batch_of(grain); }, rate);
}

// Loss and gradients of one part; `out`: arrays to write into.
float Training::run_part(Program& program, std::size_t plan, std::vector<Array> inputs,
                         ShardedAdamW::Gradients& out) const {
  check_batch(program, inputs);
  inputs.insert(inputs.end(), state_.begin(), state_.end());
  std::vector<Array> results = out;
  results.insert(results.begin(), Array(Spec{kType, {}}));
  program.plans[plan].run(inputs, results);
  return static_cast<float>(results[0].item());
}

// The losses of the grains here, in order; their gradients go into `sums`.
std::vector<float> Training::run_grains(Program& program, Sums& sums) {
  const IndexRange own = own_leaves();
  const auto at_once = std::ssize(program.plans);
  std::vector<float> losses;
  for (std::int64_t first = own.begin; first < own.end; first += at_once) {
    const std::int64_t count = std::min(at_once, own.end - first);
    std::vector<std::vector<Array>> inputs;
    std::vector<ShardedAdamW::Gradients> made;
    for (std::int64_t i = 0; i < count; ++i)
      inputs.push_back(last_batch_(first + i, 0)), made.push_back(spare_gradients());
    std::vector<float> here(uz(count));
    in_parallel(static_cast<int>(count), static_cast<int>(count),
                [&](int i, int) { here[uz(i)] = run_part(program, uz(i), inputs[uz(i)], made[uz(i)]); });
    for (std::int64_t i = 0; i < count; ++i) sums.push({first + i, first + i + 1}, std::move(made[uz(i)]));
    losses.insert(losses.end(), here.begin(), here.end());
  }
  return losses;
}

// Calls fn for each slice here, on a thread of its own.
void Training::on_slices(const std::function<void(std::int64_t slice, std::size_t here)>& fn) const {
  const IndexRange own = own_leaves();
  ranks_->run([&](Transport& rank) {
    std::optional<SingleThreadScope> alone;
    if (own.size() >= thread_count()) alone.emplace();
    fn(rank.rank(), uz(rank.rank() - own.begin));
  });
}

// The same of slices, side by side: each goes through all grains, so that all of them meet in each.
std::vector<float> Training::run_slices(Program& program, Sums& sums) {
  const IndexRange own = own_leaves();
  std::vector<float> losses(uz(own.size()));
  std::vector<ShardedAdamW::Gradients> made(uz(own.size()));
  std::mutex spare;  // guards spare_
  on_slices([&](std::int64_t slice, std::size_t here) {
    Sums of_grains(setup_.grains, [&](auto& a, auto& b) {
      ShardedAdamW::add(a, b);
      const std::lock_guard lock(spare);
      spare_.push_back(std::move(b));
    });
    for (std::int64_t grain = 0; grain < setup_.grains; ++grain) {
      std::vector<Array> inputs = last_batch_(grain, slice);
      std::unique_lock lock(spare);
      ShardedAdamW::Gradients out = spare_gradients();
      lock.unlock();
      losses[here] += run_part(program, here, std::move(inputs), out);
      of_grains.push({grain, grain + 1}, std::move(out));
    }
    made[here] = std::move(of_grains.roots().at(0).value);
  });
  for (std::int64_t s = own.begin; s < own.end; ++s)
    sums.push({s, s + 1}, std::move(made[uz(s - own.begin)]));
  return losses;
}

std::vector<std::vector<double>> Training::read_slices(const std::vector<Spec>& batch,
                                                       const SliceOutputFn& output, std::int64_t count,
                                                       const PartFn& batch_of) const {
  require_function("train", "what is to be read of slices", output);
  require_function("train", "what makes the slices of a batch", batch_of);
  require_begun();
  if (!has_slices())
    throw ConfigError("[train] read_slices() is of a training whose sequences are cut into slices");
  if (count < 0) throw ConfigError(fmt::format("[train] {} batches cannot be read", count));
  const StateDict params = parameters();
  std::vector<TracedModel> models;
  std::vector<Plan> plans;
  for (const ProcessGroup& slices : groups_) {
    models.push_back(trace_model(kType, batch, [&](ParamTable& table, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{output(table, owned(in, slices), slices)};
    }));
    plans.push_back(models.back().function.plan());
  }
  const auto each = uz(plans.at(0).output_specs().at(0).size());
  std::vector<double> mine(uz(count) * groups_.size() * each);  // [slices here, batches, numbers]
  on_slices([&](std::int64_t slice, std::size_t here) {
    for (std::int64_t b = 0; b < count; ++b) {
      const std::vector<double> made =
          plans[here].run(models[here].bind(batch_of(b, slice), {&params}))[0].to_vector();
      std::ranges::copy(made, mine.begin() + static_cast<std::ptrdiff_t>((here * uz(count) + uz(b)) * each));
    }
  });
  std::vector<double> all;
  for (const Bytes& part : processes_->all_gather(std::as_bytes(std::span(mine)))) {
    const std::size_t before = all.size();
    all.resize(before + part.size() / sizeof(double));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  std::vector<std::vector<double>> out(uz(count));
  for (std::size_t slice = 0; slice < uz(setup_.slices); ++slice)
    for (std::size_t b = 0; b < out.size(); ++b) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>((slice * out.size() + b) * each);
      out[b].insert(out[b].end(), from, from + static_cast<std::ptrdiff_t>(each));
    }
  return out;
}

void Training::compare_processes(const std::function<RunIdentity()>& identity) {
  require_begun();
  if (compared_ || processes_->size() == 1) return;
  TrainingShape shape{{}, unused_};
  for (const Program& p : programs_) {
    const std::vector<Spec>& inputs = p.plans[0].input_specs();
    shape.batches.emplace_back(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(p.given));
  }
  check_same_setup(*processes_, setup_, identity ? identity() : RunIdentity(), shape);
  check_same_start(*processes_, specs_, state_);
  compared_ = true;
}

Training::Step Training::step_parts(std::size_t kind, const PartFn& batch_of, double rate) {
  require_function("train", "what makes the parts of a batch", batch_of);
  if (!here().has_parts()) return step(kind, batch_of(0, 0), rate);
  Program& program = program_of(kind, rate);
  compare_processes();
  last_batch_ = batch_of, last_kind_ = kind;
  Sums sums(leaves(), [&](auto& a, auto& b) {
    ShardedAdamW::add(a, b);
    spare_.push_back(std::move(b));
  });
  const std::vector<float> losses = has_slices() ? run_slices(program, sums) : run_grains(program, sums);
  for (const auto& root : sums.roots()) spare_.push_back(root.value);  // to be used again when step() is done
  std::vector<Array> params;                                           // here, to be written over
  for (const Array& a : state_) params.push_back(a.to(Device::cpu()));
  const ShardedAdamW::Result r =
      sharded_->step(losses, std::move(sums.roots()), params, numbers_of(rate), kind);
  if (r.stepped)
    for (std::size_t i = 0; i < state_.size(); ++i)
      if (!state_[i].device().is_cpu()) copy(params[i], state_[i]);
  return finished({r.loss, r.grad_norm});
}

// On the CPU one grain for each thread, which takes less time than all threads for one; a GPU has one at a time.
int Training::grains_at_once() const {
  if (has_slices() || !has_parts() || !default_device().is_cpu()) return 1;
  return static_cast<int>(std::min<std::int64_t>(thread_count(), own_leaves().size()));
}

// Arrays for the gradients of one grain, whatever is in them.
ShardedAdamW::Gradients Training::spare_gradients() {
  if (!spare_.empty()) {
    ShardedAdamW::Gradients out = std::move(spare_.back());
    spare_.pop_back();
    return out;
  }
  ShardedAdamW::Gradients out;
  for (std::size_t i = 0; i < specs_.size(); ++i)
    if (stepped_[i]) out.emplace_back(kType, specs_[i].shape);
  return out;
}

}  // namespace nestgrad
