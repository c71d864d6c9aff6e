#include "ops/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdlib>

#include "engine/core/error.h"

namespace nestgrad {

#if defined(__x86_64__)
namespace scalar {
extern const KernelTable table;
}
namespace v3 {
extern const KernelTable table;
}
#if NESTGRAD_AVX512
namespace v4 {
extern const KernelTable table;
}
#endif
#elif defined(__aarch64__)
namespace neon {
extern const KernelTable table;
}
#else
namespace scalar {
extern const KernelTable table;
}
#endif

namespace {

// Those that this processor runs, the slowest first. (What asks the processor must not be compiled for one
// that it may not be.)
std::vector<const KernelTable*> tables() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  std::vector<const KernelTable*> out{&scalar::table};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2"))
    return out;
  out.push_back(&v3::table);
#if NESTGRAD_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    out.push_back(&v4::table);
#endif
  return out;
#elif defined(__aarch64__)
  return {&neon::table};
#else
  return {&scalar::table};
#endif
}

const KernelTable& table_named(std::string_view name, std::string_view asked_by) {
  for (const KernelTable* t : tables())
    if (t->name == name) return *t;
  throw ConfigError(fmt::format("[kernels] {} is '{}'; this processor runs {}", asked_by, name,
                                fmt::join(instruction_sets(), ", ")));
}

const KernelTable* default_table() {
  const char* asked = std::getenv("NESTGRAD_ISA");
  return asked ? &table_named(asked, "NESTGRAD_ISA") : tables().back();
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table = default_table();
  return table;
}

}  // namespace

const KernelTable& kernels() { return *current().load(std::memory_order_relaxed); }

std::vector<std::string_view> instruction_sets() {
  std::vector<std::string_view> names;
  for (const KernelTable* t : tables()) names.emplace_back(t->name);
  return names;
}

std::string instruction_set() { return fmt::format("{} ({})", kernels().name, kernels().description); }

void set_instruction_set(std::string_view name) {
  current() = &table_named(name, "the instruction set asked for");
}

}  // namespace nestgrad
