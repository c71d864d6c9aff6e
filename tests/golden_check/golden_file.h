// What the checks of golden files have in common: looking for a tensor, and how far ours is from it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "models/traced_model.h"
#include "tests/golden_check/verify.h"

namespace nestgrad {

inline const Array& find(const SafeTensors& file, const std::string& name, const std::string& path) {
  const auto at = file.tensors.find(name);
  if (at == file.tensors.end())
    throw IoError(fmt::format("{}: it has no tensor '{}', which files of this kind have", path, name));
  return at->second;
}

// What the file has besides what was read and compared, `seen`. An input has its name returned, to be told: nothing is
// known of what depends on it. Anything else is an expected value that nobody has computed: IoError, naming it.
inline std::vector<std::string> unread_inputs(const SafeTensors& file, const std::set<std::string>& seen,
                                              const std::string& path) {
  static const std::set<std::string> known{"labels", "attention_mask", "position_ids"};  // of whole models
  std::vector<std::string> out;
  for (const auto& [name, value] : file.tensors) {
    if (seen.contains(name)) continue;
    if (!name.starts_with("in.") && !known.contains(name))
      throw IoError(
          fmt::format("{}: it expects '{}', and nothing is computed here to compare it with", path, name));
    out.push_back(name);
  }
  return out;
}

// How far `ours` is from the file's tensor of that name.
inline double error_of(const Array& ours, const SafeTensors& file, const std::string& name,
                       const std::string& path) {
  const Array& theirs = find(file, name, path);
  if (theirs.shape() != ours.shape())
    throw IoError(fmt::format("{}: '{}' is {}, the model of this configuration gives {}", path, name,
                              to_string(theirs.spec()), to_string(ours.spec())));
  return relative_error(ours, theirs);
}

// Does the file have gradients?
inline bool has_gradients(const SafeTensors& file) {
  const auto at = file.tensors.lower_bound("grad.");
  return at != file.tensors.end() && at->first.starts_with("grad.");
}

// How far a gradient is from the file's grad.NAME. One that is zero throughout says nothing about its size: what is there
// instead is then measured by the largest of the file's gradients, 1 if all are zero.
inline double gradient_error_of(const Array& ours, const SafeTensors& file, const std::string& name,
                                const std::string& path) {
  const auto largest = [](const Array& a) {
    double out = 0;
    for (const double x : a.to_vector())
      if (!(std::abs(x) <= out)) out = std::abs(x);
    return out;
  };
  const double error = error_of(ours, file, "grad." + name, path);
  const Array& theirs = find(file, "grad." + name, path);
  if (largest(theirs) != 0) return error;
  double scale = 0;
  for (auto at = file.tensors.lower_bound("grad."); at != file.tensors.end(); ++at) {
    if (!at->first.starts_with("grad.")) break;
    if (first_not_finite(at->second) < 0) scale = std::max(scale, largest(at->second));
  }
  return relative_error(ours, theirs, scale > 0 ? scale : 1);
}

// What the file has under a prefix, by the rest of the name.
inline std::vector<std::string> names_under(const SafeTensors& file, const std::string& prefix) {
  std::vector<std::string> out;
  for (const auto& [name, value] : file.tensors)
    if (name.starts_with(prefix)) out.push_back(name.substr(prefix.size()));
  return out;
}

inline StateDict with_prefix(const SafeTensors& file, const std::string& prefix, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : file.tensors)
    if (name.starts_with(prefix)) out.emplace(name.substr(prefix.size()), value.cast(dtype));
  return out;
}

// The worst of several tensors, with its name.
inline void note(double error, const std::string& name, double& worst, std::string& worst_name) {
  if (error <= worst) return;
  worst = error;
  worst_name = name;
}

// The tokens of a whole model, integers [batch, time] with at least two of them.
const Array& find_tokens(const SafeTensors& file, const std::string& name, const std::string& path);

// A file of a language model that goes on training while it reads (models/end_to_end.h).
GoldenReport verify_end_to_end(const SafeTensors& file, const std::string& path,
                               const GoldenOptions& options);

}  // namespace nestgrad
