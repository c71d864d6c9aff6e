#include "cuda_emulator/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "cuda_emulator/poison.h"
#include "cuda_emulator/sanitizers.h"

namespace nestgrad::emulator {

namespace {

constexpr std::size_t kArena = rounded_up(kMostSharedBytes + kMargin, kPage);

unsigned char* map_open(void* at, std::size_t bytes, int flags) {
  return static_cast<unsigned char*>(
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
}

}  // namespace

SharedMemory::SharedMemory() : arena_end_(map_open(nullptr, kArena + kPage, 0) + kArena) {
  mprotect(arena_end_, kPage, PROT_NONE);
}

unsigned char* SharedMemory::prepare(std::size_t bytes) {
  bytes_ = bytes;
  begin_ = arena_end_ - rounded_up(bytes, kAlignment);
  if (finds_races()) {  // what blocks before this one did here is forgotten with the pages
    const std::size_t pages = rounded_up(rounded_up(bytes, kAlignment) + kMargin, kPage);
    map_open(arena_end_ - pages, pages, MAP_FIXED);
  }
  std::fill(begin_ - kMargin, arena_end_, kPoison);
  return begin_;
}

bool SharedMemory::damaged() const {
  return !is_poison(begin_ - kMargin, begin_) || !is_poison(begin_ + bytes_, arena_end_);
}

std::optional<std::ptrdiff_t> SharedMemory::beyond(const void* address) const {
  const auto* at = static_cast<const unsigned char*>(address);
  if (at < arena_end_ || at >= arena_end_ + kPage) return std::nullopt;
  return at - (begin_ + bytes_);
}

}  // namespace nestgrad::emulator
