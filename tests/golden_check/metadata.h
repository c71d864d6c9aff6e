// What the metadata of a golden file say, as words, numbers and counts.
//
// Example: "cg_iterations": "6" is metadata.integer("cg_iterations", 0, 1000). Whatever cannot be read, or makes no sense,
// is an IoError that names the file, the key, its value and what it must be. A key whose value is None says nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nestgrad {

// More than any count of tokens, features, heads or rows of an image in a file.
inline constexpr std::int64_t kMostGolden = std::int64_t{1} << 24;

class GoldenMetadata {
 public:
  std::string path;
  std::map<std::string, std::string> metadata;

  bool says(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most = kMostGolden) const;
  double number(const std::string& key, double least = -HUGE_VAL) const;  // finite
  bool flag(const std::string& key) const;  // True, true or 1; False, false or 0
  // begin and end of a range that is not empty, "[0, 12]" or "(0, 12)", among so many.
  std::pair<std::int64_t, std::int64_t> range(const std::string& key, std::int64_t count) const;
  // IoError unless the text is one of these.
  void only(const std::string& key, const std::vector<std::string>& known) const;
};

}  // namespace nestgrad
