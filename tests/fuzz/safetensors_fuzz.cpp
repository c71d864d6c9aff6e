// Feeds arbitrary bytes to the readers of files. Promise: a result or an IoError of one line, nothing else;
// and what the safetensors reader accepts can be written and read again, bit by bit.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "engine/io/idx.h"
#include "engine/io/npy.h"
#include "engine/io/png.h"
#include "engine/io/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Read>
void attempt(Read read) {
  try {
    read();
  } catch (const nestgrad::IoError& error) {
    require(std::string(error.what()).find('\n') == std::string::npos);
  }
}

void check_round_trip(const nestgrad::SafeTensors& contents) {
  const std::string bytes = nestgrad::format_safetensors(contents);
  const auto back = nestgrad::parse_safetensors(std::as_bytes(std::span(bytes)), "what was written");
  require(back.metadata == contents.metadata && back.tensors.size() == contents.tensors.size());
  for (const auto& [name, array] : contents.tensors) require(back.tensors.at(name).same_bits(array));
  require(nestgrad::format_safetensors(back) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  nestgrad::SafeTensors contents;
  bool accepted = false;
  attempt([&] {
    contents = nestgrad::parse_safetensors(bytes, "input");
    accepted = true;
  });
  if (accepted) check_round_trip(contents);  // an IoError here is a fault
  attempt([&] { nestgrad::parse_npy(bytes, "input"); });
  attempt([&] { nestgrad::parse_png(bytes, "input"); });
  attempt([&] { nestgrad::parse_idx(bytes, "input"); });

  // The same bytes as a header of the right length, so that the fuzzer need not guess it.
  std::string framed(8, '\0');
  for (int i = 0; i < 8; ++i) framed[static_cast<std::size_t>(i)] = static_cast<char>(size >> (8 * i));
  framed.append(reinterpret_cast<const char*>(data), size);
  attempt([&] { nestgrad::parse_safetensors(std::as_bytes(std::span(framed)), "framed"); });
  return 0;
}
