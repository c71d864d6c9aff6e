#include "models/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "autograd/grad.h"
#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/training_checkpoint.h"
#include "ops/collectives.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

constexpr DType kType = DType::f32;
constexpr std::size_t kNumbers = 3;  // inputs behind the batch: rate and two corrections
constexpr std::size_t kResults = 2;  // outputs before the parameters: loss, gradient norm
constexpr std::int64_t kMostGrains = 65536, kMostSlices = 1024;
constexpr const char* kParts[] = {"", "adamw.m.", "adamw.v.", "average."};

// Of a slice: each one's own.
std::vector<Tensor> owned(std::vector<Tensor> batch, const ProcessGroup& slices) {
  for (Tensor& t : batch) t = own(t, slices);
  return batch;
}

bool same(const std::vector<ParamSpec>& a, const std::vector<ParamSpec>& b) {
  return std::ranges::equal(
      a, b, [](const ParamSpec& x, const ParamSpec& y) { return x.name == y.name && x.shape == y.shape; });
}

}  // namespace

void TrainingSetup::check() const {
  adamw.check();
  if (!(average_decay >= 0) || average_decay >= 1)
    throw ConfigError(
        fmt::format("[train] average_decay must be at least 0 and below 1, it is {}", average_decay));
  if (grains < 1 || grains > kMostGrains)
    throw ConfigError(fmt::format("[train] grains must be from 1 to {}, they are {}", kMostGrains, grains));
  if (slices < 1 || slices > kMostSlices)
    throw ConfigError(fmt::format("[train] slices must be from 1 to {}, they are {}", kMostSlices, slices));
  const int all = processes ? processes->size() : 1;
  if (slices > 1 && slices < all)
    throw ConfigError(fmt::format(
        "[train] {} slices of a sequence cannot be shared by {} processes: cut it into {} or more (slices), or start "
        "fewer processes",
        slices, all, all));
  if (slices == 1 && grains < all)
    throw ConfigError(fmt::format(
        "[train] a batch of {} grain{} cannot be shared by {} processes: cut it into {} or more (grains), or start "
        "fewer processes",
        grains, grains == 1 ? "" : "s", all, all));
}

Training::Training(TrainingSetup setup)
    : setup_(std::move(setup)),
      processes_(setup_.processes ? setup_.processes : std::make_shared<OneProcess>()) {
  setup_.check();
  if (!has_slices()) return;
  const int at_once = default_device().is_cpu() ? thread_count() : 1;  // one thread at a time may use a GPU
  ranks_ = std::make_unique<RankThreads>(static_cast<int>(setup_.slices), processes_, at_once);
  const IndexRange own = own_leaves();
  for (std::int64_t s = own.begin; s < own.end; ++s) groups_.emplace_back(ranks_->rank(static_cast<int>(s)));
}

// Of each parameter; undefined where it stays as it is.
std::vector<Tensor> Training::gradients_of(const Objective& objective, ParamTable& table, bool first) {
  const std::vector<ParamSpec>& specs = table.specs();
  const std::vector<Tensor> params = table.tensors();
  for (const ParamSpec& p : specs)
    if (!is_parameter(p.name))
      throw ConfigError(fmt::format(
          "[train] the parameter '{}' is called as the optimiser's own numbers are; give it another name",
          p.name));
  const std::vector<ParameterRule> rules = rules_of(specs, setup_.groups, setup_.adamw);
  std::vector<Tensor> gradients = objective.gradients;
  if (gradients.empty()) {
    const GradSeed seed = seed_of_ones(objective.loss);
    std::vector<Tensor> wanted;
    for (std::size_t i = 0; i < params.size(); ++i)
      if (rules[i].rate != 0) wanted.push_back(params[i]);
    const std::vector<Tensor> found = pull_back(std::span(&seed, 1), wanted);
    gradients.resize(params.size());
    for (std::size_t i = 0, at = 0; i < params.size(); ++i)
      if (rules[i].rate != 0) gradients[i] = found[at++];
  }
  std::vector<std::string> unused, frozen;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (rules[i].rate == 0) gradients[i] = {}, frozen.push_back(specs[i].name);
    else if (!gradients[i].defined()) unused.push_back(specs[i].name);
  }
  if (unused.size() + frozen.size() == params.size())
    throw ConfigError(
        frozen.empty()
            ? "[train] the loss depends on none of the model's parameters: nothing would learn"
            : "[train] the loss depends on no parameter that may change: the groups freeze all others");
  if (first) rules_ = rules, unused_ = unused, frozen_ = frozen;
  return gradients;
}

