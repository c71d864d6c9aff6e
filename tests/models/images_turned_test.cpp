// The promise: a turned image is the same pixels, turned, and what cannot be turned is refused.
#include "models/images/turned.h"
#include "tests/models/images_testing.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Array quarters(const std::vector<double>& q) { return Array::of(q, {std::ssize(q)}, DType::i32); }

}  // namespace

TEST_CASE("turned: an image of two by two by hand, counterclockwise") {
  // 1 2      2 4      4 3      3 1
  // 3 4      1 3      2 1      4 2
  std::vector<double> four;
  for (int i = 0; i < 4; ++i) four.insert(four.end(), {1, 2, 3, 4});
  const Array images = Array::of(four, {4, 2, 2, 1}).cast(DType::f32);
  CHECK(turned(images, quarters({0, 1, 2, 3})).to_vector() ==
        std::vector<double>{1, 2, 3, 4, 2, 4, 1, 3, 4, 3, 2, 1, 3, 1, 4, 2});
}

TEST_CASE("turned: four quarters are none, and channels stay together") {
  const Array images = random({DType::f32, {3, 5, 5, 2}}, 1);
  Array again = images;
  for (int i = 0; i < 4; ++i) again = turned(again, quarters({1, 1, 1}));
  CHECK(again.same_bits(images));
  const Array once = turned(images, quarters({0, 1, 0}));
  // Pixel (row 4, column 1) of the turned image was in row 1, column 0.
  for (std::int64_t c = 0; c < 2; ++c)
    CHECK(once.at(((5 + 4) * 5 + 1) * 2 + c) == images.at(((5 + 1) * 5 + 0) * 2 + c));
}

TEST_CASE("turned: what cannot be turned is refused") {
  const Array images = random({DType::f32, {2, 4, 4, 1}}, 1);
  CHECK(contains(message_of<ValueError>([&] {
                   turned(images, quarters({0, 4}));
                 }),
                 "image 1 is to be turned by 4"));
  CHECK(contains(message_of<ValueError>([&] { turned(images, quarters({-1, 0})); }), "there are 0 to 3"));
  CHECK(contains(message_of<ShapeError>([&] { turned(images, quarters({0})); }),
                 "[n, size, size, channels] and [n]"));
  CHECK(contains(message_of<ShapeError>([&] {
                   turned(random({DType::f32, {1, 4, 5, 1}}, 1), quarters({0}));
                 }),
                 "they must be"));
  CHECK(contains(message_of<DTypeError>([&] {
                   turned(images.cast(DType::f64), quarters({0, 0}));
                 }),
                 "must be f32 and i32"));
}
