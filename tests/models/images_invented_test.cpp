// Characters that nobody writes.
#include "engine/core/hash.h"
#include "models/images/invented.h"
#include "tests/models/images_testing.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

double distance(const Array& a, const Array& b) {
  double out = 0;
  for (std::size_t i = 0; i < a.as<float>().size(); ++i) {
    const double d = static_cast<double>(a.as<float>()[i]) - static_cast<double>(b.as<float>()[i]);
    out += d * d;
  }
  return out;
}

}  // namespace

TEST_CASE(
    "images: an invented character depends on alphabet, character, hand and size, and every number counts") {
  const Array one = invented(1, 2, 3);
  CHECK(one.shape() == Shape{28, 28, 1});
  check_in_unit(one);
  CHECK(invented(1, 2, 3).same_bits(one));
  for (const Array& other : {invented(2, 2, 3), invented(1, 3, 3), invented(1, 2, 4)})
    CHECK_FALSE(other.same_bits(one));
  CHECK(invented(1, 2, 3, 40).shape() == Shape{40, 40, 1});
  CHECK(contains(message_of<ConfigError>([] { invented(0, 0, 0, 1); }), "invented"));
}

TEST_CASE(
    "images: hands of one invented character are nearer to each other than those of two, on the whole") {
  double same = 0, apart = 0;
  for (std::uint64_t c = 0; c < 30; ++c) {
    same += distance(invented(1, c, 0), invented(1, c, 1));
    apart += distance(invented(1, c, 0), invented(1, c + 1, 1));
    double ink = 0;
    const Array third = invented(1, c, 2);
    for (const float x : third.as<float>()) ink += x;
    CHECK(ink > 30);  // pixels
    CHECK(ink < 400);
  }
  CHECK(same < 0.8 * apart);
}

TEST_CASE("images: invented characters are the same bits on every machine") {
  std::uint64_t hash = fnv1a(std::string_view());
  for (std::uint64_t c = 0; c < 8; ++c) {
    const Array image = invented(7, c, c + 1);
    hash = fnv1a(std::span(static_cast<const std::byte*>(image.data()), image.bytes()), hash);
  }
  CHECK(hash == 11163719995187993757ULL);
}
