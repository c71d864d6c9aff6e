#include "engine/core/thread_memory.h"

#include <fmt/format.h>

#include <new>

#include "engine/core/error.h"

namespace nestgrad {

constinit thread_local std::byte* memory_of_products = nullptr;
constinit thread_local std::byte* memory_of_clusters = nullptr;

namespace {

constexpr std::align_val_t kAlignment{64};

// Frees what its thread has. A thread that works on after that, as the first one may while the program ends, makes new blocks, which then
// end with the program.
struct Freed {
  bool is_wanted = false;
  ~Freed() {
    for (std::byte** memory : {&memory_of_products, &memory_of_clusters}) {
      ::operator delete(*memory, kAlignment);
      *memory = nullptr;
    }
  }
};
thread_local Freed freed;

}  // namespace

std::byte* make_thread_memory(std::byte*& memory, std::size_t bytes, const char* what) {
  memory = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
  if (!memory)
    throw DeviceError(fmt::format(
        "[threads] out of memory: the system has no {} KiB that a thread needs for {}. Use smaller shapes or batches, "
        "fewer threads, or give the plan a memory budget",
        bytes >> 10, what));
  freed.is_wanted = true;  // makes it
  return memory;
}

}  // namespace nestgrad
