// PNG and idx files.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/io/file.h"
#include "engine/io/idx.h"
#include "engine/io/png.h"
#include "tests/engine/io_testing.h"
#include "tests/image_files.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Numbers = std::vector<double>;

namespace {

Array png(const std::string& bytes) { return parse_png(bytes_of(bytes), "the-file"); }
Array idx(const std::string& bytes) { return parse_idx(bytes_of(bytes), "the-file"); }

// Each v of 255 or 65535, as f32 divides.
Numbers of(float most, const std::vector<float>& values) {
  Numbers out;
  for (const float v : values) out.push_back(static_cast<double>(v / most));
  return out;
}

void check_refused(const std::vector<Damage>& cases, Array (*read)(const std::string&)) {
  for (const Damage& damage : cases) {
    CAPTURE(damage.words);
    check_contains(refusal([&] { read(damage.bytes); }), damage.words);
  }
}

}  // namespace

TEST_CASE("png: what was written is read back, grey and colour, to the nearest of 256 values") {
  const TemporaryFolder folder;
  for (const std::int64_t channels : {1, 3}) {
    const Array image = random_uniform({DType::f32, {7, 5, channels}}, -0.25, 1.25, 3, 0);
    write_file_atomically(folder / "x.png", format_png(image));
    const Array back = read_png(folder / "x.png");
    REQUIRE(back.shape() == image.shape());
    for (std::int64_t i = 0; i < image.size(); ++i)
      CHECK(std::abs(back.at(i) - std::clamp(image.at(i), 0.0, 1.0)) <= 0.5 / 255 + 1e-6);
    CHECK(png(format_png(back)).same_bits(back));
  }
  CHECK(png(format_png(Array::of({0, 1.0 / 255, 0.5, 1, -HUGE_VAL, HUGE_VAL}, {1, 6, 1}, DType::f32)))
            .to_vector() == of(255, {0, 1, 128, 255, 0, 255}));
}

