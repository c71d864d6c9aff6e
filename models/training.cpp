#include "models/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/training_checkpoint.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

constexpr std::size_t kNumbers = 3;  // inputs behind the batch: rate and two corrections
constexpr std::size_t kResults = 2;  // outputs before the parameters: loss, gradient norm
constexpr std::int64_t kMostGrains = 65536, kMostSlices = 1024;
constexpr const char* kParts[] = {"", "adamw.m.", "adamw.v.", "average."};

bool same(const std::vector<ParamSpec>& a, const std::vector<ParamSpec>& b) {
  return std::ranges::equal(
      a, b, [](const ParamSpec& x, const ParamSpec& y) { return x.name == y.name && x.shape == y.shape; });
}

// Steps compute in f32: a number that is finite and positive in double need not be so there. Of others something else is said.
void require_f32(std::string_view field, double value, bool positive = false) {
  const auto there = static_cast<float>(value);
  if (!std::isfinite(value) || (std::isfinite(there) && (!positive || there > 0))) return;
  throw ConfigError(
      fmt::format("[train] {} is {}, which is {} in f32, in which training computes; make it {}", field,
                  value, there, std::isfinite(there) ? "larger" : "smaller"));
}

// Which array of f32 is the first with a number that is not finite; their count: none.
std::size_t first_not_finite(const std::vector<Array>& all) {
  const auto bad = [](const Array& a) {
    return !std::ranges::all_of(a.as<float>(), [](float x) { return std::isfinite(x); });
  };
  return uz(std::ranges::find_if(all, bad) - all.begin());
}

}  // namespace

void TrainingSetup::check() const {
  adamw.check();
  require_f32("adamw.eps", adamw.eps, true);
  require_f32("adamw.clip", adamw.clip, true);
  require_f32("adamw.weight_decay", adamw.weight_decay);
  for (const ParameterGroup& g : groups) {
    require_f32(fmt::format("rate of the group '{}'", g.names), g.rate);
    if (g.weight_decay) require_f32(fmt::format("weight_decay of the group '{}'", g.names), *g.weight_decay);
  }
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
  if (!gradients.empty() && gradients.size() != params.size())
    throw ConfigError(fmt::format(
        "[train] the objective gives {} gradients for {} parameters; give one for each, in their order, "
        "undefined where a parameter stays as it is",
        gradients.size(), params.size()));
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined() && gradients[i].spec() != params[i].spec())
      throw ShapeError(
          fmt::format("[train] the gradient of '{}' that the objective gives is {} ({}); the parameter is {}",
                      specs[i].name, to_string(gradients[i].spec()), describe(gradients[i]),
                      to_string(params[i].spec())));
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
    for (std::size_t i = 0; i < params.size(); ++i) {
      const Tensor before = state[2][i];
      if (rules[i].rate == 0) {
        out.push_back(before);
        continue;
      }
      // Of a parameter that this kind of batch does not move, but perhaps another one: written so that an average that has arrived stays.
      const Tensor average = gradients[i].defined()
                                 ? before * setup_.average_decay + r.params[i] * (1 - setup_.average_decay)
                                 : before + (1 - setup_.average_decay) * (params[i] - before);
      out.push_back(where(r.may_step, average, before));
    }
  return out;
}

std::size_t Training::add(const std::vector<Spec>& batch, const ObjectiveFn& objective) {
  require_function("train", "the objective", objective);
  if (here().has_slices())
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
    const std::vector<Tensor> batch(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(given));
    const Objective o = objective(table, has_slices() ? owned(batch, slices) : batch, slices);
    if (!o.loss.defined()) throw ConfigError("[train] the objective gives no loss");
    if (o.loss.rank() != 0)
      throw ShapeError(
          fmt::format("[train] the loss of an objective is one number, it is {} ({}); take its mean()",
                      to_string(o.loss.spec()), describe(o.loss)));
    if (o.loss.dtype() != kType)
      throw DTypeError(fmt::format("[train] the loss of an objective is to be {}, it is {} ({}); cast() it",
                                   name(kType), name(o.loss.dtype()), describe(o.loss)));
    if (has_parts()) return part_outputs(o, table, first);
    return updated(o, table, {in.begin() + static_cast<std::ptrdiff_t>(given), in.end()}, first);
  });
}

std::size_t Training::add(const std::vector<Spec>& batch, const SliceObjectiveFn& objective) {
  require_function("train", "the objective", objective);
  here();
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
  if (!programs_.empty() && !same(specs_, params)) {
    const auto by_name = [](std::vector<ParamSpec> specs) {
      std::ranges::sort(specs, {}, &ParamSpec::name);
      return specs;
    };
    throw ConfigError(
        same(by_name(specs_), by_name(params))
            ? "[train] two kinds of batches of one training ask for the same parameters in another order; ask for each in a "
              "statement of its own: of f(p(..)) + p(..) a compiler may call either first"
            : "[train] two kinds of batches of one training ask for different parameters");
  }
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

void Training::require_begun() const {
  if (here().programs_.empty())
    throw ConfigError("[train] nothing is trained yet, and so there are no parameters: call add() first");
}

void Training::start_from(StateDict params) {
  require_begun();
  check_fits(specs_, params, "what training starts from");
  for (const auto& [name, value] : params)
    if (const std::int64_t at = first_not_finite(value); at >= 0)
      throw ValueError(fmt::format("[train] what training starts from is not finite: '{}' has {} at {}", name,
                                   value.at(at), at));
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
  compared_ = false;
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
        "Lower the learning rate; if that does not help, look for a NaN in what is read and for what the model divides by",
        steps_ + 1, std::isfinite(made.loss) ? "gradient" : "loss", made.loss, made.grad_norm));
  ++steps_;
  return made;
}

