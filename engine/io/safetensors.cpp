// The reader. The writer is safetensors_write.cpp.
#include "engine/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/file.h"

namespace nestgrad {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;              // the header's length
constexpr std::uint64_t kHeaderLimit = 100'000'000;  // as in the reference implementation
constexpr std::size_t kRankLimit = 32;
constexpr int kDepthLimit = 3;  // header, tensor, shape

// How a dtype of the file is stored, and what it becomes here.
struct Format {
  std::string_view name;
  std::size_t width;  // bytes of one element in the file
  DType becomes;
};
constexpr std::array<Format, 6> kFormats{{{"F64", 8, DType::f64},
                                          {"F32", 4, DType::f32},
                                          {"I32", 4, DType::i32},
                                          {"I64", 8, DType::i32},
                                          {"F16", 2, DType::f32},
                                          {"BF16", 2, DType::f32}}};

// One tensor of the header, checked by itself.
struct Entry {
  std::string name;
  const Format* format = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in bytes from the start of the data
};

// IEEE binary16 to binary32: every value has an exact counterpart; NaN payloads are kept.
std::uint32_t widen_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31;
  const std::uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 31) return sign | 0x7f800000u | fraction << 13;            // infinity, NaN
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;  // bias 15 becomes 127
  // Zero or denormal: fraction * 2^-24, which binary32 represents as a normal number.
  return sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
}