TEST_CASE("png: every kind of sample becomes its share of the largest") {
  CHECK(png(one_bit_png()).shape() == Shape{2, 10, 1});
  CHECK(png(one_bit_png()).to_vector() ==
        Numbers{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(png(png_with(4, 1, 2, 0, std::string("\0\x1b", 2))).to_vector() == of(255, {0, 85, 170, 255}));
  CHECK(png(png_with(2, 1, 4, 0, std::string("\0\x3f", 2))).to_vector() == of(255, {51, 255}));
  CHECK(png(png_with(2, 1, 16, 0, std::string("\0\1\2\xff\xff", 5))).to_vector() == of(65535, {258, 65535}));
  CHECK(png(png_with(1, 1, 16, 2, std::string("\0\0\1\1\0\0\2", 7))).to_vector() == of(65535, {1, 256, 2}));
  CHECK(png(png_with(2, 1, 8, 3, std::string("\0\1\0", 3), {{"PLTE", std::string("\1\2\3\xff\x80\0", 6)}}))
            .to_vector() == of(255, {255, 128, 0, 1, 2, 3}));
  // Filter 1: differences to the left.
  CHECK(png(png_with(3, 1, 8, 0, std::string("\1\5\1\1", 4))).to_vector() == of(255, {5, 6, 7}));
  // What is ancillary, as a gamma, changes nothing.
  CHECK(png(png_with(1, 1, 8, 0, std::string("\0\x40", 2), {{"gAMA", big_endian(100000)}})).to_vector() ==
        of(255, {64}));
}

TEST_CASE("png: alpha is laid on black") {
  const auto share = [](float v, float alpha) { return static_cast<double>(v / 255.0f * (alpha / 255.0f)); };
  CHECK(png(png_with(1, 1, 8, 6, std::string("\0\xff\x80\1\x40", 5))).to_vector() ==
        Numbers{share(255, 64), share(128, 64), share(1, 64)});
  CHECK(png(png_with(2, 1, 8, 4, std::string("\0\x80\0\x80\xff", 5))).to_vector() ==
        Numbers{0, share(128, 255)});
  CHECK(png(png_with(2, 1, 8, 3, std::string("\0\1\0", 3),
                     {{"PLTE", std::string("\1\2\3\xff\xff\xff", 6)}, {"tRNS", std::string("\xff\0", 2)}}))
            .to_vector() == Numbers{0, 0, 0, share(1, 255), share(2, 255), share(3, 255)});
}

TEST_CASE("png: a picture may be one long row") {
  const Array row = png(png_with(1000001, 1, 8, 0, '\0' + std::string(1000001, '\xff')));
  CHECK(row.same_bits(Array::full(DType::f32, {1, 1000001, 1}, 1)));
}

TEST_CASE("png: a damaged file is refused in one line, wherever it ends") {
  const std::string good = format_png(random_uniform({DType::f32, {6, 6, 3}}, 0, 1, 1, 0));
  for (std::size_t size = 0; size < good.size() - 12; ++size)  // the end of the picture's data
    refusal([&] { png(good.substr(0, size)); });
  std::string flipped = good;
  flipped[good.size() - 30] = static_cast<char>(flipped[good.size() - 30] ^ 1);
  check_refused({{"", "does not begin with"},
                 {"PK\x03\x04 a zip", "is this a PNG file?"},
                 {good.substr(0, 40), "truncated: it ends at byte 40"},
                 {flipped, "damaged near byte"},
                 {png_with(0, 1, 8, 0, "\0"), "damaged near byte"},
                 {png_with(1, 1, 3, 0, "\0\0"), "damaged near byte"},
                 {png_with(100000, 100000, 1, 0, "\0"), "more than the 16777216 that are read"},
                 {png_with(2147483647, 2147483647, 16, 6, "\0"), "more than the 16777216 that are read"},
                 {png_with(1, 16777217, 8, 0, "\0"), "more than the 16777216 that are read"},
                 {png_with(4096, 4096, 16, 6, std::string(10, '\0')), "cannot be in"},
                 {png_with(3, 3, 8, 0, std::string(5, '\0')), "damaged near byte"},
                 {png_with(2, 1, 8, 3, std::string(3, '\0')), "damaged near byte"},
                 {png_with(2, 1, 8, 3, std::string("\0\0\2", 3), {{"PLTE", std::string(6, '\1')}}),
                  "colour 2 of a palette of 2"},
                 {png_with(3, 1, 2, 3, std::string("\0\x1c", 2), {{"PLTE", std::string(9, '\1')}}),
                  "colour 3 of a palette of 3"}},
                png);
  refusal([&] { read_png("/no/such.png"); }, "/no/such.png");
}

TEST_CASE("png: what is no picture is not written") {
  CHECK_THROWS_WITH_AS(format_png(Array::zeros(DType::f64, {2, 2, 1})),
                       "[format_png] the image is f64[2,2,1]; cast it to f32", DTypeError);
  for (const Shape& shape : {Shape{2, 2}, {2, 2, 2}, {0, 2, 1}, {1, 5000, 5000}})
    CHECK_THROWS_AS(format_png(Array::zeros(DType::f32, shape)), ShapeError);
  CHECK_THROWS_WITH_AS(format_png(Array::of({0, NAN}, {1, 2, 1}, DType::f32)),
                       "[format_png] the number at index 1 is NaN; it has no colour", ValueError);
}

TEST_CASE("idx: plain and packed by gzip") {
  const Array expected = Array::of({0, 1, 2, 3, 4, 255}, {2, 3}, DType::i32);
  CHECK(idx(small_idx()).same_bits(expected));
  CHECK(idx(gzipped(small_idx())).same_bits(expected));
  CHECK(idx(idx_with(8, {3, 0}, "")).shape() == Shape{3, 0});
  const std::string many(300000, '\7');
  CHECK(idx(gzipped(idx_with(8, {300, 1000}, many))).same_bits(Array::full(DType::i32, {300, 1000}, 7)));
  const TemporaryFolder folder;
  write_file_atomically(folder / "x.gz", gzipped(small_idx()));
  CHECK(read_idx(folder / "x.gz").same_bits(expected));
}

TEST_CASE("idx: a damaged file is refused in one line, wherever it ends") {
  const std::string good = small_idx(), packed = gzipped(good);
  for (const std::string& whole : {good, packed})
    for (std::size_t size = 0; size < whole.size(); ++size) refusal([&] { idx(whole.substr(0, size)); });
  std::string sum = packed;
  sum[packed.size() - 5] = static_cast<char>(sum[packed.size() - 5] ^ 1);
  check_refused({{"", "truncated: a header takes 4 bytes, there are 0"},
                 {"PK\x03\x04 a zip", "does not begin with two zeros"},
                 {good.substr(0, 15), "truncated: [2,3] takes 18 bytes, there are 15"},
                 {good + "x", "[2,3] takes 18 bytes, there are more"},
                 {idx_with(13, {2}, "12345678"), "its numbers are 32-bit floats"},
                 {idx_with(7, {2}, "12"), "the type of its numbers, 7"},
                 {idx_with(8, {}, ""), "0 axes"},
                 {idx_with(8, {0xffffffff, 0xffffffff, 0xffffffff}, ""), "more than the 2147483648 numbers"},
                 {idx_with(8, {0xffffffff, 0, 0xffffffff}, ""), "more than the 2147483648 numbers"},
                 {packed.substr(0, packed.size() - 1), "truncated: what gzip has packed has no end"},
                 {packed + "x", "1 bytes follow what gzip has packed"},
                 {gzipped(good + "x"), "there are more"},
                 {gzipped(good.substr(0, 17)), "truncated: [2,3] takes 18 bytes, there are 17"},
                 {gzipped(idx_with(8, {60000, 100}, std::string(100, '\0'))), "there are 112"},
                 {sum, "incorrect data check"}},
                idx);
}
