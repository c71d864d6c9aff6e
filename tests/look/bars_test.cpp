// Bars and points.
#include <regex>

#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// From and to, on the page, of every bar with a title.
std::map<std::string, std::pair<double, double>> bar_ends(const std::string& picture) {
  static const std::regex kBar("d=\"M[-\\d.]+ ([-\\d.]+)h[-\\d.]+V([-\\d.]+)h[-\\d.]+z\"><title>([^<]*): ");
  std::map<std::string, std::pair<double, double>> out;
  for (std::sregex_iterator at(picture.begin(), picture.end(), kBar), end; at != end; ++at)
    out[(*at)[3]] = {std::stod((*at)[1]), std::stod((*at)[2])};
  return out;
}

}  // namespace

TEST_CASE("bars start at 0, upwards and downwards, as long as their values") {
  const std::string picture = svg(
      Bars{.title = "b", .y_label = "norm", .names = {"up", "down", "none"}, .groups = {{"", {2, -1, 0}}}});
  auto ends = bar_ends(picture);
  REQUIRE(ends.size() == 3);
  const double zero = ends["up"].first;
  CHECK(ends["down"].first == zero);
  CHECK(ends["none"].second == zero);
  CHECK(zero - ends["up"].second == doctest::Approx(2 * (ends["down"].second - zero)).epsilon(0.01));
  CHECK(contains(picture, ">2<"));
}

TEST_CASE("stacked bars begin where the ones before them end, negative ones downwards") {
  auto ends = bar_ends(svg(
      Bars{.names = {"x"}, .groups = {{"a", {1}}, {"b", {-2}}, {"c", {3}}, {"d", {-1}}}, .stacked = true}));
  REQUIRE(ends.size() == 4);
  CHECK(ends["x, a"].first == ends["x, b"].first);
  CHECK(ends["x, c"].first == ends["x, a"].second);
  CHECK(ends["x, d"].first == ends["x, b"].second);
  CHECK(ends["x, c"].second < ends["x, c"].first);
  CHECK(ends["x, d"].second > ends["x, d"].first);
}

TEST_CASE("logarithmic bars: equal ratios are equal lengths; what is missing is marked and counted") {
  const std::string picture = svg(Bars{.names = {"a", "b", "c", "zero", "nothing"},
                                       .groups = {{"", {1e-4, 1e-2, 1, 0, kNan}}},
                                       .log_y = true});
  auto ends = bar_ends(picture);
  REQUIRE(ends.size() == 3);
  CHECK(ends["a"].second - ends["b"].second ==
        doctest::Approx(ends["b"].second - ends["c"].second).epsilon(0.01));
  CHECK(contains(picture, "<title>zero: missing</title>"));
  CHECK(contains(picture, "<title>nothing: missing</title>"));
  CHECK(contains(picture, "2 of 5 values are missing: not a finite number, or not above 0."));
}

TEST_CASE("bars of wrong sizes are refused, bars without any are drawn") {
  CHECK_THROWS_WITH_AS(svg(Bars{.names = {"a"}, .groups = {{"g", {1, 2}}}}),
                       "[svg] group 'g' of bars has 2 values for 1 names; need as many of each", ValueError);
  CHECK_THROWS_AS(svg(Bars{.title = "b", .stacked = true, .log_y = true}), ValueError);
  CHECK(contains(svg(Bars{.title = "b"}), "no data to show"));
  CHECK(contains(svg(Bars{.names = {"a"}, .groups = {{"g", {kInf}}}}), "1 of 1 values is missing"));
}

TEST_CASE("points: every group has a shape and a colour of its own, missing ones are counted") {
  const std::string picture = svg(
      Points{.title = "p",
             .x_label = "x (m)",
             .y_label = "y (m)",
             .groups = {{"first", {1, 2, 2, kNan}, {1, 2, 2, 1}}, {"second", {1}, {4}}, {"third", {1}, {2}}},
             .diagonal = true});
  for (const char* style : {"class=\"dot c0\"", "class=\"square c1\"", "class=\"mark c2\""})
    CHECK(count(picture, style) == 2);  // in the legend and in the plot
  CHECK(contains(picture, "<title>x = y</title>"));
  CHECK(contains(picture, "1 of 6 points is missing"));
  CHECK_FALSE(contains(picture, "nan"));
  const std::string path = last_path(svg(Points{.groups = {{"", {1, 2, 2}, {1, 3, 3}}}}));
  CHECK(count(path, "M") == 2);  // points on one spot are one
  CHECK_THROWS_AS(svg(Points{.groups = {{"g", {1}, {}}}}), ValueError);
  CHECK_THROWS_AS(svg(Points{.log_x = true, .diagonal = true}), ValueError);
  CHECK(contains(svg(Points{.groups = {{"g", {0}, {1}}}, .log_x = true}), "no data to show"));
}

// --- Diagrams
