// TTT-MLP as the official program computes it.
//
// That program writes the inner gradient down, with the slope of the tanh gelu in constants of eight to ten digits:
//
//   t = tanh(0.79788456 x (1 + 0.044715 x^2)),   slope(x) = 0.5 x (1 - t^2) (0.79788456 + 0.1070322243 x^2) + 0.5 (1 + t)
//
// where the exact ones are sqrt(2/pi) = 0.797884560802865.. and 3 * 0.044715 sqrt(2/pi) = 0.107032224089.. Its forward
// pass and the outer derivative of that are exact. So official numbers are not those of the mathematics: what is derived
// for the learner of the library (ttt/learners/mlp.h) differs by 3e-13 in the loss, 4e-11 in logits and 3e-10 in gradients
// from the files that there are, by up to 2e-8 in a gradient of other sizes. The largest allowed is 1e-9, so files of
// TTT-MLP are held against this one, which is within rounding of them.
#pragma once

#include "ttt/system.h"

namespace nestgrad {

// The system "ttt-mlp" with the official slope in its inner gradient alone.
ttt::System official_ttt_mlp();

}  // namespace nestgrad
