// Weights: the fast weights of a learner, by name.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace nestgrad::ttt {

// What a fast weight may be used for, which is also how its gradient factorises.
enum class WeightKind : std::uint8_t {
  matrix,  // [.., in, out]; used as matmul(rows, W) or matmul(rows, W')
  row,  // [.., 1, dim]; the learner sees it spread over tokens, [.., tokens, dim], and may use it in any way
};

struct FastWeight {
  std::string name;
  WeightKind kind;
  Tensor value;
};

// The fast weights, in the order of Learner::init.
class Weights {
 public:
  Weights() = default;
  // ConfigError for a name that two have.
  Weights(std::initializer_list<FastWeight> list) : Weights(std::vector<FastWeight>(list)) {}
  explicit Weights(std::vector<FastWeight> list);

  Tensor operator[](std::string_view name) const;  // FormError if there is none of that name
  // The same weight as a constant of the inner gradient: learning does not
  // go through this use, the outer gradient does. (stop_gradient would cut
  // both.) Where no inner gradient is being taken, it is the weight itself.
  Tensor held(std::string_view name) const;

  std::size_t size() const { return list_.size(); }
  std::size_t index(std::string_view name) const;
  const FastWeight& at(std::size_t i) const { return list_[i]; }
  std::vector<Tensor> values() const;
  // The same weights with other values, one for each (else ConfigError). What is held is not taken over, here and in spread():
  // with_held() gives it again.
  Weights with(const std::vector<Tensor>& values) const;
  // As a learner's text sees them: rows spread over tokens, [.., tokens, dim].
  Weights spread(std::int64_t tokens) const;
  Weights with_held(const std::vector<Tensor>& values) const;
  // The same weights, each under a name of its own (probe): a derivative by one of them goes through no other use of its tensor.
  Weights apart() const;

 private:
  std::vector<FastWeight> list_;
  std::vector<Tensor> held_;
};

inline FastWeight matrix(std::string name, Tensor value) {
  return {std::move(name), WeightKind::matrix, value};
}
inline FastWeight row(std::string name, Tensor value) { return {std::move(name), WeightKind::row, value}; }

}  // namespace nestgrad::ttt
