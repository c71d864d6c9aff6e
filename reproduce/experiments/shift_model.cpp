#include "reproduce/experiments/shift_model.h"

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "models/adaptation.h"
#include "models/images/turned.h"
#include "models/vision/heads.h"
#include "ops/ops.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kSide = 28, kBatch = 64, kCopies = 4, kTasks = 6, kTokens = 49, kHidden = 24;
// What training images are changed by: a model that has seen only black ground is lost on any other.
constexpr Augmentation kTraining{.contrast = 0.4, .noise = 0.06};
constexpr std::int64_t kRank = 4;
constexpr std::uint64_t kMasks = 0x6d61736b, kTurns = 0x7475726e;  // streams of random numbers
constexpr std::uint64_t kTestSeed = 0x74657374;

vision::VisionConfig model(const ShiftProblem& problem) {
  return {.height = kSide,
          .image_width = kSide,
          .channels = 1,
          .patch = 4,
          .width = 48,
          .depth = 3,
          .heads = 2,
          .classes = problem.classes,
          .mlp_ratio = 2,
          .init_std = 0};
}

Spec images_of(std::int64_t n) { return {kType, {n, kSide, kSide, 1}}; }
Spec masks_of(std::int64_t n) { return {kType, {n, kTokens, 1}}; }
Spec labels_of(std::int64_t n) { return {DType::i32, {n}}; }

// Half of the patches of each of n images: those with the smallest of so many random numbers.
Array masks(std::int64_t n, std::uint64_t seed, std::uint64_t first) {
  Array out = Array::zeros(kType, masks_of(n).shape);
  for (std::int64_t i = 0; i < n; ++i) {
    const Array draws = random_uniform({kType, {kTokens}}, 0, 1, seed,
                                       (kMasks << 32) + first + static_cast<std::uint64_t>(i));
    std::vector<std::int64_t> order(kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t) order[static_cast<std::size_t>(t)] = t;
    std::ranges::sort(order, {},
                      [&](std::int64_t t) { return draws.as<float>()[static_cast<std::size_t>(t)]; });
    for (std::int64_t k = 0; k < kHidden; ++k)
      out.as<float>()[static_cast<std::size_t>(i * kTokens + order[static_cast<std::size_t>(k)])] = 1;
  }
  return out;
}

// What the task without labels is given besides images: masks, or numbers of quarter turns.
Spec question_of(const ShiftProblem& problem, std::int64_t n) {
  return problem.self == ShiftProblem::Self::patches ? masks_of(n) : labels_of(n);
}

}  // namespace

Asked asked_without_labels(const ShiftProblem& problem, const Array& images, std::uint64_t seed,
                           std::uint64_t first, bool every_turn) {
  const std::int64_t n = images.shape()[0];
  if (problem.self == ShiftProblem::Self::patches) return {images, masks(n, seed, first)};
  Array turns(DType::i32, {n});
  for (std::int64_t i = 0; i < n; ++i)
    turns.as<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        every_turn ? i % 4 : random_below(4, seed, kTurns, first + static_cast<std::uint64_t>(i)));
  return {turned(images, turns), turns};
}

namespace {

// Both tasks as functions of images and of parameters that may be any tensors: (images, labels, parameters) -> [n], and
// (images, question, parameters) -> [n].
struct Tasks {
  TracedModel classes, self;

