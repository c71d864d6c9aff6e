// Heat maps: colours, scales, sizes.
#include <regex>
#include <set>

#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Heatmap small_map(std::vector<double> values) {
  return {.title = "map",
          .x_label = "token",
          .y_label = "layer",
          .value_label = "norm (no unit)",
          .rows = 1,
          .columns = static_cast<std::int64_t>(values.size()),
          .values = std::move(values)};
}

// The class of each cell, in the order of the cells.
std::vector<std::string> shades(const std::string& picture) {
  static const std::regex kCell("<path class=\"(\\w+)\" d=\"M\\d+ [\\d.]+h1\"><title>");
  std::vector<std::string> out;
  for (std::sregex_iterator at(picture.begin(), picture.end(), kCell), end; at != end; ++at)
    out.push_back((*at)[1]);
  return out;
}

// Relative luminance, as WCAG defines it, of the colour
// that a class has; dark: in the dark part of the style.
double luminance(const std::string& picture, const std::string& shade, bool dark) {
  const std::size_t from = dark ? picture.find("prefers-color-scheme:dark") : 0;
  const std::size_t at = picture.find("." + shade + "{stroke:#", from);
  REQUIRE(at != std::string::npos);
  const unsigned long rgb = std::stoul(picture.substr(at + shade.size() + 10, 6), nullptr, 16);
  double sum = 0;
  const double weights[] = {0.0722, 0.7152, 0.2126};
  for (int i = 0; i < 3; ++i) {
    const double c = static_cast<double>(rgb >> (8 * i) & 0xff) / 255;
    sum += weights[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

}  // namespace

TEST_CASE("a heat map's colours grow with the value, away from the page in light and dark") {
  std::vector<double> values;
  for (int i = 0; i < 66; ++i) values.push_back(0.1 * i);
  const std::string picture = svg(small_map(values));
  const std::vector<std::string> cells = shades(picture);
  REQUIRE(cells.size() == values.size());
  CHECK(std::set<std::string>(cells.begin(), cells.end()).size() == 33);
  for (std::size_t i = 1; i < cells.size(); ++i) {
    CAPTURE(i);
    CHECK(luminance(picture, cells[i], false) <= luminance(picture, cells[i - 1], false));
    CHECK(luminance(picture, cells[i], true) >= luminance(picture, cells[i - 1], true));
  }
  CHECK(luminance(picture, cells.front(), false) > 0.8);
  CHECK(luminance(picture, cells.back(), false) < 0.1);
  CHECK(luminance(picture, cells.front(), true) < 0.05);
  CHECK(luminance(picture, cells.back(), true) > 0.6);
}

TEST_CASE("a diverging heat map is symmetric around 0") {
  Heatmap map = small_map({-4, -2, 0, 1, 2, 3.9});
  map.diverging = true;
  const std::string picture = svg(map);
  const std::vector<std::string> cells = shades(picture);
  CHECK(cells[0] == "d0");
  CHECK(cells[2] == "d16");
  CHECK(cells[5] == "d32");
  for (const bool dark : {false, true})
    for (int i = 0; i < 16; ++i) {
      CAPTURE(i);
      const double below = luminance(picture, fmt::format("d{}", i), dark);
      const double above = luminance(picture, fmt::format("d{}", 32 - i), dark);
      CHECK(below == doctest::Approx(above).epsilon(0.25));
      const double inner = luminance(picture, fmt::format("d{}", i + 1), dark);
      CHECK((dark ? below > inner : below < inner));
    }
  for (const char* tick : {">-4<", ">0<", ">4<"}) CHECK(contains(picture, tick));
}

TEST_CASE("missing cells of a heat map are seen and counted") {
  const std::string picture = svg(small_map({0, kNan, 1, kInf}));
  CHECK(shades(picture) == std::vector<std::string>{"q0", "missing", "q32", "missing"});
  CHECK(contains(picture, "<title>layer 0, token 1: missing</title>"));
  CHECK(contains(picture, "<title>layer 0, token 2: 1</title>"));
  CHECK(contains(picture, ">missing<"));  // in the legend
  CHECK(contains(picture, "2 of 4 values are missing: not a finite number."));
  const std::string whole = svg(small_map({0, 1}));
  CHECK_FALSE(contains(whole, "missing:"));
  CHECK_FALSE(contains(whole, ">missing<"));
  CHECK(contains(svg(small_map({kNan, kNan})), "2 of 2 values are missing"));
}

TEST_CASE("a logarithmic heat map puts equal ratios at equal distances and 0 beside the scale") {
  Heatmap map = small_map({1e-8, 1e-4, 1, 0, -1});
  map.log = true;
  const std::string picture = svg(map);
  CHECK(shades(picture) == std::vector<std::string>{"q0", "q16", "q32", "nothing", "missing"});
  CHECK(contains(picture, "1 of 5 values is missing: not a finite number, or below 0."));
}

TEST_CASE("the ends of a heat map's scale can be given") {
  Heatmap map = small_map({0, 1, 2});
  map.low = -1, map.high = 1;
  const std::string picture = svg(map);
  const std::vector<std::string> cells = shades(picture);
  CHECK(cells[0] == "q16");
  CHECK(cells[1] == "q32");
  CHECK(cells[2] == "q32");
  CHECK(contains(picture, "1 of 3 cells are beyond the ends of the scale."));
}

TEST_CASE("a large heat map is drawn as means of blocks and says so") {
  Heatmap map{.title = "large", .value_label = "value", .rows = 256, .columns = 300};
  for (int row = 0; row < 256; ++row)
    for (int column = 0; column < 300; ++column)
      map.values.push_back(column < 150 ? (row + column) % 2 : 4);  // blocks of 0 and 1 have the mean 0.5
  const std::string picture = svg(map);
  CHECK(contains(picture, "Each cell is the mean of 2 x 3 values; the map has 256 x 300."));
  CHECK(picture.size() < 60000);
  CHECK(count(picture, "M50 0.5h50") == 1);  // the right half, one run in each row
  CHECK(contains(picture, "M50 127.5h50"));
  CHECK_FALSE(contains(picture, "M50 128.5h50"));
  CHECK(contains(picture, "<path class=\"q0\" d=\"M0 0.5h50M0 1.5h50"));
}

TEST_CASE("a heat map of the largest size that is not reduced stays small") {
  Heatmap map{.title = "noise", .rows = 128, .columns = 128};
  for (int i = 0; i < 128 * 128; ++i) map.values.push_back(std::sin(1e4 * std::sin(i)));
  CHECK(svg(map).size() < 200000);
}

TEST_CASE("heat maps of wrong sizes are refused") {
  Heatmap map = small_map({1, 2, 3});
  map.rows = 2;
  CHECK_THROWS_WITH_AS(svg(map), "[svg] heat map 'map' has 3 values for 2 x 3 cells", ValueError);
  map = small_map({1, 2, 3});
  map.column_names = {"a", "b"};
  CHECK_THROWS_WITH_AS(svg(map), "[svg] heat map 'map' has 2 names for 3 columns", ValueError);
  map = small_map({1, 2, 3});
  map.diverging = map.log = true;
  CHECK_THROWS_AS(svg(map), ValueError);
  map = small_map({1});
  map.rows = -1, map.columns = -1;
  CHECK_THROWS_AS(svg(map), ValueError);
  CHECK(contains(svg(Heatmap{.title = "none"}), "no data to show"));
}

// --- Bars, points