// Of a grain or slice: its share of the loss, and of the gradients that there are.
std::vector<Tensor> Training::part_outputs(const Objective& objective, ParamTable& table, bool first) {
  const auto share = 1 / static_cast<double>(setup_.grains * setup_.slices);
  Objective of_batch{objective.loss * share};
  for (const Tensor& g : objective.gradients) of_batch.gradients.push_back(g.defined() ? g * share : g);
  const std::vector<Tensor> gradients = gradients_of(of_batch, table, first);
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

std::vector<Tensor> Training::updated(const Objective& objective, ParamTable& table,
                                      const std::vector<Tensor>& numbers, bool first) {
  const std::vector<ParamSpec>& specs = table.specs();
  const std::vector<Tensor> gradients = gradients_of(objective, table, first);
  const std::vector<Tensor> params = table.tensors();
  const std::vector<ParameterRule> rules = rules_of(specs, setup_.groups, setup_.adamw);
  std::vector<std::vector<Tensor>> state;
  for (std::size_t copy = 1; copy < copies(); ++copy) {
    state.emplace_back();
    for (const ParamSpec& p : specs)
      state.back().push_back(objective.loss.graph().input(Spec{kType, p.shape}, kParts[copy] + p.name));
  }
  const AdamWResult r = adamw(params, gradients, state[0], state[1],
                              {numbers[0], numbers[1], numbers[2], objective.loss}, setup_.adamw, rules);
  std::vector<Tensor> out{objective.loss, r.grad_norm};
  for (const std::vector<Tensor>& part : {r.params, r.m, r.v})
    out.insert(out.end(), part.begin(), part.end());
  if (copies() > 3)
    for (std::size_t i = 0; i < params.size(); ++i)
      out.push_back(r.params[i] == params[i]
                        ? state[2][i]
                        : where(r.may_step,
                                state[2][i] * setup_.average_decay + r.params[i] * (1 - setup_.average_decay),
                                state[2][i]));
  return out;
}

std::size_t Training::add(const std::vector<Spec>& batch, const ObjectiveFn& objective) {
  if (has_slices())
    throw ConfigError(
        "[train] sequences are cut into slices, which this model does not know of: add() an objective that is given their "
        "group, or leave slices out");
  return add(batch, [objective](ParamTable& table, const std::vector<Tensor>& in, const ProcessGroup&) {
    return objective(table, in);
  });
}

TracedModel Training::traced(const std::vector<Spec>& inputs, std::size_t given,
                             const SliceObjectiveFn& objective, const ProcessGroup& slices, bool first) {
  return trace_model(kType, inputs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    std::vector<Tensor> batch(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(given));
    const Objective o = objective(table, has_slices() ? owned(batch, slices) : batch, slices);
    if (has_parts()) return part_outputs(o, table, first);
    return updated(o, table, {in.begin() + static_cast<std::ptrdiff_t>(given), in.end()}, first);
  });
}

std::size_t Training::add(const std::vector<Spec>& batch, const SliceObjectiveFn& objective) {
  const std::size_t given = batch.size(), numbers = has_parts() ? 0 : kNumbers;
  std::vector<Spec> inputs = batch;
  inputs.resize(given + numbers, Spec{kType, {}});
  Program program{given, {}};
  const std::size_t programs = has_slices() ? groups_.size() : 1;
  for (std::size_t i = 0; i < programs; ++i) {
    const ProcessGroup slices = has_slices() ? groups_[i] : ProcessGroup();
    program.traced.push_back(traced(inputs, given, objective, slices, programs_.empty() && i == 0));
  }
  const std::vector<ParamSpec>& params = program.traced[0].params;
  if (!programs_.empty() && !same(specs_, params))
    throw ConfigError("[train] two kinds of batches of one training ask for different parameters");
  PlanOptions options{.memory_budget = setup_.memory_budget};
  if (!has_parts()) options.donate = donations(copies() * params.size(), kResults, given + numbers);
  for (const TracedModel& one : program.traced)
    for (int i = 0; i < grains_at_once(); ++i) program.plans.push_back(one.function.plan(options));
  programs_.push_back(std::move(program));
  if (programs_.size() == 1) {
    specs_ = programs_[0].traced[0].params;
    begin_with(initial_parameters(specs_, kType, setup_.seed, programs_[0].plans[0].device()));
  }
  return programs_.size() - 1;
}

