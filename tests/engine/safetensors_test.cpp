#include "engine/io/safetensors.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "tests/engine/io_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

SafeTensors parse(const std::string& bytes) { return parse_safetensors(bytes_of(bytes), "the-file"); }

// A safetensors file with this header, as it stands, and this much data.
std::string file_with(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

SafeTensors small_contents() {
  SafeTensors out;
  out.tensors["w"] = Array::of({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f32);
  out.tensors["b"] = Array::of({-1, 7}, {2}, DType::i32);
  out.metadata["note"] = "line\nbreak \"quoted\" \xc3\xa9";
  return out;
}

}  // namespace

TEST_CASE("safetensors: every bit survives a round trip") {
  const TemporaryFolder folder;
  SafeTensors contents = small_contents();
  contents.tensors["odd f32"] = odd_f32();
  contents.tensors["odd f64"] = odd_f64();
  contents.tensors["scalar"] = Array::scalar(-0.0);
  contents.tensors["empty"] = Array::zeros(DType::f64, {3, 0, 2});
  contents.tensors[""] = Array::full(DType::i32, {1, 1}, std::numeric_limits<std::int32_t>::min());
  write_safetensors(folder / "x", contents);
  const SafeTensors back = read_safetensors(folder / "x");
  CHECK(back.metadata == contents.metadata);
  REQUIRE(back.tensors.size() == contents.tensors.size());
  for (const auto& tensor : contents.tensors)
    CHECK_MESSAGE(back.tensors.at(tensor.first).same_bits(tensor.second), tensor.first);

  // Negative control: one bit is seen.
  contents.tensors["odd f64"].data()[8] ^= std::byte{1};
  CHECK_FALSE(back.tensors.at("odd f64").same_bits(contents.tensors["odd f64"]));
}

TEST_CASE("safetensors: equal contents give equal bytes, data at 64 bytes, each tensor aligned") {
  const std::string bytes = format_safetensors(small_contents());
  CHECK(bytes == format_safetensors(parse(bytes)));
  std::uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  CHECK((8 + length) % 64 == 0);
  SafeTensors mixed;
  mixed.tensors["a"] = Array::zeros(DType::f32, {1});
  mixed.tensors["b"] = Array::zeros(DType::f64, {1});
  check_contains(format_safetensors(mixed), R"("b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})");
  CHECK(format_safetensors({}).size() == 64);
  CHECK(parse(format_safetensors({})).tensors.empty());
}

