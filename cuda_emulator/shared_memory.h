// The shared memory of the block that runs.
#pragma once

#include <cstddef>
#include <optional>

namespace nestgrad::emulator {

constexpr std::size_t kMostSharedBytes = 227 * 1024, kSharedBytesWithoutConsent = 48 * 1024;

// One arena for all blocks. A block's part ends where a closed page begins, but for the bytes that round it
// up to 16; these and some before it are checked.
class SharedMemory {
 public:
  SharedMemory();
  // Poisons everything that a block with so many bytes can reach. Returns where its part begins.
  unsigned char* prepare(std::size_t bytes);
  // Whether bytes around the block's part were overwritten.
  bool damaged() const;
  // Bytes from the end of the block's part to this address, if it is in the closed page.
  std::optional<std::ptrdiff_t> beyond(const void* address) const;

 private:
  unsigned char *arena_end_, *begin_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace nestgrad::emulator
