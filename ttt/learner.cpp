#include "ttt/learner.h"

namespace nestgrad::ttt {

Tensor Learner::loss(const Weights& w, Tensor k, Tensor v) const {
  return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
}

}  // namespace nestgrad::ttt