  Tasks(const ShiftProblem& problem, std::int64_t count)
      : classes(trace_model(kType, {images_of(count), labels_of(count)},
                            [&](ParamTable& table, const std::vector<Tensor>& in) {
                              const Tensor logits = class_logits(in[0], Params(table), model(problem));
                              return std::vector<Tensor>{cross_entropy(logits, in[1]), logits};
                            })),
        self(trace_model(kType, {images_of(count), question_of(problem, count)},
                         [&](ParamTable& table, const std::vector<Tensor>& in) {
                           const Params params(table);
                           return std::vector<Tensor>{
                               problem.self == ShiftProblem::Self::patches
                                   ? masked_patch_loss(in[0], in[1], params, model(problem))
                                   : cross_entropy(rotation_logits(in[0], params, model(problem)), in[1])};
                         })) {}
};

using Values = std::map<std::string, Tensor>;

// Parameters of both tasks, asked for where they are trained.
Values asked(ParamTable& table, const Tasks& tasks) {
  Values out;
  for (const TracedModel* one : {&tasks.classes, &tasks.self})
    for (const ParamSpec& p : one->params) out.emplace(p.name, table.get(p.name, p.shape, p.init));
  return out;
}

// All that a task's function gives; the first is the loss of each image.
std::vector<Tensor> outputs_of(const TracedModel& traced, Tensor images, Tensor other, const Values& values) {
  std::vector<Tensor> in{images, other};
  for (std::size_t i = 2; i < traced.inputs.size(); ++i) in.push_back(values.at(traced.inputs[i]));
  return traced.function(std::span<const Tensor>(in));
}
Tensor run(const TracedModel& traced, Tensor images, Tensor other, const Values& values) {
  return outputs_of(traced, images, other, values)[0];
}

// One step of all that the loss of the task without labels depends on.
Values after_step(const Tasks& tasks, Tensor images, Tensor question, const Values& values, Tensor rate) {
  Values out = values;
  std::vector<std::string> names;
  std::vector<Tensor> at;
  for (const ParamSpec& p : tasks.self.params)
    names.push_back(p.name), at.push_back(probe(values.at(p.name)));
  for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = at[i];
  const std::vector<Tensor> g = grad(mean(run(tasks.self, images, question, out)), at);
  for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = at[i] - rate * g[i];
  return out;
}

Tensor of_task(Tensor x, std::int64_t task, std::int64_t each) {
  return slice(x, 0, task * each, (task + 1) * each);
}

}  // namespace

StateDict train_for_shift(const ShiftProblem& problem, ShiftTraining kind, std::int64_t steps,
                          const Task& task, double share) {
  const Tasks whole(problem, kBatch), copies(problem, kCopies), single(problem, 1);
  Training training({.seed = task.seed, .adamw = {.weight_decay = 0.05}});
  const bool meta = kind == ShiftTraining::meta, turns = problem.self == ShiftProblem::Self::rotation;
  constexpr std::int64_t kAll = kTasks * kCopies;
  std::vector<Spec> specs{images_of(kBatch), labels_of(kBatch), question_of(problem, kBatch)};
  if (meta) specs.insert(specs.end(), {images_of(kAll), question_of(problem, kAll)});
  if (turns) specs.push_back(images_of(kBatch));
  training.add(specs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    const Values values = asked(table, whole);
    Tensor loss = mean(run(whole.classes, in[0], in[1], values));
    const Tensor seen = turns ? in.back() : in[0];
    if (kind != ShiftTraining::classes)
      loss = loss + problem.weight * mean(run(whole.self, seen, in[2], values));
    if (meta) {
      Tensor after = constant(0.0, kType);
      for (std::int64_t t = 0; t < kTasks; ++t) {
        const Values learnt = after_step(copies, of_task(in[3], t, kCopies), of_task(in[4], t, kCopies),
                                         values, constant(problem.inner, kType));
        after = after + mean(run(single.classes, of_task(in[0], t, 1), of_task(in[1], t, 1), learnt));
      }
      loss = loss + after * (1.0 / kTasks);
    }
    return Training::Objective{loss};
  });
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto first = static_cast<std::uint64_t>(i * kBatch);
    LabelledImages batch = problem.training(task.settings, i, kBatch, task.seed);
    batch.images = augmented(batch.images, task.seed, first, kTraining);
    const Asked self = asked_without_labels(problem, batch.images, task.seed, first, false);
    std::vector<Array> given{batch.images, batch.labels, self.question};
    if (meta) {
      Array all(kType, images_of(kAll).shape);
      for (std::int64_t t = 0; t < kTasks; ++t)
        std::ranges::copy(repeated(image_of(batch.images, t), kCopies).as<float>(),
                          all.as<float>().begin() + t * kCopies * kSide * kSide);
      const Asked of_copies = asked_without_labels(problem, augmented(all, task.seed, first), task.seed,
                                                   (std::uint64_t{1} << 31) + first, true);
      given.insert(given.end(), {of_copies.images, of_copies.question});
    }
    if (turns) given.push_back(self.images);
    training.step(0, given, cosine_rate(i, steps, steps / 10, 2e-3));
    if (task.progress) task.progress(share * static_cast<double>(i) / static_cast<double>(steps));
  }
  return training.parameters();
}

