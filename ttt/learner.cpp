#include "ttt/learner.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

Tensor Weights::operator[](std::string_view name) const {
  for (const FastWeight& w : list_)
    if (w.name == name) return w.value;
  throw FormError(fmt::format("[learner] there is no fast weight '{}'; init() declares them", name));
}

std::vector<Tensor> Weights::values() const {
  std::vector<Tensor> out;
  for (const FastWeight& w : list_) out.push_back(w.value);
  return out;
}

Weights Weights::with(const std::vector<Tensor>& values) const {
  std::vector<FastWeight> out = list_;
  for (std::size_t i = 0; i < out.size(); ++i) out[i].value = values.at(i);
  return Weights(std::move(out));
}

Tensor Learner::loss(const Weights& w, Tensor k, Tensor v) const {
  return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
}

}  // namespace nestgrad::ttt
