#include "engine/io/flax_stream.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "engine/io/file.h"
#include "engine/io/packed_numbers.h"

namespace nestgrad {
namespace {

constexpr std::uint64_t kMostParts = 32;  // of a name, and axes of an array
constexpr int kArrayExtension = 1;        // flax: an ndarray

enum class Kind : std::uint8_t { integer, array, map, text, binary, extension, other };

// What a byte of msgpack begins: an integer `size`, an array of `size` items that follow, or `size` bytes.
struct Head {
  Kind kind;
  std::uint64_t size = 0;
  int type = 0;  // of an extension
};

// A place in the bytes of a file, and where they end. Nothing is copied, and nothing calls itself.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& what)
      : bytes_(bytes), end_(bytes.size()), what_(what) {}

  bool done() const { return at_ == end_; }
  std::size_t at() const { return at_; }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
    throw IoError(
        fmt::format("[msgpack] {}: {}", printable(what_), fmt::format(problem, std::forward<Args>(args)...)));
  }

  Head head() {
    const auto b = static_cast<unsigned>(number(1));
    const auto sized = [&](Kind kind, unsigned width) { return Head{kind, number(width)}; };
    const auto extension = [&](std::uint64_t size) {
      return Head{Kind::extension, size, static_cast<int>(number(1))};
    };
    if (b <= 0x7f) return {Kind::integer, b};
    if (b <= 0x8f) return {Kind::map, b & 15u};
    if (b <= 0x9f) return {Kind::array, b & 15u};
    if (b <= 0xbf) return {Kind::text, b & 31u};
    if (b >= 0xc4 && b <= 0xc6) return sized(Kind::binary, 1u << (b - 0xc4));
    if (b >= 0xc7 && b <= 0xc9) return extension(number(1u << (b - 0xc7)));
    if (b >= 0xcc && b <= 0xcf) return sized(Kind::integer, 1u << (b - 0xcc));
    if (b >= 0xd4 && b <= 0xd8) return extension(std::uint64_t{1} << (b - 0xd4));
    if (b >= 0xd9 && b <= 0xdb) return sized(Kind::text, 1u << (b - 0xd9));
    if (b == 0xdc || b == 0xdd) return sized(Kind::array, 2u << (b - 0xdc));
    if (b == 0xde || b == 0xdf) return sized(Kind::map, 2u << (b - 0xde));
    return {Kind::other};
  }

  // The next `size` bytes, as a place of their own.
  Cursor inside(std::uint64_t size) {
    if (size > end_ - at_)
      fail("the file is truncated: byte {} asks for {} bytes, {} follow; copy it again", at_, size,
           end_ - at_);
    Cursor out = *this;
    at_ += size;
    out.end_ = at_;
    return out;
  }

  std::span<const std::byte> rest() const { return bytes_.subspan(at_, end_ - at_); }
  std::string text() const { return {reinterpret_cast<const char*>(rest().data()), end_ - at_}; }

 private:
  // Unsigned, big-endian.
  std::uint64_t number(unsigned width) {
    std::uint64_t out = 0;
    for (const std::byte b : inside(width).rest()) out = out << 8 | std::to_integer<std::uint64_t>(b);
    return out;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0, end_;
  const std::string& what_;
};

// The name of the pair that begins here.
std::string read_name(Cursor& in) {
  const std::size_t begin = in.at();
  const auto refuse = [&] {
    in.fail(
        "byte {} does not begin a pair of a name and an array, as EasyLM's StreamingCheckpointer writes them; "
        "give the file streaming_params or streaming_train_state of a JAX run",
        begin);
  };
  const Head pair = in.head();
  if (pair.kind != Kind::array || pair.size != 2) refuse();
  const Head parts = in.head();
  if (parts.kind != Kind::array || parts.size > kMostParts) refuse();
  std::string name;
  for (std::uint64_t i = 0; i < parts.size; ++i) {
    const Head part = in.head();
    if (part.kind != Kind::text) refuse();
    name += (i ? "/" : "") + in.inside(part.size).text();
  }
  return name;
}

Array read_array(Cursor in, const std::string& name) {
  const auto refuse = [&](std::string_view problem) { in.fail("array '{}' {}", printable(name), problem); };
  const Head outer = in.head();
  if (outer.kind == Kind::map)
    refuse("is stored in pieces, as flax does above 1 GiB, which cannot be read; save it as safetensors");
  if (outer.kind != Kind::extension || outer.type != kArrayExtension)
    refuse("is no array of flax.serialization; save it again with StreamingCheckpointer");
  Cursor array = in.inside(outer.size);
  const Head three = array.head(), extents = array.head();
  if (three.kind != Kind::array || three.size != 3 || extents.kind != Kind::array ||
      extents.size > kMostParts)
    refuse("is not described by shape, dtype and numbers; the file is damaged, copy it again");
  Shape shape;
  for (std::uint64_t i = 0; i < extents.size; ++i) {
    const Head extent = array.head();
    if (extent.kind != Kind::integer || !std::in_range<std::int64_t>(extent.size))
      refuse("has a shape that is not a list of integers; the file is damaged, copy it again");
    shape.push_back(static_cast<std::int64_t>(extent.size));
  }
  const Head dtype_head = array.head();
  if (dtype_head.kind != Kind::text)
    refuse("has a dtype that is not text; the file is damaged, copy it again");
  const std::string dtype = array.inside(dtype_head.size).text();
  const NumberFormat* format = format_of_numpy(dtype);
  if (format == nullptr)
    refuse(
        fmt::format("has dtype '{}', which cannot be read; convert it to one of float64, float32, int32, "
                    "int64, float16, bfloat16",
                    printable(dtype, 20)));
  const Head numbers = array.head();
  const auto need = packed_bytes(*format, shape);
  if (numbers.kind != Kind::binary || !need || numbers.size != static_cast<std::uint64_t>(*need))
    refuse(fmt::format("has {} bytes for {} {}; the file is damaged, copy it again", numbers.size, dtype,
                       to_string(shape)));
  const Cursor from = array.inside(numbers.size);  // before anything is allocated
  Array out(format->becomes, shape);
  if (const auto bad = unpack_numbers(*format, from.rest().data(), out))
    refuse(fmt::format("has an int64 outside of i32 at index {}; store smaller integers, or float64", *bad));
  return out;
}

}  // namespace

std::map<std::string, Array> parse_flax_stream(std::span<const std::byte> bytes, const std::string& what,
                                               const std::function<bool(const std::string&)>& wanted) {
  require_function("flax", "what is wanted", wanted);
  if (bytes.empty())
    throw IoError(fmt::format("[msgpack] {}: the file is empty; copy it again", printable(what)));
  std::map<std::string, Array> out;
  Cursor in(bytes, what);
  while (!in.done()) {
    const std::string name = read_name(in);
    const Head value = in.head();
    if (value.kind != Kind::binary)
      in.fail("what is named '{}' is no binary; is this a checkpoint of EasyLM's StreamingCheckpointer?",
              printable(name));
    const Cursor inside = in.inside(value.size);
    if (wanted(name) && !out.emplace(name, read_array(inside, name)).second)
      in.fail("there are two arrays named '{}'; write the file again with unique names", printable(name));
  }
  return out;
}

}  // namespace nestgrad