namespace {

bool is_matrix_of_a_block(const ParamSpec& p) { return p.name.starts_with("blocks.") && p.shape.size() == 2; }

// What learns, as parameters of their own: those of LoRA are new, and begin with no change.
std::vector<ParamSpec> learning_of(Learning what, const std::vector<ParamSpec>& params) {
  std::vector<ParamSpec> out;
  for (const ParamSpec& p : params) {
    if (what == Learning::all || (what == Learning::norms && is_norm(p)) ||
        (what == Learning::block && p.name.starts_with("blocks.0.")))
      out.push_back(p);
    if (what != Learning::lora || !is_matrix_of_a_block(p)) continue;
    for (ParamSpec& factor : lora_factors(p, kRank)) out.push_back(std::move(factor));
  }
  return out;
}

// Learns from one image at a time, and answers for it.
class Reader {
 public:
  Reader(const ShiftProblem& problem, const StateDict& params, const TestTime& how)
      : problem_(problem),
        how_(how),
        params_(params),
        copies_(problem, kCopies),
        single_(problem, 1),
        learning_(learning_of(how.what, copies_.self.params)) {
    std::vector<Spec> specs{images_of(kCopies), question_of(problem, kCopies)};
    add_values(specs, copies_.self);
    if (!learning_.empty())
      learn_ = std::make_unique<Plan>(
          trace([&](const std::vector<Tensor>& in) { return learnt(in); }, specs).plan());
    specs = {images_of(1), labels_of(1)};
    add_values(specs, single_.classes);
    const Function answers = trace(
        [&](const std::vector<Tensor>& in) {
          return outputs_of(single_.classes, in[0], in[1], merged(single_.classes, in));
        },
        specs);
    ask_ = std::make_unique<Plan>(answers.plan());
    forget();
  }

  // To the trained weights.
  void forget() {
    values_.clear();
    for (const ParamSpec& p : learning_) {
      const auto own = params_.find(p.name);
      values_.push_back(own != params_.end() ? own->second : initial_value(p, kType, kTestSeed));
    }
  }

  Answer read(const Array& image, std::int32_t label, std::uint64_t number) {
    if (!how_.keep) forget();
    for (int i = 0; i < how_.steps && learn_; ++i) {
      const std::uint64_t draw = (number * 64 + static_cast<std::uint64_t>(i)) * kCopies;
      const Asked self = asked_without_labels(problem_, augmented(repeated(image, kCopies), kTestSeed, draw),
                                              kTestSeed, draw, true);
      std::vector<Array> in{self.images, self.question};
      bind(in, copies_.self);
      values_ = learn_->run(in);
      for (Array& v : values_) v = v.clone();
    }
    std::vector<Array> in{repeated(image, 1), Array::full(DType::i32, {1}, label)};
    bind(in, single_.classes);
    const std::vector<Array> found = ask_->run(in);
    return {found[0].at(0), right_answers(found[1], in[1]) == 1};
  }

