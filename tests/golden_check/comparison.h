// What was computed of a whole language model, held against what its golden file has of it. A file may lack some of the
// numbers: what is there is compared, and the report tells the rest.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "tests/golden_check/verify.h"

namespace nestgrad {

class Comparison {
 public:
  // inputs: tensors of the file that are read and not compared, besides param.*.
  Comparison(const SafeTensors& file, std::string path, std::set<std::string> inputs);

  void loss(const Array& ours);  // of one element; in the file [1] or []
  void output(const Array& ours, const std::string& name);
  // Of one parameter, which the file may have under several names.
  void gradient(const Array& ours, const std::vector<std::string>& names);
  // IoError if nothing was there to be compared, or the file expects something else.
  GoldenReport done();

 private:
  bool has(const std::string& name);  // if not, the report tells

  const SafeTensors& file_;
  std::string path_;
  std::set<std::string> seen_;
  GoldenReport report_;
};

}  // namespace nestgrad
