#include "ttt/learner.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

Tensor Learner::loss(const Weights& w, Tensor k, Tensor v) const {
  const Tensor predicted = predict(w, k);
  check_features(predicted, v);
  return 0.5 * sum(square(predicted - v), {-1}, kKeep);
}

void check_features(Tensor predicted, Tensor v) {
  if (predicted.rank() > 0 && v.rank() > 0 && predicted.dim(-1) != v.dim(-1))
    throw ShapeError(fmt::format(
        "[inner loss] the learner predicts {} features of a token and v has {}: {} against {}; let both have as many, or "
        "give the learner a loss of its own",
        predicted.dim(-1), v.dim(-1), describe(predicted), describe(v)));
}

bool is_default_loss(Tensor loss) {
  return std::string_view(loss.graph().node(loss.id()).loc.file_name()) == __FILE__;
}

}  // namespace nestgrad::ttt
