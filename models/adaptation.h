// Dynamic evaluation: a whole language model goes on training on the text that it is scored on (Krause et al. 2018,
// "Dynamic Evaluation of Neural Sequence Models", section 3). The text is cut into segments; each is scored with the
// weights that the segments before it have left, and only then makes a step of gradient descent on its own loss:
//
//   score_i = loss(segment_i; theta_i),   theta_{i+1} = theta_i - rate clip(d score_i / d theta)
//
// Layers that are learners read each segment from their beginning: what is carried between segments is theta alone.
#pragma once

#include <array>
#include <span>

#include "engine/core/moved_from.h"
#include "models/language_model.h"
#include "models/traced_model.h"

namespace nestgrad {

// What learns while it is scored.
enum class Adapted : std::uint8_t {
  nothing,  // the model as it is
  sgd,      // all parameters
  norms,  // gains and shifts of normalisations, as in test-time adaptation by entropy (Wang et al. 2021, "Tent")
  lora,  // a thin product beside every matrix but the embedding: W + B A (Hu et al. 2022, section 4.1)
};
Adapted adapted_named(std::string_view name);  // nothing, sgd, norms, lora; ConfigError for another one
std::string_view name(Adapted adapted);

// A gain or shift of a normalisation, by its name.
bool is_norm(const ParamSpec& param);
// The factors of the product beside a matrix [rows, columns], or those of all blocks, [blocks, rows, columns]: its name and
// .lora_B [.., rows, rank], from zeros, then its name and .lora_A [.., rank, columns].
std::array<ParamSpec, 2> lora_factors(const ParamSpec& matrix, std::int64_t rank);
std::string matrix_of_factor(const std::string& name);  // the name of the matrix that a factor stands beside

struct AdaptationOptions {
  Adapted what = Adapted::sgd;
  double rate = 0;         // of a step; 0: default_rate(what)
  double clip = 1;         // largest norm of a step's gradient, over all that learns
  std::int64_t rank = 4;   // lora: of each product
  std::uint64_t seed = 0;  // lora: of A; B starts as zeros

  void check() const;  // ConfigError that names the field and its range
};
double default_rate(Adapted what);

// Scores a text, segment after segment. Used by one thread.
//
//   AdaptingScorer scorer(config, params, {.what = Adapted::norms});
//   for (each segment) losses = scorer.score(tokens);  // tokens [n + 1] -> n losses, in nats
class AdaptingScorer {
 public:
  // params, f32, must be the model's (ConfigError); so is lora for one without matrices, and norms for one without
  // normalisations. Copies of them are read, where the caller keeps its own.
  AdaptingScorer(const LanguageModelConfig& config, StateDict params, const AdaptationOptions& options);
  AdaptingScorer(const LogitsFn& model, StateDict params, const AdaptationOptions& options);
  // A copy has learnt what this one has, and learns on by itself.
  AdaptingScorer(const AdaptingScorer& other);
  AdaptingScorer& operator=(const AdaptingScorer& other);
  AdaptingScorer(AdaptingScorer&&) = default;
  AdaptingScorer& operator=(AdaptingScorer&&) = default;
  ~AdaptingScorer() = default;

  // The loss of each of tokens[1..], given those before it in the segment; then, if learn, the step. ShapeError for
  // fewer than two tokens; ValueError for one that is no token of the model, and where a loss or the gradient is not
  // finite: nothing has then been learnt.
  std::vector<double> score(std::span<const std::int32_t> tokens, bool learn = true);
  void reset();  // back to the parameters given
  std::int64_t steps() const { return here().steps_; }
  std::int64_t learning_parameters() const;  // how many numbers learn

 private:
  using LossFn = std::function<Tensor(const Params& params, Tensor tokens)>;
  struct Program;
  AdaptingScorer(LossFn loss, StateDict params, const AdaptationOptions& options);
  Program& program(std::int64_t length);
  const AdaptingScorer& here() const {  // ConfigError of a scorer that was moved from
    moved_.check("adaptation", "scorer");
    return *this;
  }

  LossFn loss_;
  AdaptationOptions options_;
  StateDict params_;
  std::vector<ParamSpec> learning_;  // what learns: parameters, or the factors of products beside them
  std::vector<Array> values_;        // of learning_
  std::map<std::int64_t, std::shared_ptr<Program>> programs_;  // no one else's: steps write over their arrays
  std::int64_t steps_ = 0;
  MovedFrom moved_;
};

// Scores of a whole text: segments of `segment` tokens that are predicted, the last one perhaps shorter. scorer is reset
// first. progress, if given, sees the fraction done after each segment.
std::vector<double> score_text(AdaptingScorer& scorer, std::span<const std::int32_t> tokens,
                               std::int64_t segment, const std::function<void(double)>& progress = {});

// Proves by example that no score depends on its own token or on what comes after it. From each of some places on, all
// later tokens are replaced by others; the scores before must keep their bits, and some after it must change. And a token's
// score must be the same, but for f32's roundings, where it ends a segment, so that the model is not given it. ConfigError
// that says where they did not. tokens: a few segments.
void check_no_look_ahead(AdaptingScorer& scorer, std::span<const std::int32_t> tokens, std::int64_t segment);

}  // namespace nestgrad
