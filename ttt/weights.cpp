#include "ttt/weights.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

Weights::Weights(std::vector<FastWeight> list) : list_(std::move(list)) {
  for (std::size_t i = 0; i < list_.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (list_[i].name == list_[j].name)
        throw ConfigError(fmt::format(
            "[learner] two fast weights are called '{}'; give each a name of its own", list_[i].name));
}

std::size_t Weights::index(std::string_view name) const {
  for (std::size_t i = 0; i < list_.size(); ++i)
    if (list_[i].name == name) return i;
  std::vector<std::string> known;
  for (const FastWeight& w : list_) known.push_back(w.name);
  throw FormError(fmt::format("[learner] there is no fast weight '{}'; init() declares {}", name,
                              fmt::join(known, ", ")));
}

Tensor Weights::operator[](std::string_view name) const { return list_[index(name)].value; }

Tensor Weights::held(std::string_view name) const {
  const std::size_t i = index(name);
  return held_.empty() ? list_[i].value : held_[i];
}

std::vector<Tensor> Weights::values() const {
  std::vector<Tensor> out;
  for (const FastWeight& w : list_) out.push_back(w.value);
  return out;
}

Weights Weights::with(const std::vector<Tensor>& values) const {
  if (values.size() != list_.size())
    throw ConfigError(fmt::format("[learner] {} values are given to {} fast weights; give one for each",
                                  values.size(), list_.size()));
  std::vector<FastWeight> out = list_;
  for (std::size_t i = 0; i < out.size(); ++i) out[i].value = values[i];
  return Weights(std::move(out));
}

Weights Weights::spread(std::int64_t tokens) const {
  std::vector<FastWeight> out = list_;
  for (FastWeight& w : out) {
    if (w.kind == WeightKind::matrix) continue;
    Shape shape = w.value.shape();
    shape[shape.size() - 2] = tokens;
    w.value = broadcast_to(w.value, shape);
  }
  return Weights(std::move(out));
}

Weights Weights::apart() const {
  Weights out = *this;
  for (FastWeight& w : out.list_) w.value = probe(w.value);
  for (Tensor& value : out.held_) value = probe(value);
  return out;
}

Weights Weights::with_held(const std::vector<Tensor>& values) const {
  Weights out = *this;
  out.held_ = values;
  return out;
}

}  // namespace nestgrad::ttt
