#include "engine/io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/io/file.h"
#include "engine/io/packed_numbers.h"

namespace nestgrad {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionEnd = 8;           // magic and version
constexpr std::size_t kHeaderLimit = 1'000'000;  // a header holds one shape; NumPy itself stops at 10,000
constexpr std::size_t kRankLimit = 64;           // as in NumPy 2
constexpr std::size_t kAlignment = 64;

struct Format {
  std::string_view descr;
  std::size_t width;  // bytes of one element in the file
  DType becomes;
};
constexpr std::array<Format, 4> kFormats{
    {{"<f8", 8, DType::f64}, {"<f4", 4, DType::f32}, {"<i4", 4, DType::i32}, {"<i8", 8, DType::i32}}};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  Array read() {
    find_header();
    read_dictionary();
    if (!descr_ || !fortran_order_ || !shape_)
      fail("the header lacks descr, fortran_order or shape; save the array again");
    const auto format = std::ranges::find(kFormats, *descr_, &Format::descr);
    if (format == kFormats.end())
      fail("dtype '{}' cannot be read; save it as one of <f8, <f4, <i4, <i8 (little-endian)",
           printable(*descr_, 40));
    if (*fortran_order_) fail("the array is in Fortran order; save numpy.ascontiguousarray(array)");
    return read_numbers(*format);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
    const std::string text = fmt::format(problem, std::forward<Args>(args)...);
    throw IoError(fmt::format("[npy] {}: {}", printable(what_), text));
  }

  // Sets header_ and data_.
  void find_header() {
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    if (!text.starts_with(kMagic)) fail("the file does not begin with \\x93NUMPY; is this a .npy file?");
    if (text.size() < kVersionEnd)
      fail("the file is truncated: it ends at byte {}; copy it again", text.size());
    const unsigned major = static_cast<unsigned char>(text[6]), minor = static_cast<unsigned char>(text[7]);
    if (major < 1 || major > 2 || minor != 0)
      fail("version {}.{} of the format cannot be read; save the array as version 1.0", major, minor);
    const std::size_t length_bytes = major == 1 ? 2 : 4;
    if (text.size() < kVersionEnd + length_bytes)
      fail("the file is truncated: it ends at byte {}; copy it again", text.size());
    std::uint32_t length = 0;
    std::memcpy(&length, text.data() + kVersionEnd, length_bytes);
    if (length > kHeaderLimit)
      fail("byte 8 asks for a header of {} bytes, the limit is {}; copy it again", length, kHeaderLimit);
    header_start_ = kVersionEnd + length_bytes;
    if (length > text.size() - header_start_)
      fail("the file is truncated: byte 8 asks for a header of {} bytes, file has {} after it; copy it again",
           length, text.size() - header_start_);
    header_ = text.substr(header_start_, length);
    data_ = bytes_.subspan(header_start_ + length);
  }

  // The dictionary literal, of which three keys and their kinds of value are known.
  void read_dictionary() {
    expect('{');
    while (!accept('}')) {
      const std::string key = text();
      expect(':');
      if (key == "descr") set(descr_, key, [&] { return text(); });
      else if (key == "fortran_order") set(fortran_order_, key, [&] { return boolean(); });
      else if (key == "shape") set(shape_, key, [&] { return tuple(); });
      else fail("the header has an unknown key '{}'; save the array again", printable(key, 40));
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != header_.size()) fail_here("text after the dictionary");
  }

  template <class T, class Read>
  void set(std::optional<T>& field, const std::string& key, Read read) {
    if (field) fail("the header has two entries named '{}'; save the array again", key);
    field = read();
  }

