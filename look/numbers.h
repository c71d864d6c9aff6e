// The numbers of an inspection: one inner loop laid open, to see how the outer gradient flows through the
// learning. Each function answers one question with numbers, and with claims that they must satisfy; a file
// of look/views/ has the function and the pictures made from its numbers. The identity behind most of them:
//
//   full meta-gradient = first-order term + sum over inner steps of -eta H_t lambda_t
//
// H_t is the Hessian of the inner loss where step t takes its gradient, lambda_t what the outer loss wants of
// the weights that the step makes.
#pragma once

#include <functional>
#include <optional>

#include "engine/run/function.h"
#include "ttt/claim.h"
#include "ttt/system.h"

namespace nestgrad::look {

// What is inspected: an inner loop with its numbers, in f64, and what the outer loss asks of its output.
struct InspectedLoop {
  std::string name;
  std::function<std::unique_ptr<ttt::Learner>(const Params& params)> learner;
  ttt::Policy policy;
  Array q, k, v;                        // as the inner loop sees them, [batch, heads, time, dim]
  std::map<std::string, Array> gates;   // [batch, heads, time, 1 or in]
  Array position;                       // [chunk], or undefined: see Views
  std::map<std::string, Array> params;  // what the learner asks for, by name
  Array cotangent;  // outer loss differentiated by the output, of its shape: [batch, heads, time, dim]
  std::vector<double> outer_loss;       // of each token, or one number of all together, or not known: empty
  std::string outer_unit;               // its unit: "nats per byte"
  // Of images: what the tokens lie on, patches of the first image, then of the next. Behind a class token, if there is one.
  struct Patches {
    struct Captioned {
      Array image;               // f32 [height, width, 1 or 3], as the model sees it
      std::string caption = {};  // what it shows, and what the model says: "4, taken for 9"
    };
    std::vector<Captioned> images;       // all of one size
    std::int64_t rows = 0, columns = 0;  // of patches of each
    std::vector<Captioned> made = {};    // by the model, of no token
    std::int64_t tokens() const { return std::ssize(images) * rows * columns; }
    void check(std::int64_t tokens_there) const;  // ConfigError, ShapeError
  };
  std::optional<Patches> patches = {};

