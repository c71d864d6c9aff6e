#include "ttt/learner.h"

namespace nestgrad::ttt {

Tensor Learner::loss(const Weights& w, Tensor k, Tensor v) const {
  return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
}

bool is_default_loss(Tensor loss) {
  return std::string_view(loss.graph().node(loss.id()).loc.file_name()) == __FILE__;
}

}  // namespace nestgrad::ttt