void Training::start_from(StateDict params) {
  check_fits(specs_, params, "what training starts from");
  std::string start = fingerprint_of(params);
  begin_with(std::move(params));
  start_ = std::move(start);
}

void Training::begin_with(StateDict params) {
  std::vector<Array> state;
  for (std::size_t copy = 0; copy < copies(); ++copy)
    for (const ParamSpec& p : specs_)
      state.push_back(copy == 0   ? params.at(p.name)
                      : copy == 3 ? params.at(p.name).clone()
                                  : Array::zeros(kType, p.shape));
  for (std::size_t i = 0; i < specs_.size(); ++i)
    if (state[i].dtype() != kType)
      throw ConfigError(fmt::format("[train] '{}' is {}; training begins with numbers of f32", specs_[i].name,
                                    to_string(state[i].spec())));
  params.clear();
  place(std::move(state));
  start_ = kFromSeed;
  steps_ = 0;
}

// Parameters and moments stay where the plans run. They are no one else's, as steps write over them.
void Training::place(std::vector<Array> state) {
  const Device& device = programs_[0].plans[0].device();
  if (has_parts()) {
    sharded_->place({state.begin() + static_cast<std::ptrdiff_t>(specs_.size()), state.end()});
    state.resize(specs_.size());
  }
  for (Array& array : state) {
    if (array.device() != device) array = array.to(device);
    array = std::move(array).unshared();
  }
  state_ = std::move(state);
  results_.assign(kResults, Array());
  for (Array& result : results_) result = Array(Spec{kType, {}}, device);
}

void Training::check_batch(const Program& program, const std::vector<Array>& batch) const {
  if (batch.size() != program.given)
    throw ConfigError(fmt::format("[train] a batch of {} arrays was given to a program that reads {}",
                                  batch.size(), program.given));
}

ShardedAdamW::Numbers Training::numbers_of(double rate) const {
  const auto t = static_cast<double>(steps_ + 1);
  return {rate, 1 / (1 - m::pow(setup_.adamw.beta1, t)), 1 / (1 - m::pow(setup_.adamw.beta2, t))};
}

Training::Step Training::finished(Step made) {
  if (!std::isfinite(made.loss) || !std::isfinite(made.grad_norm))
    throw ValueError(fmt::format(
        "[train] step {}: the {} is not finite (loss {}, gradient norm {}); what was saved before is intact. "
        "Lower the learning rate (lr), or raise warmup",
        steps_ + 1, std::isfinite(made.loss) ? "gradient" : "loss", made.loss, made.grad_norm));
  ++steps_;
  return made;
}

Training::Step Training::step(std::size_t kind, const std::vector<Array>& batch, double rate) {
  Program& program = programs_.at(kind);
  if (has_parts())
    throw ConfigError("[train] this training has grains or slices: call step_grains() or step_parts()");
  check_batch(program, batch);
  last_ = batch, last_kind_ = kind;
  const ShardedAdamW::Numbers numbers = numbers_of(rate);
  for (const double x : {numbers.rate, numbers.correction1, numbers.correction2})
    last_.push_back(Array::scalar(x, kType));
  std::vector<Array> inputs = last_, outputs = results_;
  inputs.insert(inputs.end(), state_.begin(), state_.end());
  outputs.insert(outputs.end(), state_.begin(), state_.end());
  program.plans[0].run(inputs, outputs);
  return finished({outputs[0].item(), outputs[1].item()});
}