 private:
  // Inputs behind the first two: the model's parameters, then what learns.
  void add_values(std::vector<Spec>& specs, const TracedModel& traced) const {
    for (std::size_t i = 2; i < traced.inputs.size(); ++i) specs.push_back(traced.function.input_spec(i));
    for (const ParamSpec& p : learning_) specs.push_back({kType, p.shape});
  }
  void bind(std::vector<Array>& in, const TracedModel& traced) const {
    for (std::size_t i = 2; i < traced.inputs.size(); ++i) in.push_back(params_.at(traced.inputs[i]));
    in.insert(in.end(), values_.begin(), values_.end());
  }
  // The parameters that a model runs with, of such inputs.
  Values merged(const TracedModel& traced, const std::vector<Tensor>& in) const {
    return merged(traced, in, {in.begin() + static_cast<std::ptrdiff_t>(traced.inputs.size()), in.end()});
  }
  Values merged(const TracedModel& traced, const std::vector<Tensor>& in,
                const std::vector<Tensor>& learning) const {
    Values out;
    for (std::size_t i = 2; i < traced.inputs.size(); ++i) out.emplace(traced.inputs[i], in[i]);
    for (std::size_t i = 0; i < learning_.size(); ++i) {
      const std::string& name = learning_[i].name;
      if (how_.what != Learning::lora) {
        if (const auto at = out.find(name); at != out.end()) at->second = learning[i];
        continue;
      }
      if (const auto at = out.find(matrix_of_factor(name)); at != out.end())
        at->second = at->second + matmul(learning[i], learning[i + 1]);
      ++i;
    }
    return out;
  }
  std::vector<Tensor> learnt(const std::vector<Tensor>& in) const {
    std::vector<Tensor> at(in.begin() + static_cast<std::ptrdiff_t>(copies_.self.inputs.size()), in.end()),
        out;
    for (Tensor& t : at) t = probe(t);
    const Tensor loss = mean(reproduce::run(copies_.self, in[0], in[1], merged(copies_.self, in, at)));
    const std::vector<Tensor> g = grad(loss, at);
    for (std::size_t i = 0; i < at.size(); ++i) out.push_back(at[i] - problem_.rate * g[i]);
    return out;
  }

  const ShiftProblem& problem_;
  TestTime how_;
  const StateDict& params_;
  Tasks copies_, single_;
  std::vector<ParamSpec> learning_;
  std::unique_ptr<Plan> learn_, ask_;
  std::vector<Array> values_;  // of what learns
};

}  // namespace

std::vector<Answer> answers_of(const ShiftProblem& problem, const StateDict& params, const TestTime& how,
                               const LabelledImages& images, std::uint64_t first) {
  Reader reader(problem, params, how);
  std::vector<Answer> out;
  for (std::int64_t i = 0; i < images.labels.size(); ++i)
    out.push_back(reader.read(image_of(images.images, i),
                              images.labels.as<std::int32_t>()[static_cast<std::size_t>(i)],
                              first + static_cast<std::uint64_t>(i)));
  return out;
}

double cosine_of_gradients(const ShiftProblem& problem, const StateDict& params,
                           const LabelledImages& images) {
  const std::int64_t n = images.labels.size();
  const Tasks tasks(problem, n);
  const Asked self = asked_without_labels(problem, images.images, kTestSeed, 0, false);
  const TracedModel traced = trace_model(
      kType, {images_of(n), labels_of(n), question_of(problem, n), images_of(n)},
      [&](ParamTable& table, const std::vector<Tensor>& in) {
        const Values values = asked(table, tasks);
        std::vector<Tensor> shared;
        for (const ParamSpec& p : tasks.classes.params)
          if (std::ranges::any_of(tasks.self.params, [&](const ParamSpec& q) { return q.name == p.name; }))
            shared.push_back(values.at(p.name));
        const std::vector<Tensor> a = grad(mean(run(tasks.classes, in[0], in[1], values)), shared),
                                  b = grad(mean(run(tasks.self, in[3], in[2], values)), shared);
        Tensor dot = constant(0.0, kType), aa = dot, bb = dot;
        for (std::size_t i = 0; i < a.size(); ++i)
          dot += sum(a[i] * b[i]), aa += sum(square(a[i])), bb += sum(square(b[i]));
        return std::vector<Tensor>{dot / sqrt(aa * bb)};
      });
  return traced
      .function(traced.bind({images.images, images.labels, self.question, self.images}, {&params}))[0]
      .item();
}

}  // namespace nestgrad::reproduce
