// The promise: attributes are equal, and hash alike, exactly if struct and every field are; reading those of
// another struct is an error, or null.
#include "engine/core/attrs.h"

#include <limits>

#include "ops/attrs.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Attrs number(const std::vector<double>& values, Shape shape, DType dtype = DType::f64) {
  return ConstantAttrs{Array::of(values, std::move(shape), dtype)};
}

}  // namespace

TEST_CASE("attributes are equal if every field is") {
  const std::vector<Attrs> different{
      SliceAttrs{0, 2, 5},      SliceAttrs{1, 2, 5},      SliceAttrs{0, 1, 5}, SliceAttrs{0, 2, 4},
      PadAttrs{0, 2, 5},  // the same fields in another struct
      MatmulAttrs{true, false}, MatmulAttrs{false, true}, ReduceAttrs{{0, 1}}, ReduceAttrs{{0}},
      ShapeAttrs{{0, 1}},       InputAttrs{"x"},          InputAttrs{"y"},     Attrs()};
  for (std::size_t i = 0; i < different.size(); ++i)
    for (std::size_t j = 0; j < different.size(); ++j) {
      CAPTURE(i);
      CAPTURE(j);
      CHECK((different[i] == different[j]) == (i == j));
    }
  CHECK(Attrs(SliceAttrs{0, 2, 5}) == different[0]);
  CHECK(Attrs(SliceAttrs{0, 2, 5}).hash() == different[0].hash());
  CHECK(Attrs(SliceAttrs{0, 2, 4}).hash() != different[0].hash());
}

TEST_CASE("attributes with numbers are equal if all bits are") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(number({1, 2}, {2}) == number({1, 2}, {2}));
  CHECK(number({1, 2}, {2}).hash() == number({1, 2}, {2}).hash());
  CHECK(number({1, nan}, {2}) == number({1, nan}, {2}));
  CHECK_FALSE(number({1, 2}, {2}) == number({1, 3}, {2}));
  CHECK_FALSE(number({1, 2}, {2}) == number({1, 2}, {2, 1}));
  CHECK_FALSE(number({1, 2}, {2}) == number({1, 2}, {2}, DType::f32));
  CHECK_FALSE(number({0.0}, {}) == number({-0.0}, {}));
  CHECK_FALSE(number({1}, {}) == Attrs(ConstantAttrs{}));
  CHECK(Attrs(ConstantAttrs{}) == Attrs(ConstantAttrs{}));
}

TEST_CASE("attributes of another struct are not read") {
  const Attrs attrs = SliceAttrs{0, 2, 5};
  REQUIRE(attrs.find<SliceAttrs>() != nullptr);
  CHECK(attrs.as<SliceAttrs>().end == 5);
  CHECK(attrs.find<PadAttrs>() == nullptr);
  CHECK(Attrs().find<SliceAttrs>() == nullptr);
  CHECK(contains(message_of<GraphError>([&] { attrs.as<PadAttrs>(); }), "not its own"));
  CHECK(contains(message_of<GraphError>([] { Attrs().as<PadAttrs>(); }), "not its own"));
  CHECK(attrs.numbers() == std::vector<std::int64_t>{0, 2, 5});
}
