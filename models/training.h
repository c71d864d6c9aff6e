// Training: the parameters of a model, their AdamW state and the programs that step them: the part of training that is
// the same for a language model, for one of images and for a learner's start. Who uses it says what the loss is and
// gives each batch:
//
//   Training training({.seed = 0, .groups = {{.names = "blocks.*", .rate = 0.1}}});
//   training.add({f32_images, i32_labels}, [&](ParamTable& table, const std::vector<Tensor>& batch) {
//     return Training::Objective{mean(cross_entropy(class_logits(batch[0], Params(table), config), batch[1]))};
//   });
//   for (std::int64_t i = 0; i < steps; ++i)
//     training.step(0, batch_of(i), cosine_rate(i, steps, warmup, 1e-3));
//
// A step is one replay of one plan, on the default device, where parameters and moments stay: there is one of each, which
// steps write over. With the same seed, batches and rates the parameters are the same bits, stopped and gone on with or
// not. Used by one thread at a time.
//
// A batch may be cut into grains, which several processes share (engine/processes/transport.h): each computes the gradients of
// its own, and they are added in a fixed tree. What comes out depends on the number of grains, and not on how many
// processes there are. add() is then given the specs of one grain, and a function makes each:
//
//   Training training({.seed = 0, .grains = 4, .processes = open_processes()});
//   training.step_grains(0, [&](std::int64_t grain) { return rows_of(grain); }, rate);
//
// Sequences may also be cut in time: into slices, each of which a thread has, of this process or of another. The threads trace one
// program each and exchange what the layers need of other slices (ttt/stream.h); gradients of slices are added like those of
// grains, of which a step then makes one after the other:
//
//   Training training({.grains = 2, .slices = 4, .processes = open_processes()});
//   training.add(specs, [&](ParamTable& table, const std::vector<Tensor>& batch, const ProcessGroup& slices) { .. });
//   training.step_parts(0, [&](std::int64_t grain, std::int64_t slice) { return tokens_of(grain, slice); }, rate);
//
// What comes out depends on the numbers of grains and slices alone. Every process makes the same calls in the same order, with the same
// setup: ProcessError at the first step, and at each step of another kind or rate, where one does not.
#pragma once

#include <memory>

#include "engine/core/moved_from.h"
#include "engine/look/nonfinite.h"
#include "engine/processes/group.h"
#include "engine/processes/threads.h"
#include "engine/run/plan.h"
#include "models/optimizer.h"
#include "models/sharded_adamw.h"
#include "models/traced_model.h"

namespace nestgrad {

struct SafeTensors;

struct TrainingSetup {
  std::uint64_t seed = 0;  // of the starting parameters
  AdamWOptions adamw = {};
  // The first group that a parameter's name matches is its own; of no group: rate 1 and the decay of `adamw`.
  std::vector<ParameterGroup> groups = {};
  // Also keep a running average of the parameters (Polyak and Juditsky 1992), as it is read by samplers of images:
  // average = decay * average + (1 - decay) * parameter after each step. 0: none.
  double average_decay = 0;
  // Of each plan, as in PlanOptions; changes no bit. With grains each thread has one.
  std::size_t memory_budget = 0;
  // Parts of one size that each batch is cut into: 1 to 65536, and at least as many as there are processes. The loss of a
  // batch is the mean of theirs. 1: whole batches, a step is one plan; more: a plan for each part, and then AdamW.
  std::int64_t grains = 1;
  // Slices of one length that sequences are cut into: 1 to 1024, and more than 1: at least as many as there are processes.
  std::int64_t slices = 1;
  std::shared_ptr<Transport> processes = nullptr;  // null: this one alone

