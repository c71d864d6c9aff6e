// What the tests of files share.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/array.h"
#include "tests/temporary_folder.h"

namespace nestgrad::testing {

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

template <class... Numbers>
std::string raw(Numbers... numbers) {
  std::string out;
  (out.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return out;
}

// The message of the IoError that `action` must throw: one line that names the file and what to do.
inline std::string refusal(const std::function<void()>& action, const std::string& file = "the-file") {
  try {
    action();
  } catch (const IoError& error) {
    const std::string message = error.what();
    CHECK(message.find('\n') == message.npos);
    CHECK_MESSAGE(message.find(file) != message.npos, message);
    CHECK_MESSAGE(message.find_first_of(";?") != message.npos, message);
    return message;
  }
  FAIL_CHECK("nothing was thrown");
  return "";
}

// A file that must be refused, and what the error must say.
struct Damage {
  std::string bytes, words;
};

inline void check_contains(const std::string& message, const std::string& words) {
  CHECK_MESSAGE(message.find(words) != message.npos, fmt::format("'{}' is not in '{}'", words, message));
}

template <class T, class Bits>
Array array_of_bits(const std::vector<Bits>& bits) {
  Array out(dtype_of<T>(), {static_cast<std::int64_t>(bits.size())});
  std::memcpy(out.data(), bits.data(), out.bytes());
  return out;
}

// Signed zeros, denormals, infinities, quiet and signalling NaNs with payloads.
inline Array odd_f32() {
  return array_of_bits<float>(std::vector<std::uint32_t>{0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000,
                                                         0x7fc12345, 0x7f812345, 0xffabcdef, 0x3f800001});
}
inline Array odd_f64() {
  return array_of_bits<double>(std::vector<std::uint64_t>{0x8000000000000000, 1, 0x800fffffffffffff,
                                                          0x7ff0000000000000, 0x7ff8123456789abc,
                                                          0x7ff0123456789abc, 0xfff7fedcba987654});
}

}  // namespace nestgrad::testing