  std::int64_t batch() const { return k.shape()[0]; }
  std::int64_t heads() const { return k.shape()[1]; }
  std::int64_t time() const { return k.shape()[2]; }
  std::int64_t chunk() const;   // tokens of one inner step
  std::int64_t chunks() const;  // inner steps
  void check() const;           // ShapeError; ConfigError unless the chunks are whole
};

// A system on a task that it can learn: v is a linear map of k with a little noise, and the outer loss is half
// the squared distance of each answer from that map of q.
InspectedLoop inspected_learner(const ttt::System& system, const ttt::ProgramSizes& sizes,
                                std::uint64_t seed);

// ---- by inner step ----

// What each inner step adds to the gradient of the starting weights, all weights that learn as one vector.
struct StepContributions {
  std::vector<double> norm;        // of step t's own term -eta H_t lambda_t, carried back to the start
  std::vector<double> projection;  // of it on the direction of the full gradient, signed
  double full_norm = 0, first_order_norm = 0, first_order_projection = 0;
  std::vector<Claim> claims;  // first order + all steps = full
};
StepContributions contributions_by_step(const InspectedLoop& inspected);

// ---- the two channels ----

// How token s's write reaches the answer to token t: the derivative of the outer loss (one number of the whole sequence, whose
// derivative by the answers is InspectedLoop::cotangent), through the answer to t alone, by the size of s's gradient, all heads
// together, [t, s]. cumsum: W_s is a term of the sum that W_t is; gradient: W_s also
// moves the points where later gradients are taken (Sun et al. 2024, section 2.5).
struct Channels {
  Array full, cumsum, gradient;  // [time, time]
  // They add up; the size of a write is that of the token's inner loss; with one mini-batch, where there may be one,
  // `gradient` is zero.
  std::vector<Claim> claims;
};
Channels channels(const InspectedLoop& inspected);

// ---- estimators of the meta-gradient ----

struct Estimate {
  std::string name;  // full, first order, truncated after 2 steps
  double norm = 0, cosine = 0;
  double seconds = 0;  // of forward and backward, the median of several runs
  std::size_t bytes = 0, nodes = 0;
  double flops = 0;
  struct Parameter {
    std::string name;
    double norm = 0, cosine = 0, ratio = 0;  // of norms; against the full gradient
  };
  std::vector<Parameter>
      parameters;  // what the outer model trains: the learner's, then q, k, v, the gates and position rates
};
struct Estimators {
  std::vector<Estimate> estimates;  // full, first order, truncated after 1, 2, 4, .. steps
  // Cosine of first order and full gradient of the starting weights when all steps are this much smaller; gates that the
  // learner makes itself are constants in both.
  std::vector<double> scale, cosine;
  bool own_gates = false;  // does it make any
  std::vector<Claim> claims;
};
Estimators estimators(const InspectedLoop& inspected);

// ---- curvature ----

// Of J, the weights that a step makes differentiated by those that it finds, what the optimiser carries besides being held
// (I - eta H_t of a plain step); per inner step and head: [steps, heads], the worst of the batch.
struct Curvature {
  Array along;  // lambda' (I - J) lambda / lambda' lambda; NaN where lambda is zero
  Array
      expansion;  // largest |J v| / |v|, by power iteration, which comes from below; above 1 the step expands
  std::vector<Claim> claims;  // |1 - along| <= expansion
};
Curvature curvature(const InspectedLoop& inspected, int iterations = 40);

// ---- losses ----

// Per token, mean over batch and heads (Sun et al. 2024, Figure 4).
struct InnerLosses {
  std::vector<double> initial, before, after;  // at the first weights, before and after the token's own step
  std::vector<double> outer;
  std::vector<Claim>
      claims;  // in the first mini-batch (with a step per token, at the first token), before = initial
};
InnerLosses inner_losses(const InspectedLoop& inspected);

// ---- attention ----

struct AttentionMaps {
  Array effective;      // [batch, heads, time, time]: EffectiveAttention::matrix; undefined if there is none
  std::string why_not;  // then: why
  Array softmax;        // of the same q and k; undefined where they have other widths
  std::vector<Claim> claims;  // with it and the effective values the output is the learner's
};
AttentionMaps attention_maps(const InspectedLoop& inspected);

// |d o_i / d v_j|, Frobenius norm over features, [batch, heads, time, time]; for any learner (T^5, Figure 4).
struct ImplicitAttention {
  Array map;
  std::vector<Claim> claims;  // zero above the diagonal, if the policy is causal
};
ImplicitAttention implicit_attention(const InspectedLoop& inspected);

// ---- patches ----

// Of a learner that takes all tokens at once: does it read nothing out of their order?
std::vector<Claim> order_of_tokens(const InspectedLoop& inspected);

// ---- keys ----

struct KeyStatistics {
  std::vector<double> shift;  // per head: |mean k| / mean |k|; 0: keys lie around zero, 1: all are the same
  // Two principal components of both sets together, of one head: [tokens, 2].
  struct Plane {
    Array first, second;
    double explained = 0;  // share of the variance in the plane
  };
  // Per head, batch entry 0; none where the two have other widths.
  std::vector<Plane> queries_keys, values_outputs;
  std::vector<Claim> claims;
};
KeyStatistics key_statistics(const InspectedLoop& inspected);

// ---- one token ----

struct StepCard {
  std::int64_t token = 0, step = 0;  // its inner step (chunk)
  std::int64_t from = 0, to = 0;     // tokens that the step takes in: [from, to)
  double state = 0, written = 0;     // |W| that it finds, |change of W|
  double gradient = 0;  // |rate x gradient|, of a policy that says so the mean; before the optimiser
  double loss_initial = 0, loss_before = 0, loss_after = 0;
  std::int64_t first_reader = 0;      // first token that reads the write; -1: none
  std::int64_t next_gradient =
      0;  // first token whose gradient is taken after it, if that reaches an answer; -1: none
  std::int64_t strongest_reader = 0;  // for which the outer loss depends most on it; -1: none
  std::vector<Claim> claims;          // the losses, evaluated again at the weights found and written
  std::string str() const;            // several lines
};
// ConfigError for a token that does not exist. reach: channels(inspected).
StepCard explain_step(const InspectedLoop& inspected, std::int64_t token, const Channels& reach);

// ---- precision ----

// One outer gradient in f32 beside f64, per tensor.
struct PrecisionProbe {
  struct Entry {
    std::string name;
    double norm = 0, cosine = 0, error = 0;  // error: max|a - b| / max|b|
  };
  std::vector<Entry> entries;
  double cosine = 0;      // all tensors as one vector
  std::size_t worst = 0;  // entry of the lowest cosine
  std::string str() const;
};
// ShapeError unless both have these tensors.
PrecisionProbe compare_precision(const std::vector<std::string>& names, const std::vector<Array>& f32,
                                 const std::vector<Array>& f64);
PrecisionProbe precision(const InspectedLoop& inspected);

// ---- the program itself ----

// The loop's loss and full meta-gradient as a program: for graphs, profiles and reproducers.
struct MetaProgram {
  Function function;
  std::vector<Array> inputs;
  std::vector<std::string> outputs;  // names: loss, then what is differentiated by
};
MetaProgram meta_program(const InspectedLoop& inspected, DType dtype = DType::f64, int checkpoint_every = 0);

}  // namespace nestgrad::look