  void check() const;  // ConfigError that names the field and its range
};

// What a checkpoint says of the run that wrote it, and what a run that goes on with it must be equal in.
// The numbers of a TrainingSetup that shape a step (AdamW's, groups, the average, grains and slices) are compared besides.
struct RunIdentity {
  // Of the model: a JSON object; "": {}.
  std::string config = {};
  // Settings: a JSON object; "steps" may differ, as it only shapes the schedule; "": {}.
  std::string training = {};
  std::string data = {};         // fingerprint of what is trained on
  std::string data_is = "text";  // what that is, for messages: "text", "images"
  std::uint64_t seed = 0;        // of the random numbers; load() refuses another
  // JSON: settings that earlier versions did not write, with the values they had.
  std::string written_later = {};
};

class Training {
 public:
  struct Objective {
    Tensor loss;  // a scalar
    // Of each parameter, in the order in which they were asked for; undefined: that parameter stays. Empty: those of
    // the loss.
    std::vector<Tensor> gradients = {};
  };
  using ObjectiveFn = std::function<Objective(ParamTable& table, const std::vector<Tensor>& batch)>;
  // Of a slice: the batch is that of this rank of `slices`, and each one's own, as parameters are (own() in
  // ops/collectives.h). So are loss and gradients, of which the mean over the slices counts; or both are of all slices
  // (all_sum). ConfigError if only one of them is.
  using SliceObjectiveFn = std::function<Objective(ParamTable& table, const std::vector<Tensor>& batch,
                                                   const ProcessGroup& slices)>;

  explicit Training(TrainingSetup setup);

  // A kind of batch -> its number. Kinds train the same parameters, as episodes of two lengths do. ConfigError if it
  // asks for other parameters than the first kind did, if no parameter that may change is one that the loss depends on, or
  // if a group matches no parameter.
  std::size_t add(const std::vector<Spec>& batch, const ObjectiveFn& objective);
  // The same of a model that heeds slices; without slices they are a group of one.
  std::size_t add(const std::vector<Spec>& batch, const SliceObjectiveFn& objective);

  struct Step {
    double loss, grad_norm;  // before the step; the norm before clipping
  };
  // One step with this rate. ValueError if loss or gradient is not finite: parameters and moments are then, bit for bit,
  // those before it. ConfigError for a rate that is not finite in f32, by itself or times a group's or a weight decay.
  Step step(std::size_t kind, const std::vector<Array>& batch, double rate);
  // The same with grains: batch_of(g) makes grain g of 0..grains, on any process the same.
  using GrainFn = std::function<std::vector<Array>(std::int64_t grain)>;
  Step step_grains(std::size_t kind, const GrainFn& batch_of, double rate);
  // The same with slices: batch_of(g, s) makes slice s of grain g. May be called by several threads at once.
  using PartFn = std::function<std::vector<Array>(std::int64_t grain, std::int64_t slice)>;
  Step step_parts(std::size_t kind, const PartFn& batch_of, double rate);
  // Compares setup, kinds of batches, parameters and `identity` with those of the other processes, unless that has been done since the
  // parameters were last given. A step does so without an identity.
  void compare_processes(const std::function<RunIdentity()>& identity = {});
  // With slices, of what does not train: batch_of(b, s) makes slice s of each of `count` batches -> for each batch what the slices
  // make of it, one after another. Every process calls it, and has all of it.
  using SliceOutputFn =
      std::function<Tensor(ParamTable& table, const std::vector<Tensor>& batch, const ProcessGroup& slices)>;
  std::vector<std::vector<double>> read_slices(const std::vector<Spec>& batch, const SliceOutputFn& output,
                                               std::int64_t count, const PartFn& batch_of) const;
  // After a step that threw ValueError: where its first value that is not finite was made. Nothing where sequences are cut.
  std::optional<NonFinite> why_not_finite() const;
  std::int64_t steps_done() const { return here().steps_; }

  // Back to before the first step, with these parameters, f32; steps do not write into the caller's arrays. ConfigError
  // unless they are the model's.
  void start_from(StateDict params);

  // Parameters, optimiser, step and identity in one safetensors file, the same for any number of processes. Written
  // atomically, by rank 0; every process calls it. ValueError, and nothing is written, if one of their numbers is not finite.
  void save(const std::string& path, const RunIdentity& identity) const;
  // ConfigError that says what differs if it was written by another run, by a model with other parameters, or after
  // start_from() with other weights than start_from() here (which need not be called); IoError if it cannot be read.
  // Nothing changes on error. Rank 0 reads the file, and every process calls it.
  void load(const std::string& path, const RunIdentity& identity);

