// Golden files: numbers that the official implementations computed, and how far ours are from them.
#pragma once

#include <string>

#include "engine/core/array.h"
#include "ttt/forms/form.h"

namespace nestgrad {

// Worst relative errors, max |a-b| / max |b| of a tensor.
struct GoldenReport {
  double output_error = 0;  // logits and block outputs; outputs and last states of an operation
  double worst_grad_error = 0;
  std::string worst_output_name = "-", worst_grad_name = "-";
  // Of whole language models only:
  double loss_error = 0, decode_error = 0;
  // Of single operations only:
  bool operation = false;
  ttt::FormChoice form = ttt::FormChoice::automatic;  // in which it ran
  bool passes(double tolerance) const;
};

struct GoldenOptions {
  DType dtype = DType::f64;
  ttt::FormChoice form = ttt::FormChoice::automatic;
  std::int64_t block = 64;  // as in InnerLoopOptions; of single operations
};

// Runs a golden file.
//   Whole language models (ttt_*): loss, logits, block outputs, gradient of every parameter, and decoding
//   token by token. Single operations ("op" in the metadata): every output, and the gradient of sum(output *
//   cotangent) with respect to every input and parameter.
// IoError for a file that is not a golden file of a known kind, FormError for a form that is impossible.
GoldenReport verify_golden(const std::string& path, const GoldenOptions& options = {});

}  // namespace nestgrad
