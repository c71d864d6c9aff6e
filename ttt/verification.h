// Verification: a kernel's numbers held to those of a reference (ttt/reference.h), tensor by tensor.
//
//   Verification v = verify(read_safetensors("out.safetensors"), read_safetensors("theirs.safetensors"), {});
//   if (!v.passed()) puts(v.str().c_str());
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"

namespace nestgrad::ttt {

struct VerifyOptions {
  // Of max |kernel - reference| / max |reference|. Unset: by the coarser of the types in which the two are stored,
  // f64 1e-9, f32 2e-4, f16 and bf16 2e-2.
  std::optional<double> tolerance = {};
  bool all = false;  // a tensor that the kernel does not have counts as a failure
};

// What is said of one name.
struct TensorVerdict {
  enum class Kind : std::uint8_t { agrees, differs, not_finite, misshapen, wrong_type, missing, left_over };
  std::string name;
  Kind kind = Kind::agrees;
  bool passed = true;
  double error = 0, tolerance = 0;  // relative, of agrees and differs
  double theirs = 0, expected = 0;  // at the worst place
  std::string worst;                // "batch 0, head 1, token 17, feature 3"
  std::string range;                // where it is beyond the tolerance, "tokens 17 to 63"
  double share = 0;                 // of its numbers that are beyond it, 0 to 1
  std::string text;                 // one line for people
  // What the numbers look like instead: "these are the numbers of the reference's 'v'".
  std::vector<std::string> hints;
};

struct Verification {
  std::vector<TensorVerdict> tensors;  // by name; those that both have first
  std::size_t compared = 0;            // outputs (no inputs) that both have, and that hold numbers
  // Everything that both have agrees, the kernel has no name that the reference lacks, and at least one output
  // was compared.
  bool passed() const;
  std::string str() const;  // a line a tensor and a line a hint, then one that sums up
};

// The denominator is the reference's largest number, or, where that is less, a millionth of the largest of its
// kind (all grad.*, all state.*, ..), so that numbers that are zero but for rounding are not held to each
// other; 1 where all are zero.
Verification verify(const SafeTensors& reference, const SafeTensors& kernel, const VerifyOptions& options);

// Element `flat` of an array in words: "batch 0, head 1, token 17, feature 3" with the axes "batch head token
// feature", else "[0,1,17,3]".
std::string place_text(std::int64_t flat, const Shape& shape, const std::string& axes);

}  // namespace nestgrad::ttt