  StateDict parameters() const;  // copies
  // Their running average, likewise; the parameters where none is kept. With several processes: at rank 0, empty elsewhere,
  // and every process calls it.
  StateDict averages() const;
  const std::vector<ParamSpec>& specs() const { return here().specs_; }
  // Names of those that the first kind's loss does not depend on, and of those that are frozen. No step changes them.
  const std::vector<std::string>& unused() const { return here().unused_; }
  const std::vector<std::string>& frozen() const { return here().frozen_; }
  std::int64_t parameter_count() const;
  std::size_t arena_bytes() const;  // of the plans of one step, the largest there is
  Transport& processes() const { return *here().processes_; }
  bool is_first() const { return processes().rank() == 0; }  // who writes files and speaks

 private:
  struct Program {
    std::size_t given;                // arrays of a batch, or of a part
    std::vector<TracedModel> traced;  // with slices one for each that is here, else one
    std::vector<Plan> plans = {};     // likewise; with grains as many of one program as run at once
  };
  static constexpr DType kType = DType::f32;  // of parameters, gradients and moments
  const Training& here() const {              // ConfigError of a training that was moved from
    moved_.check("train", "training");
    return *this;
  }
  bool has_slices() const { return setup_.slices > 1; }
  bool has_parts() const { return setup_.grains > 1 || has_slices(); }
  // Whose gradients are added in the tree: slices, each the sum of its grains, or grains.
  std::int64_t leaves() const { return has_slices() ? setup_.slices : setup_.grains; }
  IndexRange own_leaves() const { return part_of(leaves(), processes_->rank(), processes_->size()); }
  int grains_at_once() const;
  TracedModel traced(const std::vector<Spec>& inputs, std::size_t given, const SliceObjectiveFn& objective,
                     const ProcessGroup& slices, bool first);
  std::vector<Tensor> gradients_of(const Objective& objective, ParamTable& table, bool first);
  static std::vector<Tensor> owned(std::vector<Tensor> batch, const ProcessGroup& slices);
  std::vector<Tensor> part_outputs(const Objective& objective, ParamTable& table, bool first);
  std::vector<Array> moments() const;
  void check_batch(const Program& program, const std::vector<Array>& batch) const;
  ShardedAdamW::Numbers numbers_of(double rate) const;
  ShardedAdamW::Gradients spare_gradients();
  using Sums = TreeSum<ShardedAdamW::Gradients>;
  float run_part(Program& program, std::size_t plan, std::vector<Array> inputs,
                 ShardedAdamW::Gradients& out) const;
  std::vector<float> run_grains(Program& program, Sums& sums);
  std::vector<float> run_slices(Program& program, Sums& sums);
  void on_slices(const std::function<void(std::int64_t slice, std::size_t here)>& fn) const;
  // That kind's. ConfigError for one that there is not, and for a rate that is no rate.
  Program& program_of(std::size_t kind, double rate);
  Step finished(Step made);
  std::vector<Tensor> updated(const Objective& objective, ParamTable& table,
                              const std::vector<Tensor>& numbers, bool first);
  void require_begun() const;  // ConfigError before add()
  void begin_with(StateDict params);
  void place(std::vector<Array> state);
  std::size_t copies() const {
    return setup_.average_decay > 0 ? 4 : 3;
  }  // of each parameter in a checkpoint
  StateDict part(std::size_t copy) const;

  TrainingSetup setup_;
  std::shared_ptr<Transport> processes_;
  std::vector<ParamSpec> specs_;
  std::vector<ParameterRule> rules_;  // of each parameter
  std::vector<std::string> unused_, frozen_;
  std::string start_;  // fingerprint of what training began with, as checkpoints have it
  std::vector<Program> programs_;
  // Parameters, first and second moments, (averages), where the plans run. With grains the parameters alone: sharded_ has
  // the rest.
  std::vector<Array> state_;
  std::unique_ptr<ShardedAdamW> sharded_;       // null without grains
  std::vector<bool> stepped_;                   // with grains: of each parameter, whether it has a gradient
  std::vector<ShardedAdamW::Gradients> spare_;  // memory for sums of gradients that no one uses now
  std::vector<Array> results_;                  // loss and gradient norm
  std::vector<Array> last_;                     // batch and numbers of the last step
  PartFn last_batch_;                           // or what made its parts
  std::unique_ptr<RankThreads> ranks_;          // of slices; null without
  std::vector<ProcessGroup> groups_;            // of each slice here
  std::optional<std::size_t> last_kind_;        // nothing before the first step
  std::int64_t steps_ = 0;
  bool compared_ = false;  // with the other processes, since place()
  MovedFrom moved_;
};

}  // namespace nestgrad
