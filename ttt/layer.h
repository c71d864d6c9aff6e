// TTTLayer: runs a learner along a sequence, as a layer of a larger model (Sun et al. 2024). A Task makes the
// three views of each token; the learner is trained on (k, v) and answers for q.
#pragma once

#include "engine/core/moved_from.h"
#include "ttt/system.h"

namespace nestgrad::ttt {

// What is to be learnt: the views theta_K, theta_V, theta_Q of each token.
class Task {
 public:
  virtual ~Task() = default;
  // x [batch, time, width] -> [batch, time, width] each, heads still joined.
  struct Joined {
    Tensor q, k, v;
  };
  virtual Joined views(Tensor x, Stream& stream) const = 0;
};

// Three linear projections.
class ProjectedViews : public Task {
 public:
  ProjectedViews(const Params& params, std::int64_t width);
  Joined views(Tensor x, Stream& stream) const override;

 private:
  Tensor q_, k_, v_;
};

// One projection shared by q and k, told apart by two depthwise causal convolutions (Mamba-like backbone).
class SharedQkViews : public Task {
 public:
  SharedQkViews(const Params& params, std::int64_t width, std::int64_t kernel, std::string name);
  Joined views(Tensor x, Stream& stream) const override;

 private:
  Tensor qk_, v_, conv_q_, conv_q_bias_, conv_k_, conv_k_bias_;
  std::string name_;
};

struct TTTLayerOptions {
  std::int64_t width = 0, heads = 0;
  double base_lr = 1.0;  // of systems with position rates
  double rope_theta = 10000.0;
  InnerLoopOptions inner;  // of its policy the chunk is read; the rest is the system's
  bool gate = false;
  std::int64_t attention_window =
      0;  // > 0: a branch of causal sliding-window attention beside the learner (LaCT)
};

// x [batch, time, width] -> [batch, time, width].
// With position rates, eta[i, j] = max(1/(i+1) + learnable_token_idx[i], 0) * base_lr * sigmoid(x_j . w_h +
// b_h) / head_dim. Other gates are made of linear maps of x, gates.<name>.weight and .bias.
class TTTLayer {
 public:
  // ConfigError for a system that is not causal or has no learner, or sizes that do not fit; where tokens meet
  // in the learner's predict() or in the system's prepare, when it is called.
  TTTLayer(const Params& params, const TTTLayerOptions& options, std::unique_ptr<Task> task, System system,
           std::string name);
  Tensor operator()(Tensor x, Stream& stream) const;
  const Learner& learner() const {
    moved_.check("ttt", "layer");
    return *learner_;
  }

 private:
  // What the learner is given of x; slot: the token's place in its chunk, where tokens come one by one.
  Views views_of(Tensor x, const Task::Joined& joined, Tensor slot, Stream& stream) const;
  // Of a sequence that is cut in time: all its tokens, of the heads that this rank has, and the learner of those.
  Views of_own_heads(const Views& views, const Stream& stream) const;
  std::unique_ptr<Learner> learner_of_own_heads(const ProcessGroup& ranks) const;
  // Each key a token later.
  Task::Joined delayed(const Task::Joined& joined, Stream& stream) const;
  // The learner's answers to a whole sequence [batch, heads, time, dim]; what the stream asks for is tapped.
  Tensor learnt(const Learner& learner, const Views& views, Stream& stream) const;
  // The same of a slice of each sequence (ttt/slices.h).
  Tensor learnt_in_slices(const Views& views, Stream& stream) const;
  void require_causal(const Weights& start, const Spec& q) const;  // ConfigError
  Tensor rates_of_tokens(Tensor x) const;                          // [batch, heads, time, 1]
  Tensor gate_of(const GateSpec& gate, Tensor x) const;
  Tensor attention_branch(const Task::Joined& joined, Stream& stream) const;

  Params params_;
  TTTLayerOptions options_;
  std::unique_ptr<Task> task_;
  System system_;
  SystemSizes sizes_;
  std::unique_ptr<Learner> learner_;
  std::shared_ptr<std::map<std::string, Params::Request>> asked_;  // what the learner has asked for, by name
  std::string name_;
  MovedFrom moved_;
};

// Each token's place in its chunk, 0, 1, .., chunk - 1, 0, 1, ..: [tokens].
Tensor places_in_chunks(std::int64_t tokens, std::int64_t chunk, DType dtype);
// The two factors of eta[i, j] above, of learnable_token_idx [chunk] and of x_j . w_h + b_h of any shape.
Tensor position_rates(Tensor learnable_token_idx);
Tensor token_rates(Tensor raw, double base_lr, std::int64_t head_dim);

// x [.., in] times weight [out, in], transposed: the linear layer of published state dicts.
Tensor linear(Tensor x, Tensor weight);
// [batch, time, heads * dim] <-> [batch, heads, time, dim]
Tensor split_heads(Tensor x, std::int64_t heads);
Tensor join_heads(Tensor x);

}  // namespace nestgrad::ttt
