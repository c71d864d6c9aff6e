#include "cuda_emulator/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <iterator>

#include "cuda_emulator/poison.h"

namespace nestgrad::emulator {

namespace {

constexpr std::size_t kRegion = std::size_t{512} << 30;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// What is not allocated is a mapping of an empty file: accesses fail even where the protection allows them.
// So one call opens all allocations and leaves closed what is between them.
int empty_file() {
  static const int file = memfd_create("nothing", MFD_CLOEXEC);
  return file;
}

}  // namespace

DeviceMemory::Address DeviceMemory::first_page(Address begin) const {
  return base_ + std::size_t(begin - base_) / kPage * kPage;
}

void* DeviceMemory::allocate(std::size_t bytes) {
  if (base_ == nullptr) {
    void* region = mmap(nullptr, kRegion, PROT_NONE, MAP_SHARED | MAP_NORESERVE, empty_file(), 0);
    if (region == MAP_FAILED) return nullptr;
    base_ = static_cast<Address>(region);
    next_ = base_ + kPage;
  }
  const std::size_t pages = rounded_up(rounded_up(bytes, kAlignment) + kMargin, kPage);
  // Large ones begin where a huge page can: few pages are soon opened and closed.
  const std::size_t skipped = pages < kHugePage ? 0 : -reinterpret_cast<std::uintptr_t>(next_) % kHugePage;
  if (bytes > kRegion || skipped + pages + kPage > std::size_t(base_ + kRegion - next_)) return nullptr;
  next_ += skipped;
  void* mapped = mmap(next_, pages, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(next_, pages, MADV_HUGEPAGE);
  std::memset(next_, kPoison, pages);
  mprotect(next_, pages, open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  const Address begin = next_ + pages - rounded_up(bytes, kAlignment);
  next_ += pages + kPage;
  allocations_.emplace(begin, bytes);
  allocated_ += bytes;
  return begin;
}

bool DeviceMemory::release(const void* pointer) {
  const auto found = at_or_before(pointer);
  if (found == allocations_.end() || found->first != pointer) return false;
  const auto [begin, bytes] = *found;
  const Address first = first_page(begin - kMargin), end = begin + rounded_up(bytes, kAlignment);
  allocated_ -= bytes;
  allocations_.erase(found);
  // All of what a huge page would hold at once, where nothing else lies: else its page table would stay, and be
  // gone through each time that the memory is opened.
  const Address huge = first - reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  const Address huge_end = end + -reinterpret_cast<std::uintptr_t>(end) % kHugePage;
  const auto next = allocations_.lower_bound(begin);
  const bool is_alone = huge >= base_ && huge_end <= next_ &&
                        (next == allocations_.end() || first_page(next->first - kMargin) >= huge_end) &&
                        (next == allocations_.begin() ||
                         std::prev(next)->first + rounded_up(std::prev(next)->second, kAlignment) <= huge);
  const Address from = is_alone ? huge : first, to = is_alone ? huge_end : end;
  mmap(from, std::size_t(to - from), open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, empty_file(), from - base_);
  return true;
}

std::map<DeviceMemory::Address, std::size_t>::const_iterator DeviceMemory::at_or_before(
    const void* pointer) const {
  const auto after = allocations_.upper_bound(static_cast<Address>(const_cast<void*>(pointer)));
  return after == allocations_.begin() ? allocations_.end() : std::prev(after);
}

bool DeviceMemory::holds(const void* pointer, std::size_t bytes) const {
  const auto found = at_or_before(pointer);
  if (found == allocations_.end()) return false;
  const auto offset = std::size_t(static_cast<const unsigned char*>(pointer) - found->first);
  return offset <= found->second && bytes <= found->second - offset;
}

std::string DeviceMemory::describe(const void* pointer) const {
  const auto* at = static_cast<const unsigned char*>(pointer);
  if (base_ == nullptr || at < base_ || at >= base_ + kRegion) return {};
  const auto before = at_or_before(pointer);
  const auto after = allocations_.upper_bound(const_cast<Address>(at));
  std::string text = "device memory that is not allocated";
  if (before != allocations_.end())
    text += fmt::format(", {} bytes beyond the end of an allocation of {} bytes",
                        at - before->first - std::ptrdiff_t(before->second), before->second);
  if (after != allocations_.end())
    text += fmt::format(", {} bytes before an allocation of {} bytes", after->first - at, after->second);
  return text;
}

std::string DeviceMemory::damage() const {
  for (const auto& [begin, bytes] : allocations_) {
    if (!is_poison(begin - kMargin, begin))
      return fmt::format("bytes just before an allocation of {} bytes at {} were overwritten", bytes,
                         fmt::ptr(begin));
    if (!is_poison(begin + bytes, begin + rounded_up(bytes, kAlignment)))
      return fmt::format("bytes just beyond an allocation of {} bytes at {} were overwritten", bytes,
                         fmt::ptr(begin));
  }
  return {};
}

void DeviceMemory::protect(int protection) const {
  if (base_ != nullptr) mprotect(base_, std::size_t(next_ - base_), protection);
}

DeviceMemory::Open::Open(DeviceMemory& memory) : memory_(memory) {
  if (memory_.open_++ == 0) memory_.protect(PROT_READ | PROT_WRITE);
}
DeviceMemory::Open::~Open() {
  if (--memory_.open_ == 0) memory_.protect(PROT_NONE);
}

}  // namespace nestgrad::emulator
