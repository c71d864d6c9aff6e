// AdamW whose state is shared out among processes: each keeps the moments of its own part of all numbers, steps that part,
// and sends it to the others (stage 1 of ZeRO, Rajbhandari et al. 2020). Parameters themselves are whole everywhere.
//
// A batch is cut into grains (models/training.h). Each process has added up gradients of some neighbouring grains; here the sums
// of all are added on in the same tree (engine/processes/tree_sum.h), and the squares for the norm in blocks of fixed numbers, so that
// the bits do not depend on how many processes there are. It runs on the CPU. One thread at a time; every process
// calls the same functions in the same order.
#pragma once

#include <memory>

#include "engine/processes/tree_sum.h"
#include "engine/run/plan.h"
#include "models/optimizer.h"
#include "models/traced_model.h"

namespace nestgrad {

class ShardedAdamW {
 public:
  // A sum of gradients over some grains: f32 on the CPU, of each parameter that is stepped, in order.
  using Gradients = std::vector<Array>;

  // stepped: of each parameter, whether it has a gradient. average_decay: as in TrainingSetup.
  ShardedAdamW(const std::vector<ParamSpec>& specs, const std::vector<ParameterRule>& rules,
               const std::vector<bool>& stepped, const AdamWOptions& options, double average_decay,
               std::int64_t grains, std::shared_ptr<Transport> processes);
  ShardedAdamW(const ShardedAdamW&) = delete;
  ShardedAdamW& operator=(const ShardedAdamW&) = delete;

  // Takes its part of whole arrays: first moments of all parameters, then second ones, then averages if there are any.
  void place(const std::vector<Array>& moments);
  // The inverse, at rank 0 alone; empty elsewhere. Every process calls it.
  std::vector<Array> gathered() const;

  struct Numbers {
    double rate, correction1, correction2;  // as in AdamWStep
  };
  struct Result {
    double loss, grad_norm;
    bool stepped;  // false: one of them is not finite, and nothing has changed
  };
  // losses: of this process's grains, in order, and `gradients` the roots of theirs; these are given up. params: all of them,
  // whole, on the CPU: written over. kind: of the batch. ProcessError at all processes, before anything is changed, where one
  // has another kind or rate.
  Result step(std::span<const float> losses, std::vector<TreeSum<Gradients>::Node> gradients,
              std::vector<Array>& params, const Numbers& numbers, std::uint64_t kind = 0);

  // Adds gradients: a += b.
  static void add(Gradients& a, Gradients& b);
  // Of the moments here.
  std::size_t bytes() const;

 private:
  struct Piece {  // of one parameter
    std::size_t param;
    IndexRange elements;
    int stepped;  // its place among those that are stepped; -1: it never changes
  };
  float loss_of_all(std::span<const float> losses, double rate, std::uint64_t kind) const;
  std::vector<Array> gradient_pieces(std::vector<TreeSum<Gradients>::Node> gradients);
  void share(std::vector<Array>& stepped, std::vector<Array>& params);
  double norm_of(const std::vector<Array>& gradients) const;
  void make_plan(const std::vector<ParameterRule>& rules, const AdamWOptions& options, double average_decay);
  const std::vector<Piece>& mine() const { return pieces_[static_cast<std::size_t>(processes_->rank())]; }

  std::vector<ParamSpec> specs_;
  AdamWOptions options_;
  std::size_t
      kinds_;  // of numbers that are kept for each parameter: two moments, and an average if there is one
  std::int64_t grains_;
  std::shared_ptr<Transport> processes_;
  std::vector<std::vector<Piece>> pieces_;  // of each process
  std::vector<Array> state_;                // of each kind, for each piece of mine
  std::unique_ptr<Plan> plan_;              // null: nothing here is stepped
};

}  // namespace nestgrad
