// Random tokens, read as a whole by a model with random parameters: what other ways of reading are held against.
#pragma once

#include "models/decoder.h"

namespace nestgrad {

struct RandomReading {
  Array tokens;
  StateDict params;
  std::vector<double> logits;  // [batch, tokens, vocabulary], finite
  std::int64_t vocab = 0;
  double tolerance = 0;  // of a logit, relative to the largest
  double largest() const;
};
// In the name of `who`, as options are refused, or answers that are not finite (ValueError).
RandomReading read_at_random(const std::string& who, const LogitsFn& model, const CheckDecodingOptions& options);

TracedModel traced_whole(const LogitsFn& model, DType dtype, const Spec& tokens);
Array random_tokens(const Shape& shape, std::int64_t vocab, std::uint64_t seed);
double tolerance_of(DType dtype);  // the square root of its rounding

}  // namespace nestgrad
