// softmax and its relatives, as composites: their derivatives of every order come from their parts.
#include "engine/core/convert.h"
#include "engine/core/node_text.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

// The maximum only keeps exp() in range; it cancels, so nothing is differentiated through it.
Tensor largest(Tensor x, int axis) { return stop_gradient(max(x, {axis}, kKeep)); }
Tensor shifted(Tensor x, int axis) { return x - largest(x, axis); }

// The maximum, and 0 where it is infinite: of infinities nothing is taken away, as inf - inf would be NaN.
Tensor largest_or_zero(Tensor x, int axis) {
  const Tensor top = largest(x, axis);
  return where(greater(abs(top), largest_finite(x.dtype())), 0.0, top);
}

}  // namespace

Tensor softmax(Operand x, int axis) {
  const CompositeScope scope("softmax", x.loc);
  const Tensor e = exp(shifted(x.tensor(), axis));
  return e / sum(e, {axis}, kKeep);
}

Tensor log_softmax(Operand x, int axis) {
  const CompositeScope scope("log_softmax", x.loc);
  const Tensor s = shifted(x.tensor(), axis);
  return s - log(sum(exp(s), {axis}, kKeep));
}

Tensor logsumexp(Operand x, int axis, bool keep) {
  const CompositeScope scope("logsumexp", x.loc);
  const Tensor top = largest_or_zero(x.tensor(), axis);
  const Tensor kept = log(sum(exp(x.tensor() - top), {axis}, kKeep)) + top;
  return keep ? kept : sum(kept, {axis});
}

Tensor cross_entropy(Operand logits, Operand labels) {
  const CompositeScope scope("cross_entropy", logits.loc);
  const Tensor x = logits.tensor();
  const std::int64_t classes = x.dim(-1);
  Shape one_each = x.shape();
  one_each.pop_back();
  const Tensor ids = labels.tensor();
  const auto check_that = [&]<class Error = ShapeError>(bool holds) {
    if (!holds)
      throw call_error<Error>(
          "cross_entropy", labels.loc,
          "labels must be {}, one for each row of the logits {}; they are {}: cast() or reshape() them",
          to_string(Spec{DType::i32, one_each}), describe(x), describe(ids));
  };
  check_that.operator()<DTypeError>(ids.dtype() == DType::i32);
  check_that(ids.shape() == one_each);
  // Looked up in 0, 1, 2, ..: the label itself, or an error where there is no such class.
  const Tensor known = gather(iota(DType::i32, {classes}, 0), labels);
  // Both of what is left when the largest logit is taken away: what a sure and right row loses is far below the rounding of
  // its logits. Chosen and not multiplied, so that classes masked by -infinity do no harm.
  const Tensor s = x - largest_or_zero(x, -1);
  return log(sum(exp(s), {-1})) - sum(select(one_hot(known, classes, x.dtype()), s, 0.0), {-1});
}

}  // namespace nestgrad