  // The parts of a Python literal. Each skips white space first.
  void skip_space() { at_ = std::min(header_.find_first_not_of(" \t\r\n", at_), header_.size()); }
  bool accept(char c) {
    skip_space();
    if (at_ == header_.size() || header_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail_here(fmt::format("'{}' is missing", c));
  }
  [[noreturn]] void fail_here(const std::string& problem) const {
    fail("the header is malformed at byte {}: {}; save the array again", header_start_ + at_, problem);
  }

  std::string text() {
    const char quote = accept('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const std::size_t end = header_.find(quote, at_);
    if (end == header_.npos) fail_here("a text does not end");
    std::string out(header_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (header_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    fail_here("True or False is missing");
  }
  Shape tuple() {
    Shape out;
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::int64_t extent = -1;
      const auto [end, error] =
          std::from_chars(header_.data() + at_, header_.data() + header_.size(), extent);
      if (error != std::errc() || extent < 0) fail_here("an extent must be an integer from 0 to 2^63-1");
      at_ = static_cast<std::size_t>(end - header_.data());
      accept('L');  // Python 2 wrote long integers as 3L
      out.push_back(extent);
      if (out.size() > kRankLimit) fail_here(fmt::format("more than {} axes", kRankLimit));
      if (!accept(',')) {
        if (out.size() == 1) fail_here("a tuple of one needs a comma");
        expect(')');
        break;
      }
    }
    return out;
  }

  Array read_numbers(const Format& format) const {
    if (!is_any_array(*shape_))
      fail("an array of shape {} is larger than any memory; the file is damaged, copy it again",
           to_string(*shape_));
    const std::size_t need = static_cast<std::size_t>(numel(*shape_)) * format.width;
    if (data_.size() < need)
      fail("the file is truncated: {} {} takes {} data bytes, file has {}; copy it again", format.descr,
           to_string(*shape_), need, data_.size());
    if (data_.size() > need)
      fail(
          "{} {} takes {} data bytes, file has {}; it holds more "
          "than one array, or is damaged: save the array again",
          format.descr, to_string(*shape_), need, data_.size());

    Array out(format.becomes, *shape_);
    if (format.descr == "<i8") {
      if (const auto bad = narrow_to_i32(data_.data(), out.as<std::int32_t>())) {
        std::int64_t value;
        std::memcpy(&value, data_.data() + 8 * *bad, 8);
        fail("the i8 value {} at index {} is outside of i32; store smaller integers, or f8", value, *bad);
      }
    } else if (need != 0) {
      std::memcpy(out.data(), data_.data(), need);
    }
    return out;
  }

  std::span<const std::byte> bytes_, data_;
  const std::string& what_;
  std::string_view header_;
  std::size_t header_start_ = 0, at_ = 0;  // in the file; in header_
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<Shape> shape_;
};

}  // namespace

Array parse_npy(std::span<const std::byte> bytes, const std::string& what) {
  return Reader(bytes, what).read();
}

Array read_npy(const std::string& path) {
  const std::string bytes = read_file(path);
  return parse_npy(std::as_bytes(std::span(bytes)), path);
}

void write_npy(const std::string& path, const Array& array) {
  if (!array.defined())
    throw IoError(
        fmt::format("[npy] {}: the array holds no numbers; compute it before writing", printable(path)));
  if (array.shape().size() > kRankLimit)
    throw IoError(fmt::format("[npy] {}: {} has more axes than a .npy file can have; reshape it",
                              printable(path), to_string(array.spec())));
  const auto format = std::ranges::find(kFormats, array.dtype(), &Format::becomes);
  std::string shape;
  for (const std::int64_t extent : array.shape()) shape += fmt::format("{}, ", extent);
  if (array.shape().size() > 1) shape.resize(shape.size() - 2);  // (2, 3)
  else if (array.shape().size() == 1) shape.pop_back();          // (2,)

  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", format->descr, shape);
  constexpr std::size_t kStart = kVersionEnd + 2;
  const std::size_t length = (kStart + header.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kStart;
  header.resize(length - 1, ' ');
  header += '\n';

  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(length & 255), static_cast<char>(length >> 8)};
  const Array here = array.to(Device::cpu());
  AtomicFile file(path);
  file.write(start + header);
  file.write(std::span<const std::byte>(here.data(), here.bytes()));
  file.commit();
}

}  // namespace nestgrad