// bfloat16 is the upper half of binary32.
std::uint32_t widen_bf16(std::uint16_t upper) { return std::uint32_t{upper} << 16; }

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  SafeTensors read() {
    const json header = read_header();
    SafeTensors out;
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items())
      if (name == kMetadata) out.metadata = read_metadata(value);
      else entries.push_back(read_entry(name, value));
    check_layout(entries);
    for (const Entry& entry : entries) out.tensors.emplace(entry.name, read_numbers(entry));
    return out;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
    const std::string text = fmt::format(problem, std::forward<Args>(args)...);
    throw IoError(fmt::format("[safetensors] {}: {}", printable(what_), text));
  }
  template <class... Args>
  [[noreturn]] void fail_in(const std::string& tensor, fmt::format_string<Args...> problem,
                            Args&&... args) const {
    fail("tensor '{}' {}", printable(tensor), fmt::format(problem, std::forward<Args>(args)...));
  }

  // The JSON header, well formed, without duplicate keys. Sets data_.
  json read_header() {
    if (bytes_.size() < kLengthBytes)
      fail("the file is truncated: it has {} bytes, the length of a header alone takes {}; copy it again",
           bytes_.size(), kLengthBytes);
    std::uint64_t length;
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    const std::size_t rest = bytes_.size() - kLengthBytes;
    if (length > kHeaderLimit)
      fail("bytes 0 to 7 ask for a header of {} bytes, the limit is {}; is this a safetensors file?", length,
           kHeaderLimit);
    if (length > rest)
      fail(
          "the file is truncated: bytes 0 to 7 ask for a header "
          "of {} bytes, file has {} after them; copy it again",
          length, rest);
    data_ = bytes_.subspan(kLengthBytes + length);

    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes, length);
    // The parser below takes a zero byte for the end of the text and would ignore what follows.
    if (const auto zero = text.find('\0'); zero != text.npos)
      fail("zero byte in the header, at byte {}; the file is damaged, copy it again", kLengthBytes + zero);
    if (text.empty() || text[0] != '{')
      fail("the header, at byte {}, does not begin with '{{'; is this a safetensors file?", kLengthBytes);

    // Keys seen so far in the open object of each depth.
    std::array<std::set<std::string>, kDepthLimit + 1> keys;
    const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
      const auto level = static_cast<std::size_t>(depth);
      if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
        if (depth >= kDepthLimit)
          fail("the header nests deeper than {} levels; is this a safetensors file?", kDepthLimit);
        keys[level + 1].clear();
      } else if (event == json::parse_event_t::key && !keys[level].insert(parsed.get<std::string>()).second) {
        fail("the header has two entries named '{}'; write the file again with unique names",
             printable(parsed.get<std::string>()));
      }
      return true;
    };
    try {
      return json::parse(text.begin(), text.end(), watch);
    } catch (const json::parse_error& error) {
      fail("the header is not valid JSON (at byte {}); the file is damaged, copy it again",
           kLengthBytes + std::max<std::size_t>(error.byte, 1) - 1);
    } catch (const json::exception&) {
      fail("the header holds a number that cannot be represented; the file is damaged, copy it again");
    }
  }

  std::map<std::string, std::string> read_metadata(const json& value) const {
    std::map<std::string, std::string> out;
    if (!value.is_object()) fail("__metadata__ is not an object; it must map text to text");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        fail("__metadata__ entry '{}' is not text; store it as a string", printable(key));
      out.emplace(key, text.get<std::string>());
    }
    return out;
  }

  // A list of integers from 0 to 2^63-1.
  Shape read_integers(const std::string& tensor, const json& value, std::string_view field) const {
    const auto good = [](const json& v) {
      return v.is_number_unsigned() && std::in_range<std::int64_t>(v.get<std::uint64_t>());
    };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), good))
      fail_in(tensor, "has a {} that is not a list of non-negative integers; write the file again", field);
    return value.get<Shape>();
  }

  Entry read_entry(const std::string& tensor, const json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets"))
      fail_in(tensor, "is not described by exactly dtype, shape and data_offsets; write the file again");
    Entry entry;
    entry.name = tensor;

    if (!value["dtype"].is_string()) fail_in(tensor, "has a dtype that is not text; write the file again");
    const auto& dtype = value["dtype"].get_ref<const std::string&>();
    const auto format = std::ranges::find(kFormats, dtype, &Format::name);
    if (format == kFormats.end())
      fail_in(tensor,
              "has dtype '{}', which cannot be read; convert it to one of F64, F32, I32, I64, F16, BF16",
              printable(dtype, 20));
    entry.format = &*format;

    entry.shape = read_integers(tensor, value["shape"], "shape");
    if (entry.shape.size() > kRankLimit)
      fail_in(tensor, "has {} axes, the limit is {}; store it in another shape", entry.shape.size(),
              kRankLimit);
    // Counted with 0 as 1, so that no product of extents, in whatever order, overflows later.
    std::int64_t most = 8;
    for (const std::int64_t extent : entry.shape)
      if (__builtin_mul_overflow(most, std::max<std::int64_t>(extent, 1), &most))
        fail_in(tensor, "has shape {}, whose size overflows; the file is damaged, copy it again",
                to_string(entry.shape));

    const Shape offsets = read_integers(tensor, value["data_offsets"], "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail_in(tensor, "has data_offsets that are not [begin, end] with begin <= end; write the file again");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    const std::uint64_t need = static_cast<std::uint64_t>(numel(entry.shape)) * entry.format->width;
    if (entry.end - entry.begin != need)
      fail_in(tensor, "has data_offsets {} for {} bytes, {} {} takes {}; the file is damaged, copy it again",
              to_string(offsets), entry.end - entry.begin, dtype, to_string(entry.shape), need);
    return entry;
  }

  // Sorts the entries by place and requires that they cover the data once, without holes.
  void check_layout(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
    std::uint64_t covered = 0;
    std::string before = "";
    for (const Entry& entry : entries) {
      if (entry.begin < covered)
        fail_in(entry.name,
                "begins at data byte {} and overlaps '{}', which ends at {}; write the file again",
                entry.begin, printable(before), covered);
      if (entry.begin > covered)
        fail_in(entry.name,
                "begins at data byte {} after a hole from byte {}; write the file again without holes",
                entry.begin, covered);
      covered = entry.end;
      before = entry.name;
    }
    if (covered > data_.size())
      fail("the file is truncated: header says {} data bytes, file has {}; copy it again", covered,
           data_.size());
    if (covered < data_.size())
      fail("header says {} data bytes, file has {}, the rest belongs to no tensor; copy it again", covered,
           data_.size());
  }

  Array read_numbers(const Entry& entry) const {
    Array out(entry.format->becomes, entry.shape);
    const std::byte* from = data_.data() + entry.begin;
    if (entry.format->name == "I64") {
      if (const auto bad = narrow_to_i32(from, out.as<std::int32_t>())) {
        std::int64_t value;
        std::memcpy(&value, from + 8 * *bad, 8);
        fail_in(entry.name,
                "has the I64 value {} at index {}, outside of i32; store smaller integers, or F64", value,
                *bad);
      }
    } else if (entry.format->width == 2) {
      const auto widen = entry.format->name == "F16" ? widen_f16 : widen_bf16;
      for (std::size_t i = 0; i < static_cast<std::size_t>(out.size()); ++i) {
        std::uint16_t narrow;
        std::memcpy(&narrow, from + 2 * i, 2);
        const std::uint32_t wide = widen(narrow);
        std::memcpy(out.data() + 4 * i, &wide, 4);  // as bits: a signalling NaN survives
      }
    } else if (out.bytes() != 0) {
      std::memcpy(out.data(), from, out.bytes());
    }
    return out;
  }

  std::span<const std::byte> bytes_, data_;
  const std::string& what_;
};

}  // namespace

SafeTensors parse_safetensors(std::span<const std::byte> bytes, const std::string& what) {
  return Reader(bytes, what).read();
}

SafeTensors read_safetensors(const std::string& path) {
  const std::string bytes = read_file(path);
  return parse_safetensors(std::as_bytes(std::span(bytes)), path);
}

}  // namespace nestgrad