TEST_CASE("safetensors: I64, F16 and BF16 are converted exactly") {
  const auto one = [](const std::string& dtype, std::size_t n, const std::string& data) {
    return parse(file_with(fmt::format(R"({{"x":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}}  )",
                                       dtype, n, data.size()),
                           data))
        .tensors.at("x");
  };
  const Array wide =
      one("I64", 3, raw(std::int64_t{-2147483648}, std::int64_t{2147483647}, std::int64_t{-1}));
  CHECK(wide.dtype() == DType::i32);
  CHECK(wide.to_vector() == std::vector<double>{-2147483648.0, 2147483647.0, -1});
  const std::string message = refusal([&] { one("I64", 2, raw(std::int64_t{1}, std::int64_t{2147483648})); });
  check_contains(message, "'x' has the I64 value 2147483648 at index 1");

  // Every half, against its definition.
  std::string halves;
  for (std::uint32_t h = 0; h < 65536; ++h) halves += raw(static_cast<std::uint16_t>(h));
  const Array f16 = one("F16", 65536, halves), bf16 = one("BF16", 65536, halves);
  int wrong = 0;
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const int exponent = static_cast<int>(h >> 10 & 31), fraction = static_cast<int>(h & 1023);
    double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    if (h >> 15) value = -value;
    const float got = f16.as<float>()[h];
    const bool same = std::isnan(value)
                          ? std::isnan(got) && (std::bit_cast<std::uint32_t>(got) >> 13 & 1023) == h % 1024
                          : got == value && std::signbit(got) == std::signbit(value);
    wrong += !same + (std::bit_cast<std::uint32_t>(bf16.as<float>()[h]) != h << 16);
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: a damaged file is refused with the right words") {
  const auto tensor = [](const std::string& name, const std::string& shape, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"F32","shape":{},"data_offsets":[{},{}]}})", name, shape, begin,
                       end);
  };
  const std::string data(16, 'x'), a = tensor("a", "[2]", 0, 8), b = tensor("b", "[2]", 8, 16);
  const std::string good = file_with("{" + b + "," + a + "}", data);
  CHECK(parse(good).tensors.size() == 2);
  const std::string deep = R"({"__metadata__":{"a":)" + std::string(100000, '[');
  std::string many;  // read in one pass; with a look at all of them for each it would take a minute
  for (int i = 0; i < 40000; ++i) many += tensor(fmt::format("t{}", i), "[0]", 16, 16) + ",";
  CHECK(parse(file_with("{" + many + b + "," + a + "}", data)).tensors.size() == 40002);

  const std::vector<Damage> cases{
      {"", "has 0 bytes"},
      {good.substr(0, 7), "has 7 bytes"},
      {good.substr(0, 20), "the file is truncated: bytes 0 to 7 ask for a header of"},
      {good.substr(0, good.size() - 3),
       "the file is truncated: header says 16 data bytes, file has 13; copy it again"},
      {good + "y", "header says 16 data bytes, file has 17"},
      {raw(std::uint64_t{1} << 63) + "{}", "header of 9223372036854775808 bytes, the limit is 100000000"},
      {raw(~std::uint64_t{0}) + "{}", "the limit is 100000000"},
      {"version https://git-lfs", "is this a safetensors file?"},
      {file_with(""), "does not begin with '{'"},
      {file_with("[]"), "does not begin with '{'"},
      {file_with("{\"a\" 1}"), "not valid JSON (at byte 13)"},
      {file_with("{}garbage"), "not valid JSON"},
      {file_with(std::string("{}\0garbage", 10)), "zero byte in the header, at byte 10"},
      {file_with("{\"\xff\":1}"), "not valid JSON"},
      {file_with(R"({"a":1e999})"), "cannot be represented"},
      {file_with(deep), "nests deeper than 3 levels"},
      {file_with("{" + a + "," + a + "}", data), "two entries named 'a'"},
      {file_with(R"({"a":{"dtype":"F32","dtype":"F64","shape":[2],"data_offsets":[0,8]}})", data),
       "two entries named 'dtype'"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2]}})", data),
       "'a' is not described by exactly dtype, shape"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"scale":2}})", data), "exactly"},
      {file_with(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", data),
       "'a' has dtype 'U8', which cannot be read"},
      {file_with(R"({"a\n":{"dtype":1,"shape":[2],"data_offsets":[0,2]}})", data),
       "'a\\x0a' has a dtype that is not text"},
      {file_with("{" + tensor("a", "[-2]", 0, 8) + "}", data),
       "'a' has a shape that is not a list of non-negative"},
      {file_with("{" + tensor("a", "[2.0]", 0, 8) + "}", data), "not a list of non-negative integers"},
      {file_with("{" + tensor("a", "[18446744073709551615]", 0, 8) + "}", data),
       "not a list of non-negative integers"},
      {file_with("{" + tensor("a", "[0,4294967296,4294967296]", 0, 0) + "}", ""), "larger than any memory"},
      {file_with("{" + tensor("a", "[0,70368744177664]", 0, 0) + "}", ""), "larger than any memory"},
      {file_with("{" + tensor("a", "[4294967296,1073741825]", 0, 8) + "}", data), "larger than any memory"},
      {file_with("{" + tensor("a", "[3]", 0, 8) + "}", data),
       "has data_offsets [0,8] for 8 bytes, F32 [3] takes 12"},
      {file_with("{" + tensor("a", "[2]", 8, 0) + "}", data), "begin <= end"},
      {file_with("{" + a + "," + tensor("b", "[2]", 4, 12) + "}", data),
       "'b' begins at data byte 4 and overlaps 'a'"},
      {file_with("{" + tensor("b", "[2]", 8, 16) + "}", data),
       "'b' begins at data byte 8 after a hole from byte 0"},
      {file_with(R"({"__metadata__":{"k":1}})"), "__metadata__ entry 'k' is not text"},
      {file_with(R"({"__metadata__":[]})"), "__metadata__ is not an object"}};
  for (const Damage& damage : cases) check_contains(refusal([&] { parse(damage.bytes); }), damage.words);
}

TEST_CASE("safetensors: what could not be read back is not written") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name, const Array& array) {
    return refusal([&] { write_safetensors(folder / "the-file", {{{name, array}}, {}}); });
  };
  check_contains(refused("x", Array()), "'x' holds no numbers");
  check_contains(refused("__metadata__", Array::scalar(1)), "keeps for metadata");
  check_contains(refused("\xff", Array::scalar(1)), "not UTF-8");
  check_contains(refused("x", Array::zeros(DType::f32, Shape(33, 1))), "32 axes");
  CHECK(folder.files() == 0);
}

TEST_CASE("whatever happens to one byte of a file, the readers give a result or an IoError") {
  const TemporaryFolder folder;
  write_npy(folder / "x", Array::of({1, 2, 3}, {3}, DType::f32));
  const auto npy = [](const std::string& bytes) { parse_npy(bytes_of(bytes), "the-file"); };
  const auto safetensors = [](const std::string& bytes) {
    const SafeTensors contents = parse(bytes);
    parse(format_safetensors(contents));  // what was read can be written
  };
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> readers{
      {read_file(folder / "x"), npy}, {format_safetensors(small_contents()), safetensors}};
  for (const auto& [bytes, read] : readers) {
    int accepted = 0, refused = 0;
    const auto attempt = [&, &reader = read](const std::string& changed) {
      try {
        reader(changed);
        ++accepted;
      } catch (const IoError& error) {
        ++refused;
        if (std::strchr(error.what(), '\n') != nullptr) FAIL_CHECK(error.what());
      }
    };
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      attempt(bytes.substr(0, i));
      attempt(bytes.substr(0, i) + bytes.substr(i + 1));
      attempt(bytes.substr(0, i) + bytes.substr(i, 1) + bytes.substr(i));
      for (int value = 0; value < 256; ++value) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(value);
        attempt(changed);
      }
    }
    CHECK(refused > 1000);   // of the header's bytes
    CHECK(accepted > 1000);  // of the numbers' bytes
  }
}
