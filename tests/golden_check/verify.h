// Golden files: numbers that the official implementations computed, and how far ours are from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/array.h"
#include "ttt/forms/form.h"

namespace nestgrad {

// Worst relative errors, max |a-b| / max |b| of a tensor; of a gradient that is zero by the largest gradient of the file.
struct GoldenReport {
  // Logits and block outputs; outputs and last states of an operation; of a model that trains while it reads the
  // losses of tokens and chunks, the norms of its inner gradients and its last inner weights.
  double output_error = 0;
  double worst_grad_error = 0;
  std::string worst_output_name = "-", worst_grad_name = "-";
  // How much of it the file has: a number that it lacks is not compared.
  std::int64_t outputs = 0;              // of those of output_error
  std::int64_t gradients = 0;            // of how many of the inputs, parameters included
  std::int64_t inputs = 0;               // with a gradient
  std::vector<std::string> absent = {};  // outputs, and the loss, that the file does not have
  std::vector<std::string> unread =
      {};  // inputs of the file that are none of ours: nothing may depend on them
  // Of whole language models only:
  bool loss = false;  // is there one in the file?
  double loss_error = 0;
  bool decoded =
      false;  // token by token; not where the file has no logits, as of those that train while they read
  double decode_error = 0;
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
//   token by token. Those that train while they read (end_to_end_*): losses, inner norms and weights, gradients;
//   their form is the chunk's own; where the configuration has a bos_token_id, the file's own numbers say whether such
//   targets were left out. Single operations ("op" in the metadata): every output, and the gradient of
//   sum(output * cotangent) with respect to every input and parameter. A file may have a part of these, and no gradients
//   at all: what it has is compared, and the report says what it lacks. A key of the metadata that it lacks is what
//   the operation's definition says.
// TTT-MLP runs with the rounded constants of the official program's inner gradient, golden_check/official_mlp.h.
// IoError for a file that is not a golden file of a known kind, says that it was computed in a way that cannot be checked,
// or expects numbers that nobody computes here; ConfigError for a model that is none of ours; FormError for a form that is
// impossible.
GoldenReport verify_golden(const std::string& path, const GoldenOptions& options = {});

// What is to be said of a file, in one line without its end:
//   FILE PASS|FAIL loss_err output_err worst_grad_err worst_grad_name decode_err [form]
//        [(no gradients)|(gradients of 3 of 7 inputs)] [(not there: NAME, ..)] [(not read: NAME, ..)]
//   FILE REFUSED why
// No file throws: it is refused for whatever verify_golden throws, and others can still be tried.
struct GoldenVerdict {
  enum class Kind : std::uint8_t { passes, differs, refused };
  Kind kind;
  std::string line;
};
GoldenVerdict golden_verdict(const std::string& path, const GoldenOptions& options, double tolerance);

}  // namespace nestgrad
