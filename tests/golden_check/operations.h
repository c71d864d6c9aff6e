// The single operations of golden files, each run as the system of ttt/learners/, or the layer of
// ttt/vision.h, that it is.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/golden_check/metadata.h"
#include "ttt/inner_loop.h"
#include "ttt/params.h"

namespace nestgrad {

// What a file gives, inside a trace.
class GoldenOperation : public GoldenMetadata {
 public:
  std::map<std::string, Tensor> in;  // in.*
  Params params;                     // in.param.*
  std::map<std::string, Shape> param_shapes;
  ttt::FormChoice form;
  std::int64_t block;
  mutable std::set<std::string> asked = {};  // inputs that the operation has asked for

  // IoError if the file has no such thing, or it cannot be read as what it should be.
  Tensor input(const std::string& name, int rank) const;
  bool has(const std::string& name) const { return in.contains(name); }
};

struct GoldenOutputs {
  std::map<std::string, Tensor> out;     // by the names of out.*
  ttt::FormChoice form;                  // in which it ran
  std::vector<std::string> unread = {};  // inputs of the file that are none of the operation
};

GoldenOutputs run_golden_operation(const GoldenOperation& operation);

}  // namespace nestgrad
