// Everything of the project that reads files or command lines, for a campaign.
#pragma once

#include <sys/resource.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace nestgrad::fuzz {

constexpr rlim_t kProgramMemory = rlim_t{3} << 30;  // of addresses, for a whole program

// What is wrong with a reader.
struct Failure {
  std::string text;
};
inline void require(bool condition, const std::string& text) {
  if (!condition) throw Failure{text};
}

// The header of a safetensors file, and what stands around it.
struct Framed {
  std::string header, data;
  explicit Framed(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = bytes.substr(8, length), data = bytes.substr(8 + length);
  }
  std::string str() const {
    std::string out(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(out.data(), &length, 8);
    return out + header + data;
  }
};

struct Reader {
  std::string name;
  std::vector<std::string> good;  // what it reads, undamaged
  bool framed;                    // mostly the header of a safetensors file is damaged
  std::function<void(const std::string& bytes)> read;
  int share = 1;  // of the cases; what is quick has more
};

// All readers; `data`: the folder of the tests, `bin`: that of the programs, `folder`: for their files.
std::vector<Reader> all_readers(const std::string& data, const std::string& bin, const std::string& folder);

}  // namespace nestgrad::fuzz
