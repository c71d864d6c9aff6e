// The reader. The writer is safetensors_write.cpp.
#include "engine/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/json_check.h"
#include "engine/io/packed_numbers.h"

namespace nestgrad {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;              // the header's length
constexpr std::uint64_t kHeaderLimit = 100'000'000;  // as in the reference implementation
constexpr std::size_t kRankLimit = 32;
constexpr int kDepthLimit = 3;  // header, tensor, shape

// One tensor of the header, checked by itself.
struct Entry {
  std::string name;
  const NumberFormat* format = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in bytes from the start of the data
};

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
    for (const Entry& entry : entries) {
      out.tensors.emplace(entry.name, read_numbers(entry));
      out.types.emplace(entry.name, entry.format->safetensors);
    }
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

    try {
      JsonCheck check(kDepthLimit);
      if (!json::sax_parse(text.begin(), text.end(), &check)) {
        if (check.too_deep)
          fail("the header nests deeper than {} levels; is this a safetensors file?", kDepthLimit);
        if (check.twice)
          fail("the header has two entries named '{}'; write the file again with unique names",
               printable(*check.twice));
      }
      return json::parse(text.begin(), text.end());
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
    entry.format = format_of_safetensors(dtype);
    if (entry.format == nullptr)
      fail_in(tensor,
              "has dtype '{}', which cannot be read; convert it to one of F64, F32, I32, I64, F16, BF16",
              printable(dtype, 20));

    entry.shape = read_integers(tensor, value["shape"], "shape");
    if (entry.shape.size() > kRankLimit)
      fail_in(tensor, "has {} axes, the limit is {}; store it in another shape", entry.shape.size(),
              kRankLimit);
    const std::optional<std::int64_t> bytes = packed_bytes(*entry.format, entry.shape);
    if (!bytes)
      fail_in(tensor, "has shape {}, which is larger than any memory; the file is damaged, copy it again",
              to_string(entry.shape));

    const Shape offsets = read_integers(tensor, value["data_offsets"], "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail_in(tensor, "has data_offsets that are not [begin, end] with begin <= end; write the file again");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    const auto need = static_cast<std::uint64_t>(*bytes);
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
    if (const auto bad = unpack_numbers(*entry.format, from, out)) {
      std::int64_t value;
      std::memcpy(&value, from + 8 * *bad, 8);
      fail_in(entry.name, "has the I64 value {} at index {}, outside of i32; store smaller integers, or F64",
              value, *bad);
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