Training::Step Training::step_grains(std::size_t kind, const GrainFn& batch_of, double rate) {
  if (has_slices()) throw ConfigError("[train] this training has slices: call step_parts()");
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

Training::Step Training::step_parts(std::size_t kind, const PartFn& batch_of, double rate) {
  if (!has_parts()) return step(kind, batch_of(0, 0), rate);
  Program& program = programs_.at(kind);
  last_batch_ = batch_of, last_kind_ = kind;
  Sums sums(leaves(), [&](auto& a, auto& b) {
    ShardedAdamW::add(a, b);
    spare_.push_back(std::move(b));
  });
  const std::vector<float> losses = has_slices() ? run_slices(program, sums) : run_grains(program, sums);
  for (const auto& root : sums.roots()) spare_.push_back(root.value);  // to be used again when step() is done
  std::vector<Array> params;                                           // here, to be written over
  for (const Array& a : state_) params.push_back(a.to(Device::cpu()));
  const ShardedAdamW::Result r = sharded_->step(losses, std::move(sums.roots()), params, numbers_of(rate));
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

std::optional<NonFinite> Training::why_not_finite() const {
  if (has_slices()) return {};  // each slice's program needs the others' values
  const auto found_in = [&](const std::vector<Array>& batch) {
    std::vector<Array> inputs;
    for (const std::vector<Array>& part : {batch, state_})
      for (const Array& a : part) inputs.push_back(a.to(Device::cpu()));
    return first_nonfinite(programs_.at(last_kind_).traced[0].function, inputs);
  };
  if (!has_parts()) return found_in(last_);
  for (std::int64_t grain = 0; grain < setup_.grains; ++grain)
    if (std::optional<NonFinite> found = found_in(last_batch_(grain, 0))) return found;
  return {};
}

// Of all parameters, in the order of a checkpoint; with several processes at rank 0 alone.
std::vector<Array> Training::moments() const {
  if (has_parts()) return sharded_->gathered();
  return {state_.begin() + static_cast<std::ptrdiff_t>(specs_.size()), state_.end()};
}

void Training::save(const std::string& path, const RunIdentity& identity) const {
  std::vector<Array> all{state_.begin(), state_.begin() + static_cast<std::ptrdiff_t>(specs_.size())};
  const std::vector<Array> rest = moments();
  processes_->on_first([&] {
    all.insert(all.end(), rest.begin(), rest.end());
    SafeTensors file;
    for (std::size_t i = 0; i < all.size(); ++i)
      file.tensors.emplace(kParts[i / specs_.size()] + specs_[i % specs_.size()].name,
                           all[i].to(Device::cpu()));
    describe(file, identity, steps_, start_);
    write_safetensors(path, file);
    return std::string();
  });
}

void Training::load(const std::string& path, const RunIdentity& identity) {
  const std::string bytes = processes_->on_first([&] { return read_file(path); });
  SafeTensors file = parse_safetensors(std::as_bytes(std::span(bytes)), path);
  const WrittenRun run = check_written(file, identity, start_, path);
  StateDict params;  // all of them, and no other: what the model has no place for is not dropped
  for (const auto& [name, value] : file.tensors)
    if (is_parameter(name)) params.emplace(name, value);
  check_fits(specs_, params, path);
  params.clear();
  std::vector<Array> state;
  for (std::size_t copy = 0; copy < copies(); ++copy)
    for (const ParamSpec& p : specs_) {
      const auto at = file.tensors.find(kParts[copy] + p.name);
      if (at == file.tensors.end() || at->second.spec() != Spec{kType, p.shape})
        throw ConfigError(fmt::format(
            "[train] {}: '{}{}' is {}; a checkpoint of this run has {}: resume from a folder that training wrote",
            path, kParts[copy], p.name, at == file.tensors.end() ? "missing" : to_string(at->second.spec()),
            to_string(Spec{kType, p.shape})));
      state.push_back(at->second);
    }
  file.tensors.clear();
  place(std::move(state));
  if (!run.start.empty()) start_ = run.start;
  steps_ = run.step;
}

StateDict Training::part(std::size_t copy) const {
  StateDict out;
  for (std::size_t i = 0; i < specs_.size(); ++i)
    out.emplace(specs_[i].name, state_[copy * specs_.size() + i].clone().to(Device::cpu()));
  return out;
}

StateDict Training::parameters() const { return part(0); }
StateDict Training::averages() const {
  if (copies() <= 3) return part(0);
  if (!has_parts()) return part(3);
  const std::vector<Array> all = moments();
  StateDict out;
  for (std::size_t i = 0; i < specs_.size() && !all.empty(); ++i)
    out.emplace(specs_[i].name, all[2 * specs_.size() + i]);
  return out;
}

std::int64_t Training::parameter_count() const {
  std::int64_t n = 0;
  for (const ParamSpec& p : specs_) n += numel(p.shape);
  return n;
}

std::size_t Training::arena_bytes() const {
  std::size_t most = 0;
  for (const Program& p : programs_) most = std::max(most, p.plans.size() * p.plans[0].stats().arena_bytes);
  return most;
}

}  // namespace nestgrad
