// Error bars: interval plots, and bars at the points of a line chart.
#include "engine/core/error.h"
#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("an interval plot shows each row's name, estimate and bar, and what another has found") {
  const std::string picture = svg(Intervals{.title = "Differences",
                                            .x_label = "nats per byte",
                                            .rows = {{"mini-batches", -0.12, -0.15, -0.09, -0.129},
                                                     {"one run", 0.02, 0.02, 0.02},
                                                     {"failed", kNan, kNan, kNan}},
                                            .line = 0,
                                            .reference_name = "the paper"});
  CHECK(tags_match(picture));
  for (const char* text :
       {">Differences<", ">nats per byte<", ">mini-batches<", ">one run<", ">the paper<",
        "mini-batches: -0.120, -0.150 to -0.0900", "the paper: -0.129", "1 of 3 rows is missing"}) {
    CAPTURE(text);
    CHECK(contains(picture, text));
  }
  // A bar reaches from low to high, with the estimate between: places are linear in the numbers.
  const std::string wide = svg(Intervals{.rows = {{"a", 1, 0, 4}}});
  double from = 0, y = 0, to = 0, at = 0;
  const std::size_t bar = wide.find(R"(class="mark c0" d="M)"), dot = wide.find(R"(class="dot c0" d="M)");
  REQUIRE(bar != std::string::npos);
  REQUIRE(dot != std::string::npos);
  REQUIRE(std::sscanf(wide.c_str() + bar, "class=\"mark c0\" d=\"M%lf %lfv8m0-4H%lf", &from, &y, &to) == 3);
  REQUIRE(std::sscanf(wide.c_str() + dot, "class=\"dot c0\" d=\"M%lf", &at) == 1);
  CHECK(at - from == doctest::Approx((to - from) / 4).epsilon(0.01));
  CHECK_FALSE(contains(svg(Intervals{.rows = {{"a", 1, 1, 1}}}), "mark c0"));
  CHECK(contains(svg(Intervals{.title = "nothing"}), "no data to show"));
}

TEST_CASE("a chart draws error bars, reaches to their ends, and wants one at every point") {
  const Series series{"loss", {1, 2}, {3, 4}, {0, 3.5}, {9, 4.5}};
  const std::string picture = svg(Chart{.title = "c", .series = {series}});
  CHECK(tags_match(picture));
  CHECK(contains(picture, "loss: interval"));
  CHECK(contains(picture, ">0<"));
  CHECK(contains(picture, ">10<"));
  CHECK_FALSE(contains(svg(Chart{.series = {{"loss", {1, 2}, {3, 4}}}}), "interval"));
  CHECK_THROWS_WITH_AS(svg(Chart{.series = {{"loss", {1, 2}, {3, 4}, {1}, {5}}}}),
                       doctest::Contains("1 low and 1 high ends of error bars for 2 values"), ValueError);
  CHECK_THROWS_AS(svg(Chart{.series = {{"loss", {1}, {3}, {1}, {}}}}), ValueError);
}

TEST_CASE("error bars that cannot be drawn are counted in the picture") {
  const Series series{"loss", {1, 2, 3}, {3, 4, 5}, {-1, 3.5, kNan}, {9, 4.5, 6}};
  CHECK(contains(svg(Chart{.series = {series}}), "1 of 3 error bars is missing"));
  CHECK(contains(svg(Chart{.series = {series}, .log_y = true}), "2 of 3 error bars are missing"));
}
