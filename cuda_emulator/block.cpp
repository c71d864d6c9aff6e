#include "cuda_emulator/block.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace nestgrad::emulator {

Block& block = *new Block;
Here here;

namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? text.get() : name;
}

}  // namespace

std::string describe(const Launch& launch) {
  Dl_info symbol{};
  std::string name = demangled(launch.type->name());
  if (dladdr(launch.kernel, &symbol) != 0 && symbol.dli_sname != nullptr) name = demangled(symbol.dli_sname);
  return fmt::format("{} on grid {}, block {}, {} bytes shared", name, text_of(launch.grid),
                     text_of(launch.block), launch.shared_bytes);
}

std::string text_of(const uint3& v) { return fmt::format("({},{},{})", v.x, v.y, v.z); }

std::string text_of(const Where& where) {
  const std::string_view path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), where.line());
}

std::string place_of(const Thread& thread) {
  return fmt::format("[{}] block {}, thread {}", describe(*block.launch), text_of(here.block),
                     text_of(thread.index));
}

std::string standstill() {
  struct Group {
    std::string doing;
    std::string first;
    int threads;
  };
  std::vector<Group> groups;
  for (const Thread& thread : block.threads) {
    std::string doing = "done";
    if (thread.state == State::waiting && thread.mask == 0)
      doing = fmt::format("at {} ({})", thread.call, text_of(thread.where));
    else if (thread.state == State::waiting)
      doing = fmt::format("at {} ({}) for lanes {:#010x}", thread.call, text_of(thread.where), thread.mask);
    const auto known = std::ranges::find(groups, doing, &Group::doing);
    if (known == groups.end()) groups.push_back({doing, text_of(thread.index), 1});
    else ++known->threads;
  }
  std::string text =
      fmt::format("[{}] block {}: threads wait for each other in different places:", describe(*block.launch),
                  text_of(here.block));
  for (const Group& group : groups)
    text += fmt::format("\n  {} thread(s) {}, the first is {}", group.threads, group.doing, group.first);
  return text;
}

}  // namespace nestgrad::emulator
