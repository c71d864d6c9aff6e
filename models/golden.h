// Golden files: numbers that the official implementations computed, and how far ours are from them.
#pragma once

#include <string>

#include "engine/array.h"
#include "ttt/forms/form.h"

namespace nestgrad {

struct GoldenReport {
  double loss_error = 0, logits_error = 0, worst_grad_error = 0, decode_error = 0;  // max |a-b| / max |b|
  std::string worst_grad_name = "-";
  bool passes(double tolerance) const;
};

// Runs a whole-language-model file (ttt_*): loss, logits, block outputs, gradient of every parameter, and
// decoding token by token. IoError for a file that is not a golden file of a known kind.
GoldenReport verify_golden(const std::string& path, DType dtype = DType::f64,
                           ttt::FormChoice form = ttt::FormChoice::automatic);

}  // namespace nestgrad
