// Taking part in differentiation: a rule of one's own, and recomputation instead of storage.
#pragma once

#include "autograd/scan.h"

namespace nestgrad {

// forward(inputs) with a derivative of one's own. rule(inputs, output, cotangent) gives one cotangent per
// input, in ops, so that derivatives of every order exist. Both must be closed: they may use only what they
// are given (GraphError). A derivative is linear in its cotangent; a rule that is not works in grad,
// vjp and hvp. One that clips its cotangent, or does not pass it on (stop_gradient, a cast to integers), jvp refuses (GradError);
// what a rule adds that has no cotangent in it, jvp leaves out.
using ForwardFn = std::function<Tensor(const Tensors& inputs)>;
using RuleFn = std::function<Tensors(const Tensors& inputs, Tensor output, Tensor cotangent)>;
Tensor custom_vjp(const ForwardFn& forward, const RuleFn& rule, const Tensors& inputs,
                  Loc loc = Loc::current());

// fn(), whose inner values are recomputed where derivatives read them instead of being kept. The same bits. They are recomputed once,
// at the first of these readers: that saves memory in gradients, not in gradients of gradients. Nothing is saved in the
// step of a scan or around a custom_vjp; of one checkpoint inside another only the inner one saves. For loops there is
// ScanOptions::checkpoint_every, for anything PlanOptions::memory_budget.
Tensors checkpoint(const std::function<Tensors()>& fn);

}  // namespace nestgrad
