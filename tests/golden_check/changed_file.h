// A golden file with something changed: what notices that, and what refuses it?
#pragma once

#include <functional>
#include <string>

#include "engine/io/safetensors.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"

namespace nestgrad::testing {

inline std::string golden(const std::string& name) {
  return fmt::format("{}/golden/{}.safetensors", NESTGRAD_TEST_DATA, name);
}

// A golden file with a change, which is removed at the end.
class Changed {
 public:
  Changed(const std::string& name, const std::function<void(SafeTensors&)>& change) {
    SafeTensors file = read_safetensors(golden(name));
    change(file);
    path_ = folder_ / (name + ".safetensors");
    write_safetensors(path_, file);
  }
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

// Moves one number, about this far into the tensor, by a millionth of the largest.
inline void nudge(SafeTensors& file, const std::string& name, double place = 0.5) {
  REQUIRE(file.tensors.contains(name));
  Array& a = file.tensors.at(name);
  a.as<double>()[static_cast<std::size_t>(place * static_cast<double>(a.size()))] +=
      1e-6 * relative_error(a, Array::zeros(a.dtype(), a.shape()), 1);
}

}  // namespace nestgrad::testing