Training::Program& Training::program_of(std::size_t kind, double rate) {
  here();
  if (kind >= programs_.size())
    throw ConfigError(
        fmt::format("[train] there is no kind {} of batches, there are {}: add() gives their numbers", kind,
                    programs_.size()));
  if (!(rate >= 0) || !std::isfinite(rate))
    throw ConfigError(fmt::format("[train] the rate of step {} is {}; it must be finite, and 0 or positive",
                                  steps_ + 1, rate));
  double most = 0, decay = 0;
  for (const ParameterRule& rule : rules_) {
    most = std::max(most, rate * rule.rate);
    decay = std::max(decay, rate * rule.rate * rule.weight_decay);
  }
  const std::string given = fmt::format("the rate of step {}", steps_ + 1);
  require_f32(given, rate);
  require_f32(given + ", times that of a group,", most);
  require_f32(given + " times a weight decay", decay);
  return programs_[kind];
}

Training::Step Training::step(std::size_t kind, const std::vector<Array>& batch, double rate) {
  Program& program = program_of(kind, rate);
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

std::optional<NonFinite> Training::why_not_finite() const {
  if (here().has_slices() || !last_kind_) return {};  // each slice's program needs the others' values
  const auto found_in = [&](const std::vector<Array>& batch) {
    std::vector<Array> inputs;
    for (const std::vector<Array>& part : {batch, state_})
      for (const Array& a : part) inputs.push_back(a.to(Device::cpu()));
    return first_nonfinite(programs_.at(*last_kind_).traced[0].function, inputs);
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
  check(identity);
  require_begun();
  std::vector<Array> all{state_.begin(), state_.begin() + static_cast<std::ptrdiff_t>(specs_.size())};
  const std::vector<Array> rest = moments();
  processes_->on_first([&] {
    all.insert(all.end(), rest.begin(), rest.end());
    for (Array& array : all) array = array.to(Device::cpu());
    const auto name = [&](std::size_t i) {
      return kParts[i / specs_.size()] + specs_[i % specs_.size()].name;
    };
    if (const std::size_t bad = first_not_finite(all); bad < all.size())
      throw ValueError(fmt::format(
          "[train] after step {}, '{}' is not finite: nothing is written, and what was saved before is intact. Lower the "
          "learning rate",
          steps_, name(bad)));
    SafeTensors file;
    for (std::size_t i = 0; i < all.size(); ++i) file.tensors.emplace(name(i), all[i]);
    describe(file, identity, setup_, steps_, start_);
    write_safetensors(path, file);
  });
}

void Training::load(const std::string& path, const RunIdentity& identity) {
  require_begun();
  const std::string bytes = processes_->from_first([&] { return read_file(path); });
  SafeTensors file = parse_safetensors(std::as_bytes(std::span(bytes)), path);
  const WrittenRun run = check_written(file, identity, setup_, start_, path);
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
      // A step would go on with them without a word: its loss is made of the parameters alone.
      constexpr std::size_t kSquares = 2;
      const Array& value = at->second;
      for (std::int64_t i = 0; i < value.size(); ++i)
        if (const float x = value.as<float>()[uz(i)]; !std::isfinite(x) || (copy == kSquares && x < 0))
          throw ValueError(
              fmt::format("[train] {}: '{}{}' has {} at {}, which no step leaves behind: the file is damaged",
                          path, kParts[copy], p.name, x, i));
      state.push_back(value);
    }
  file.tensors.clear();
  place(std::move(state));
  if (!run.start.empty()) start_ = run.start;
  steps_ = run.step;
}

StateDict Training::part(std::size_t copy) const {
  here();
  StateDict out;
  for (std::size_t i = 0; i < specs_.size(); ++i)
    out.emplace(specs_[i].name, state_[copy * specs_.size() + i].clone().to(Device::cpu()));
  return out;
}

StateDict Training::parameters() const { return part(0); }
StateDict Training::averages() const {
  if (here().copies() <= 3 || programs_.empty()) return part(0);
  if (!has_parts()) return part(3);
  const std::vector<Array> all = moments();
  StateDict out;
  for (std::size_t i = 0; i < specs_.size() && !all.empty(); ++i)
    out.emplace(specs_[i].name, all[2 * specs_.size() + i]);
  return out;
}

std::int64_t Training::parameter_count() const {
  std::int64_t n = 0;
  for (const ParamSpec& p : specs()) n += numel(p.shape);
  return n;
}

std::size_t Training::arena_bytes() const {
  std::size_t most = 0;
  for (const Program& p : here().programs_)
    most = std::max(most, p.plans.size() * p.plans[0].stats().arena_bytes);
  return most;
}

}  // namespace nestgrad
