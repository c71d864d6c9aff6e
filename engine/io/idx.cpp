#include "engine/io/idx.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/core/index.h"
#include "engine/io/file.h"

namespace nestgrad {

namespace {

constexpr std::size_t kStart = 4;  // bytes before the extents
constexpr std::size_t kMostAxes = 8;
constexpr std::size_t kMostNumbers = std::size_t{1} << 31;
constexpr std::size_t kStep = std::size_t{1} << 16;  // bytes that are unpacked at once
constexpr std::array<std::pair<unsigned, std::string_view>, 6> kTypes{{{8, "unsigned bytes"},
                                                                       {9, "signed bytes"},
                                                                       {11, "16-bit integers"},
                                                                       {12, "32-bit integers"},
                                                                       {13, "32-bit floats"},
                                                                       {14, "64-bit floats"}}};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what) : bytes_(bytes), what_(what) {}
  ~Reader() {
    if (is_packed_) inflateEnd(&stream_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Array read() {
    begin();
    require(kStart, "a header");
    const auto byte = [this](std::size_t i) { return static_cast<unsigned char>(text()[i]); };
    if (byte(0) != 0 || byte(1) != 0) fail("the file does not begin with two zeros; is this an idx file?");
    check_type(byte(2));
    const std::size_t axes = byte(3);
    if (axes < 1 || axes > kMostAxes)
      fail("it says that it has {} axes, not 1 to {}; is this an idx file?", axes, kMostAxes);
    const std::size_t data = kStart + 4 * axes;
    require(data, "a header");

    Shape shape;
    std::size_t count = 1, most = 1;  // most: with 0 as 1
    for (std::size_t at = kStart; at < data; at += 4) {
      const std::uint32_t extent = static_cast<std::uint32_t>(byte(at)) << 24 |
                                   static_cast<std::uint32_t>(byte(at + 1)) << 16 |
                                   static_cast<std::uint32_t>(byte(at + 2)) << 8 | byte(at + 3);
      shape.push_back(extent);
      count *= extent;
      if (__builtin_mul_overflow(most, std::max<std::size_t>(extent, 1), &most) || most > kMostNumbers)
        fail("it declares more than the {} numbers that are read; the file is damaged, copy it again",
             kMostNumbers);
    }
    require(data + count, to_string(shape));
    end(data + count, shape);

    Array out(DType::i32, shape);
    const std::string_view numbers = text().substr(data, count);
    std::ranges::transform(numbers, out.as<std::int32_t>().begin(),
                           [](char c) { return static_cast<unsigned char>(c); });
    return out;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
    throw IoError(
        fmt::format("[idx] {}: {}", printable(what_), fmt::format(problem, std::forward<Args>(args)...)));
  }

  void begin() {
    if (bytes_.size() < 2 || bytes_[0] != std::byte{0x1f} || bytes_[1] != std::byte{0x8b}) return;
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) fail("zlib has no memory; close other programs");
    is_packed_ = true;
  }

  std::string_view text() const {
    if (is_packed_) return unpacked_;
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

  // As many bytes from the beginning are in text().
  void require(std::size_t size, const std::string& for_what) {
    while (is_packed_ && !is_at_end_ && unpacked_.size() < size) unpack();
    if (text().size() < size)
      fail("the file is truncated: {} takes {} bytes, there are {}; copy it again", for_what, size,
           text().size());
  }

  // Nothing is behind them, and the checksum is right.
  void end(std::size_t size, const Shape& shape) {
    while (is_packed_ && !is_at_end_ && unpacked_.size() <= size) unpack();
    if (text().size() > size)
      fail("{} takes {} bytes, there are more; the file is damaged, copy it again", to_string(shape), size);
    if (is_packed_ && at_ != bytes_.size())
      fail("{} bytes follow what gzip has packed; the file is damaged, copy it again", bytes_.size() - at_);
  }

  void unpack() {
    const std::size_t before = unpacked_.size(), given = std::min(bytes_.size() - at_, kStep);
    unpacked_.resize(before + kStep);
    stream_.next_in =
        reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes_.data() + at_));  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(unpacked_.data() + before);
    stream_.avail_out = static_cast<uInt>(kStep);
    const int state = inflate(&stream_, Z_NO_FLUSH);
    at_ += given - stream_.avail_in;
    unpacked_.resize(before + kStep - stream_.avail_out);
    is_at_end_ = state == Z_STREAM_END;
    if (is_at_end_) return;
    if (state == Z_BUF_ERROR || (state == Z_OK && at_ == bytes_.size() && stream_.avail_out != 0))
      fail("the file is truncated: what gzip has packed has no end in its {} bytes; copy it again",
           bytes_.size());
    if (state != Z_OK)
      fail("the file is damaged near byte {}: {}; copy it again", at_,
           stream_.msg != nullptr ? printable(stream_.msg) : "no gzip data");
  }

  void check_type(unsigned type) const {
    if (type == kTypes[0].first) return;
    const auto known = std::ranges::find(kTypes, type, [](const auto& t) { return t.first; });
    if (known == kTypes.end())
      fail("the type of its numbers, {}, is none that there is; is this an idx file?", type);
    fail("its numbers are {}; only unsigned bytes are read: save it as such", known->second);
  }

  std::span<const std::byte> bytes_;
  const std::string& what_;
  bool is_packed_ = false, is_at_end_ = false;  // by gzip
  z_stream stream_{};
  std::size_t at_ = 0;  // in bytes_, of what is packed
  std::string unpacked_;
};

}  // namespace

Array parse_idx(std::span<const std::byte> bytes, const std::string& what) {
  return Reader(bytes, what).read();
}

Array read_idx(const std::string& path) {
  const std::string bytes = read_file(path);
  return parse_idx(std::as_bytes(std::span(bytes)), path);
}

}  // namespace nestgrad
