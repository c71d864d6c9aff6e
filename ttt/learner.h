// Learner: a small model that is trained while the outer model reads. It is written as forward and loss only;
// its gradient, and every form in which it can be run along a sequence, is derived from its trace
// (ttt/forms.h).
//
// Rules for a learner's text: address axes from the end (-2 tokens, -1 features): batch and heads come before
// them and are never seen. Tokens must not mix. The loss is per token, [.., tokens, 1], never summed or
// averaged over tokens.
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
  Weights(std::initializer_list<FastWeight> list) : list_(list) {}
  explicit Weights(std::vector<FastWeight> list) : list_(std::move(list)) {}

  Tensor operator[](std::string_view name) const;  // FormError if there is none of that name
  std::size_t size() const { return list_.size(); }
  const FastWeight& at(std::size_t i) const { return list_[i]; }
  std::vector<Tensor> values() const;
  Weights with(const std::vector<Tensor>& values) const;  // the same weights with other values

 private:
  std::vector<FastWeight> list_;
};

inline FastWeight matrix(std::string name, Tensor value) {
  return {std::move(name), WeightKind::matrix, value};
}
inline FastWeight row(std::string name, Tensor value) { return {std::move(name), WeightKind::row, value}; }

// While it lives, new nodes carry the line that writes them: a learner's text is named by its own lines, not
// by that of the layer which runs it.
class OwnLines : EmitGuard {
 public:
  OwnLines() { emit_state().loc.reset(); }
};

class Learner {
 public:
  virtual ~Learner() = default;
  // Fast weights at step 0 (outer parameters): [heads, in, out] and [heads, 1, dim].
  virtual Weights init() const = 0;
  // f(x; W): rows [.., tokens, in] -> rows [.., tokens, out].
  virtual Tensor predict(const Weights& w, Tensor x) const = 0;
  // Self-supervised loss per token, [.., tokens, 1]. Default: 1/2 |f(k; W) - v|^2.
  virtual Tensor loss(const Weights& w, Tensor k, Tensor v) const;
};

}  // namespace nestgrad::ttt
