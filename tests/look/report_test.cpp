#include "look/report.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/io/file.h"

using namespace nestgrad;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

int count(std::string_view text, std::string_view part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++n;
  return n;
}

// The path data of the last line drawn: legend swatches come before the lines.
std::string last_path(const std::string& picture) {
  const std::size_t end = picture.rfind("\"><title>");
  const std::size_t start = picture.rfind("d=\"", end) + 3;
  return picture.substr(start, end - start);
}

// True when every start tag has its end tag, in order: what an XML reader needs besides escaped text.
bool tags_match(std::string_view text) {
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    if (text.substr(at).starts_with("<!DOCTYPE")) continue;
    const std::size_t end = text.find('>', at);
    if (end == std::string_view::npos) return false;
    const std::string_view tag = text.substr(at + 1, end - at - 1);
    if (tag.ends_with('/')) continue;
    if (!tag.starts_with('/')) {
      open.emplace_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
  }
  return open.empty();
}

}  // namespace

TEST_CASE("a chart shows its title, labels with units, names and reference lines") {
  const std::string picture =
      svg({.title = "Loss",
           .x_label = "step",
           .y_label = "loss (nats per byte)",
           .series = {{"training", {0, 100}, {5, 2}}, {"validation", {0, 100}, {5, 3}}},
           .reference_lines = {{"bigram", 2.48}}});
  for (const char* text :
       {">Loss<", ">step<", ">loss (nats per byte)<", ">training<", ">validation<", ">bigram 2.48<"}) {
    CAPTURE(text);
    CHECK(contains(picture, text));
  }
  CHECK(tags_match(picture));
}

TEST_CASE("ticks are round numbers that cover the data") {
  const std::string picture = svg({.series = {{"", {0, 2000}, {1.62, 5.49}}}});
  for (const char* tick : {">1<", ">2<", ">5<", ">6<", ">500<", ">2000<"}) {
    CAPTURE(tick);
    CHECK(contains(picture, tick));
  }
  CHECK_FALSE(contains(picture, ">7<"));
  const std::string thousands = svg({.series = {{"", {0, 20000}, {0, 1}}}});
  CHECK(contains(thousands, ">5k<"));
  CHECK(contains(thousands, ">0.2<"));
  const std::string small = svg({.series = {{"", {0, 1}, {0, 4e-5}}}});
  CHECK(contains(small, ">1e-5<"));
}

TEST_CASE("log axes put equal ratios at equal distances") {
  const std::string path =
      last_path(svg({.series = {{"", {1, 10, 100}, {1, 100, 10000}}}, .log_x = true, .log_y = true}));
  double x[3], y[3];
  REQUIRE(std::sscanf(path.c_str(), "M%lf %lfL%lf %lfL%lf %lf", &x[0], &y[0], &x[1], &y[1], &x[2], &y[2]) ==
          6);
  CHECK(x[2] - x[1] == doctest::Approx(x[1] - x[0]).epsilon(0.001));
  CHECK(y[2] - y[1] == doctest::Approx(y[1] - y[0]).epsilon(0.001));
  CHECK(y[1] < y[0]);  // larger is higher on the page
}

TEST_CASE("NaN and infinity break the line and never reach the picture") {
  const std::string whole = svg({.series = {{"", {0, 1, 2, 3, 4}, {1, 2, 3, 4, 5}}}});
  CHECK(count(last_path(whole), "M") == 1);
  CHECK(count(last_path(whole), "L") == 4);
  CHECK_FALSE(contains(whole, "missing:"));
  const std::string broken = svg({.series = {{"", {0, 1, 2, 3, 4}, {1, 2, kNan, 4, 5}}}});
  CHECK(contains(broken, "1 of 5 points is missing: not a finite number."));
  CHECK(count(last_path(broken), "M") == 2);
  CHECK(count(last_path(broken), "L") == 2);
  const std::string infinite = svg({.series = {{"", {0, 1, kInfinity, 3, 4}, {1, -kInfinity, 3, 4, 1e308}}},
                                    .reference_lines = {{"lost", kNan}, {"gone", kInfinity}}});
  for (const std::string* picture : {&broken, &infinite}) {
    CHECK_FALSE(contains(*picture, "nan"));
    CHECK_FALSE(contains(*picture, "inf"));
  }
  CHECK_FALSE(contains(infinite, "lost"));
  CHECK(contains(infinite, "3 of 5 points are missing"));
}

TEST_CASE("values that a log axis cannot show break the line") {
  const std::string picture = svg({.series = {{"", {1, 2, 3, 4, 5}, {1, 10, 0, 10, -1}}}, .log_y = true});
  CHECK(count(last_path(picture), "M") == 2);
  CHECK(contains(picture, "2 of 5 points are missing: not a finite number, or not above 0."));
  CHECK_FALSE(contains(picture, "nan"));
  CHECK_FALSE(contains(picture, "inf"));
}

TEST_CASE("a series of very many points stays small and keeps its extremes") {
  Series long_one{"", {}, {}};
  for (int i = 0; i < 100000; ++i)
    long_one.x.push_back(i), long_one.y.push_back(i == 54321 ? 9 : std::sin(0.7 * i));
  const std::string picture = svg({.series = {long_one}});
  CHECK(picture.size() < 100000);
  const std::string spike = last_path(svg({.series = {{"", {0, 99999}, {9, -1}}}}));  // on the same axes
  double x, y;
  REQUIRE(std::sscanf(spike.c_str(), "M%lf %lf", &x, &y) == 2);
  CHECK(count(last_path(picture), fmt::format(" {:.1f}L", y)) == 1);
}

TEST_CASE("a point alone between two breaks is still seen") {
  const std::string path = last_path(svg({.series = {{"", {0, 1, 2}, {kNan, 2, kNan}}}}));
  CHECK(contains(path, "a"));  // the arc of a dot
}

TEST_CASE("charts without a range are drawn") {
  CHECK(contains(svg({.series = {}}), "no data to show"));
  CHECK(contains(svg({.series = {{"", {1}, {kNan}}}}), "no data to show"));
  for (double value : {0.0, 2.5, -1e-200, 1e299, -1e299}) {
    CAPTURE(value);
    for (bool log : {false, true}) {
      const std::string picture = svg({.series = {{"", {1, 2}, {value, value}}}, .log_x = log, .log_y = log});
      CHECK_FALSE(contains(picture, "nan"));
      CHECK_FALSE(contains(picture, "inf"));
      CHECK(tags_match(picture));
    }
  }
  CHECK(contains(svg({.series = {{"", {1, 2}, {1e9, 1e9 + 4}}}}),
                 "1.000000002G"));  // neighbouring ticks differ
}

TEST_CASE("a series with unequal numbers of x and y is refused by name") {
  CHECK_THROWS_WITH_AS(svg({.series = {{"loss", {1, 2}, {1}}}}),
                       "[svg] series 'loss' has 2 x and 1 y values; need as many of each", ValueError);
}

TEST_CASE("all text is escaped") {
  const std::string nasty = "<script>alert(\"a\" & 'b')</script>";
  const Chart chart{.title = nasty,
                    .x_label = nasty,
                    .y_label = nasty,
                    .series = {{nasty, {0, 1}, {0, 1}}},
                    .reference_lines = {{"<b>", 0.5}}};
  const Heatmap map{.title = nasty,
                    .x_label = nasty,
                    .y_label = nasty,
                    .value_label = nasty,
                    .rows = 1,
                    .columns = 1,
                    .values = {1},
                    .row_names = {nasty},
                    .column_names = {nasty}};
  const Bars bars{.title = nasty, .y_label = nasty, .names = {nasty}, .groups = {{nasty, {1}}}};
  const Points points{.title = nasty, .x_label = nasty, .y_label = nasty, .groups = {{nasty, {1}, {1}}}};
  const Diagram diagram{.title = nasty,
                        .boxes = {{nasty, nasty, 1}},
                        .arrows = {{0, 0, Diagram::Arrow::Kind::forward, true, nasty}}};
  const Table table{.title = nasty, .columns = {nasty}, .rows = {{nasty}}};
  const Tree tree{.label = nasty, .detail = nasty, .level = 1, .children = {{nasty, nasty}}};
  for (const std::string& file : {svg(chart), svg(map), svg(bars), svg(points), svg(diagram)}) {
    CHECK_FALSE(contains(file, "<script"));
    CHECK(tags_match(file));
  }
  const std::string page = html_report(nasty, nasty, {{nasty, nasty}},
                                       {{.id = "nasty",
                                         .title = nasty,
                                         .question = nasty,
                                         .reading = nasty,
                                         .claims = {{nasty, 0, 1, nasty}},
                                         .pictures = {chart, map, bars, points, diagram, table, tree},
                                         .preformatted = nasty}});
  CHECK(count(page, "<script") == 1);  // its own
  CHECK(count(page, "</script") == 1);
  CHECK_FALSE(contains(page, "<b>"));
  CHECK_FALSE(contains(page, "\"a\""));
  CHECK(count(page, "&lt;script&gt;alert(&quot;a&quot; &amp;") >= 30);
  CHECK(tags_match(page));
}

TEST_CASE("bytes that are not UTF-8 text become replacement characters") {
  const std::string replacement = "\xef\xbf\xbd";
  CHECK(escape_xml("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n\t") ==
        "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n\t");
  CHECK(escape_xml("a\xff"
                   "b") == "a" + replacement + "b");
  CHECK(escape_xml(std::string_view("\0\x1b\x7f", 3)) == replacement + replacement + replacement);
  CHECK(escape_xml("\xc3") == replacement);                                      // cut short
  CHECK(escape_xml("\xc0\xaf") == replacement + replacement);                    // overlong
  CHECK(escape_xml("\xe0\x80\xaf") == replacement + replacement + replacement);  // overlong
  CHECK(escape_xml("\xed\xa0\x80") == replacement + replacement + replacement);  // surrogate
  CHECK(escape_xml("\xf4\x90\x80\x80") == replacement + replacement + replacement + replacement);
  CHECK(escape_xml("\xef\xbf\xbf") == replacement + replacement + replacement);  // not a character
}

// --- Heat maps

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
  const std::string picture = svg(small_map({0, kNan, 1, kInfinity}));
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
  CHECK(contains(svg(Bars{.names = {"a"}, .groups = {{"g", {kInfinity}}}}), "1 of 1 values is missing"));
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

namespace {

using Kind = Diagram::Arrow::Kind;

struct Corner {
  double x, y, width, height;
};

std::vector<Corner> boxes(const std::string& picture) {
  static const std::regex kBox(
      "class=\"box\" x=\"([-\\d.]+)\" y=\"([-\\d.]+)\" width=\"([-\\d.]+)\" height=\"([-\\d.]+)\"");
  std::vector<Corner> out;
  for (std::sregex_iterator at(picture.begin(), picture.end(), kBox), end; at != end; ++at)
    out.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3]), std::stod((*at)[4])});
  return out;
}

}  // namespace

TEST_CASE("a diagram's forward arrows point downwards and its boxes keep apart") {
  Diagram diagram{.title = "d"};
  for (const char* name : {"x", "W", "k", "v", "prediction", "inner loss", "step", "output"})
    diagram.boxes.push_back(
        {name, "detail of " + std::string(name), static_cast<int>(diagram.boxes.size()) % 3});
  for (const auto& [from, to] :
       {std::pair{0, 2}, {0, 3}, {1, 4}, {2, 4}, {4, 5}, {3, 5}, {6, 7}, {1, 6}, {0, 7}})
    diagram.arrows.push_back({from, to});
  diagram.arrows.push_back({5, 6, Kind::inner_gradient, false, "-eta"});
  const std::vector<Corner> placed = boxes(svg(diagram));
  REQUIRE(placed.size() == diagram.boxes.size());
  for (const Diagram::Arrow& arrow : diagram.arrows) {
    const Corner &from = placed[static_cast<std::size_t>(arrow.from)],
                 &to = placed[static_cast<std::size_t>(arrow.to)];
    CHECK(from.y + from.height < to.y);
  }
  for (std::size_t i = 0; i < placed.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) {
      const Corner &a = placed[i], &b = placed[k];
      CAPTURE(i);
      CAPTURE(k);
      CHECK((a.x + a.width < b.x || b.x + b.width < a.x || a.y + a.height < b.y || b.y + b.height < a.y));
    }
}

TEST_CASE("a diagram with cycles is drawn: the arrow that closes one points upwards") {
  const Diagram diagram{.boxes = {{"a"}, {"b"}, {"c"}},
                        .arrows = {{0, 1}, {1, 2}, {2, 0}, {1, 0, Kind::meta_gradient}, {2, 2}}};
  const std::string picture = svg(diagram);
  const std::vector<Corner> placed = boxes(picture);
  REQUIRE(placed.size() == 3);
  CHECK(placed[0].y < placed[1].y);
  CHECK(placed[1].y < placed[2].y);
  CHECK(count(picture, "rotate(180)") == 2);  // heads that point upwards
  for (const char* arrow : {"a \xe2\x86\x92 b: forward", "c \xe2\x86\x92 a: forward",
                            "b \xe2\x86\x92 a: meta gradient", "c \xe2\x86\x92 c: forward"}) {
    CAPTURE(arrow);
    CHECK(contains(picture, arrow));
  }
  CHECK(tags_match(picture));
}

TEST_CASE("arrows that cross in the order given are put in one without crossings") {
  Diagram diagram;
  for (int i = 0; i < 10; ++i) diagram.boxes.push_back({std::to_string(i)});
  for (int i = 0; i < 5; ++i) diagram.arrows.push_back({i, 9 - i});
  const std::vector<Corner> placed = boxes(svg(diagram));
  REQUIRE(placed.size() == 10);
  for (std::size_t i = 0; i < 5; ++i)
    CHECK(placed[i].x + placed[i].width / 2 ==
          doctest::Approx(placed[9 - i].x + placed[9 - i].width / 2).epsilon(0.02));
}

TEST_CASE("a diagram's legend names what is in it; cut arrows are dashed and crossed") {
  Diagram diagram{.boxes = {{"a", "", 0}, {"b", "", 2}}, .arrows = {{0, 1}, {0, 1, Kind::inner_gradient}}};
  const std::string whole = svg(diagram);
  for (const char* entry : {">forward<", ">inner gradient<", ">level 0<", ">level 2<"})
    CHECK(contains(whole, entry));
  for (const char* entry : {">meta gradient<", ">cut: nothing flows<", ">level 1<", " cut a"})
    CHECK_FALSE(contains(whole, entry));
  diagram.arrows[1].cut = true;
  const std::string cut = svg(diagram);
  CHECK(contains(cut, ">cut: nothing flows<"));
  CHECK(contains(cut, "class=\"arrow cut a1\""));
  CHECK(contains(cut, "a \xe2\x86\x92 b: inner gradient, cut"));
  CHECK(count(cut, "l10 10m0-10l-10 10") == 4);  // a cross and its halo, in the legend and on the arrow
}

TEST_CASE("arrows to boxes that do not exist are refused, a diagram without boxes is drawn") {
  CHECK_THROWS_WITH_AS(svg(Diagram{.title = "d", .boxes = {{"a"}}, .arrows = {{0, 1}}}),
                       "[svg] an arrow of diagram 'd' goes from box 0 to box 1; there are 1 boxes",
                       ValueError);
  CHECK_THROWS_AS(svg(Diagram{.boxes = {{"a"}}, .arrows = {{-1, 0}}}), ValueError);
  CHECK(contains(svg(Diagram{.title = "d"}), "no data to show"));
}

// --- Pages

TEST_CASE("numbers have three significant digits") {
  for (const auto& [number, text] : {std::pair{0.0, "0"},
                                     {-0.0, "0"},
                                     {1.0, "1"},
                                     {-17.0, "-17"},
                                     {1234.0, "1234"},
                                     {1234.5, "1234"},
                                     {0.12345, "0.123"},
                                     {-12.345, "-12.3"},
                                     {123.45, "123"},
                                     {0.0123456, "0.0123"},
                                     {0.001, "0.00100"},
                                     {0.00012345, "1.23e-4"},
                                     {2.5e-16, "2.50e-16"},
                                     {9.9996, "10.0"},
                                     {0.99996, "1.00"},
                                     {123456.0, "1.23e5"},
                                     {1e300, "1.00e300"},
                                     {kNan, "NaN"},
                                     {kInfinity, "\xe2\x88\x9e"},
                                     {-kInfinity, "-\xe2\x88\x9e"}}) {
    const double value = number;
    CAPTURE(value);
    CHECK(format_number(value) == text);
  }
}

TEST_CASE("a check holds within its tolerance only, and never with NaN") {
  CHECK(Claim{"", 1e-9, 1e-8}.holds());
  CHECK(Claim{"", 0, 0}.holds());
  CHECK_FALSE(Claim{"", 1e-7, 1e-8}.holds());
  CHECK_FALSE(Claim{"", kNan, 1e-8}.holds());
  CHECK_FALSE(Claim{"", 0, kNan}.holds());
  CHECK_FALSE(Claim{"", kInfinity, 1}.holds());
}

TEST_CASE("the page says of each view whether its invariants hold, in words, with error and tolerance") {
  const std::string page = html_report(
      "t", "", {},
      {{.id = "good", .title = "Good", .claims = {{"sum", 1e-9, 1e-8}}},
       {.id = "bad", .title = "Bad", .claims = {{"close", 1e-12, 1e-8}, {"lost", kNan, 1e-6, "nats"}}},
       {.id = "none", .title = "None"}});
  const std::size_t start = page.find("<nav"), end = page.find("</nav>");
  REQUIRE(end != std::string::npos);
  const std::string nav = page.substr(start, end - start);
  CHECK(contains(
      nav,
      "<a href=\"#good\">Good</a></td><td><span class=\"state holds\">\xe2\x9c\x93 holds</span></td>"
      "<td class=\"num\">1.00e-9</td><td class=\"num\">1.00e-8 <span class=\"unit\">relative</span></td>"));
  CHECK(contains(
      nav,
      "<a href=\"#bad\">Bad</a></td><td><span class=\"state fails\">\xe2\x9c\x97 1 of 2 fail</span></td>"
      "<td class=\"num\">NaN</td><td class=\"num\">1.00e-6 <span class=\"unit\">nats</span></td>"));
  CHECK(contains(nav,
                 "<a href=\"#none\">None</a></td><td><span class=\"state none\">no invariant</span></td>"));
  CHECK(contains(page, "\xe2\x9c\x97 1 of 3 invariants fails"));
  CHECK(count(page, "<tr class=\"failing\">") == 1);
  const std::string fine =
      html_report("t", "", {}, {{.id = "good", .claims = {{"sum", 0, 0}, {"product", 0, 0}}}});
  CHECK(contains(fine, "\xe2\x9c\x93 All 2 invariants hold"));
  CHECK(contains(fine, "\xe2\x9c\x93 all 2 hold"));
}

TEST_CASE("duplicate and unusable ids are refused") {
  CHECK_THROWS_WITH_AS(html_report("", "", {}, {{.id = "a"}, {.id = "b"}, {.id = "a"}}),
                       "[html_report] two views have the id 'a'", ValueError);
  for (const char* id : {"", "a b", "\"", "caf\xc3\xa9"}) {
    CAPTURE(id);
    CHECK_THROWS_AS(html_report("", "", {}, {{.id = id}}), ValueError);
  }
}

TEST_CASE("tables align numbers at the right and refuse ragged rows") {
  const Table table{.title = "Costs",
                    .columns = {"layer", "time (ms)", "note"},
                    .rows = {{"1", "0.12", "-"}, {"b", "1.23e-16", "12"}, {"c", "NaN", "x"}}};
  const std::string page = html_report("", "", {}, {{.id = "a", .pictures = {table}}});
  CHECK(contains(page,
                 "<th scope=\"col\">layer</th><th scope=\"col\" class=\"num\">time (ms)</th><th "
                 "scope=\"col\">note</th>"));
  CHECK(contains(page, "<td>b</td><td class=\"num\">1.23e-16</td><td>12</td>"));
  CHECK_THROWS_WITH_AS(html_report("", "", {}, {{.id = "a", .pictures = {Table{"T", {"x"}, {{"1", "2"}}}}}}),
                       "[html_report] a row of table 'T' has 2 cells for 1 columns", ValueError);
}

TEST_CASE("trees nest as parts that unfold; leaves do not") {
  const Tree tree{"root", "3 nodes", 0, {{"left", "", 1, {{"leaf", "f32[4]"}}}, {"right"}}};
  const std::string page = html_report("", "", {}, {{.id = "a", .pictures = {tree}}});
  const std::size_t root = page.find("<span>root</span>"), left = page.find("<span>left</span>"),
                    leaf = page.find("<span>leaf</span><span class=\"detail\">f32[4]</span></div>"),
                    right = page.find("<span>right</span></div>");
  REQUIRE(right != std::string::npos);
  CHECK(root < left);
  CHECK(left < leaf);
  CHECK(leaf < right);
  CHECK(count(page, "<details class=\"node\"") == 2);
  CHECK(count(page, "<details class=\"node\" open=\"\">") == 1);
  CHECK(count(page.substr(leaf, right - leaf), "</details>") == 1);  // left ends between its leaf and right
  CHECK(contains(page, "<span class=\"level v1\">level 1</span>"));
}

// --- A page with one of each picture

namespace {

std::vector<ReportView> sample_views() {
  const auto wave = [](double x, double rate) { return 0.35 + 1.9 * std::exp(-x / rate); };
  Series initial{"at the first weights", {}, {}}, before{"before the step", {}, {}},
      after{"after the step", {}, {}};
  for (int t = 0; t < 256; ++t) {
    const double noise = 0.04 * std::sin(0.9 * t) + 0.03 * std::sin(0.31 * t * t);
    for (Series* s : {&initial, &before, &after}) s->x.push_back(t);
    initial.y.push_back(2.2 + noise);
    before.y.push_back(t == 130 ? kNan : wave(t, 60) + noise);
    after.y.push_back(0.82 * wave(t, 50) + noise);
  }
  const Chart inner{.title = "Inner loss while reading",
                    .x_label = "token",
                    .y_label = "inner loss (squared error)",
                    .series = {initial, before, after},
                    .reference_lines = {{"zero weights", 2.31}}};
  Series norm{"gradient of the fast weights", {}, {}}, meta{"gradient of the initial weights", {}, {}};
  for (int t = 1; t <= 1000; t += 3) {
    norm.x.push_back(t), norm.y.push_back(3 / std::sqrt(t) * (1 + 0.2 * std::sin(t)));
    meta.x.push_back(t), meta.y.push_back(0.8 * std::pow(t, -1.3));
  }
  const Chart decay{.title = "Norms fall as powers",
                    .x_label = "inner step",
                    .y_label = "norm (2-norm)",
                    .series = {norm, meta},
                    .log_x = true,
                    .log_y = true};

  Heatmap attention{.title = "Effective attention",
                    .x_label = "token that is learnt from",
                    .y_label = "token that answers",
                    .value_label = "weight (no unit)",
                    .rows = 64,
                    .columns = 64,
                    .diverging = true};
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 64; ++column)
      attention.values.push_back(
          column > row ? 0 : std::cos(0.35 * (row - column)) * std::exp(-0.05 * (row - column)));
  Heatmap flow{.title = "Size of the gradient",
               .x_label = "layer",
               .y_label = "distance to the loss",
               .value_label = "2-norm, relative to the loss",
               .rows = 8,
               .columns = 12,
               .log = true};
  for (int row = 0; row < 8; ++row) {
    flow.row_names.push_back(fmt::format("{} steps", 1 << row));
    for (int column = 0; column < 12; ++column)
      flow.values.push_back(row == 6 && column == 3  ? kNan
                            : row == 7 && column > 8 ? 0
                                                     : std::pow(10, -0.5 * row - 0.08 * column * (row % 3)));
  }
  for (int column = 0; column < 12; ++column) flow.column_names.push_back(fmt::format("layers.{}", column));
  Heatmap writes{.title = "What each token writes",
                 .x_label = "token",
                 .y_label = "head",
                 .value_label = "norm of the step (2-norm)",
                 .rows = 4,
                 .columns = 300};
  for (int i = 0; i < 1200; ++i) writes.values.push_back(1 + std::sin(0.03 * i) * std::sin(0.4 * i));

  Bars parts{.title = "The gradient, step by step", .y_label = "projection on the whole (nats)"};
  for (const char* name : {"first order", "step 1", "step 2", "step 3", "step 4", "step 5", "step 6"})
    parts.names.push_back(name);
  parts.groups = {{"second order", {1.62, 0.31, 0.22, -0.18, 0.09, -0.05, kNan}}};
  Bars time{.title = "Where time goes", .y_label = "time (ms)", .stacked = true};
  for (int i = 0; i < 9; ++i)
    time.names.push_back(i % 3 == 0 ? "matmul+add+softmax" : i % 3 == 1 ? "layer_norm_vjp" : "reduce_sum");
  for (const char* level : {"level 0", "level 1", "level 2"}) {
    time.groups.push_back({level, {}});
    for (int i = 0; i < 9; ++i)
      time.groups.back().values.push_back(10.0 / (i + 1) *
                                          (1 + 0.5 * static_cast<double>(time.groups.size())));
  }
  Points keys{.title = "Queries and keys",
              .x_label = "component 1 (no unit)",
              .y_label = "component 2 (no unit)",
              .groups = {{"queries", {}, {}}, {"keys", {}, {}}, {"values", {}, {}}}};
  for (int i = 0; i < 240; ++i) {
    Points::Group& group = keys.groups[static_cast<std::size_t>(i % 3)];
    const double angle = 2.4 * i, radius = 0.1 * std::sqrt(i);
    group.x.push_back(radius * std::cos(angle) + 0.9 * (i % 3)),
        group.y.push_back(radius * std::sin(angle) - 0.5 * (i % 3));
  }
  Points precision{.title = "Two ways to the same gradient",
                   .x_label = "|gradient|, single precision",
                   .y_label = "|gradient|, double precision",
                   .groups = {{"weights", {}, {}}},
                   .log_x = true,
                   .log_y = true,
                   .diagonal = true};
  for (int i = 0; i < 150; ++i) {
    const double size = std::pow(10, -6 + 0.04 * i);
    precision.groups[0].x.push_back(size),
        precision.groups[0].y.push_back(size * (1 + 0.2 * std::sin(5 * i) / (1 + 0.05 * i)));
  }

  const Diagram program{.title = "Where gradients flow",
                        .boxes = {{"tokens", "x_t"},
                                  {"initial weights", "W_0", 0},
                                  {"key, value, query", "projections of x_t", 0},
                                  {"fast weights", "W_t, carried from step to step", 1},
                                  {"inner loss", "|W k - v|^2", 1},
                                  {"step", "W - eta g", 1},
                                  {"answer", "W_t q", 0},
                                  {"outer loss", "nats per byte", 0}},
                        .arrows = {{0, 2},
                                   {1, 3},
                                   {2, 4, Kind::forward, false, "k, v"},
                                   {3, 4},
                                   {4, 5, Kind::inner_gradient, false, "g"},
                                   {3, 5},
                                   {5, 6, Kind::forward, false, "W_t"},
                                   {2, 6, Kind::forward, false, "q"},
                                   {6, 7},
                                   {7, 6, Kind::meta_gradient},
                                   {6, 5, Kind::meta_gradient, false, "lambda"},
                                   {5, 4, Kind::meta_gradient, true, "second order"},
                                   {4, 2, Kind::meta_gradient},
                                   {5, 5, Kind::forward, false, "next token"}}};
  const Table costs{.title = "Estimators of the gradient",
                    .columns = {"estimator", "norm (2-norm)", "cosine with full", "time (ms)", "memory (kB)",
                                "work (Mflop)"},
                    .rows = {{"full", format_number(1.6234), format_number(1), format_number(12.31),
                              format_number(40231), format_number(812.3)},
                             {"first order", format_number(1.31), format_number(0.9412), format_number(4.1),
                              format_number(9120), format_number(301.2)},
                             {"truncated after 4 steps", format_number(1.6), format_number(0.99921),
                              format_number(8.24), format_number(21034), format_number(550.1)}}};
  const Table short_table{
      .title = "Time by level",
      .columns = {"level", "time (us)", "share (%)"},
      .rows = {{"0, the program as written", "412", "31.2"}, {"1, inner gradient", "305", "23.1"}}};
  const Tree nodes{"program",
                   "214 nodes",
                   0,
                   {{"layers.0.seq_modeling_block",
                     "120 nodes",
                     0,
                     {{"%12 = matmul", "f32[2,16,64] ttt/learners/linear.cpp:41", 0},
                      {"inner loop",
                       "64 nodes; by level 20 30 14",
                       1,
                       {{"%20 = subtract", "f32[2,16,64] ttt/learners/linear.cpp:44", 1},
                        {"%21 = matmul", "f32[64,64]", 2}}}}},
                    {"loss", "94 nodes", 0}}};

  return {
      {.id = "losses",
       .title = "The inner loss, token by token",
       .question = "Does the layer learn while it reads?",
       .reading =
           "Each token is a training example of the inner model. Its loss is shown with the weights from "
           "before the first token, just before the step on that token, and just after it.\n\n"
           "Where the second line falls below the first, the layer has learnt from earlier tokens.",
       .claims = {{"the loss after the step is the loss of the next weights", 3.1e-16, 1e-12}},
       .pictures = {inner, decay}},
      {.id = "attention",
       .title = "The learner as attention",
       .question = "Which tokens does an answer come from?",
       .reading = "Row t holds the weights of the values of earlier tokens in the answer to token t.",
       .claims = {{"rows times values are the layer's own answers", 4.4e-13, 1e-9},
                  {"no weight lies above the diagonal", 0, 0, "cells"}},
       .pictures = {attention, flow, writes}},
      {.id = "steps",
       .title = "The gradient by inner step",
       .question = "Which inner steps shape the outer gradient?",
       .reading = "All bars add up to the norm of the full gradient; negative bars pull against it.",
       .claims = {{"the parts add up to the whole", kNan, 1e-9},
                  {"first order equals the gradient with every step cut", 2e-3, 1e-6, "nats"}},
       .pictures = {parts, time}},
      {.id = "keys",
       .title = "Queries and keys",
       .question = "Do queries find their keys?",
       .reading = "The two directions of largest variance.",
       .pictures = {keys, precision}},
      {.id = "program",
       .title = "The program",
       .question = "What is computed, and which gradient wrote it?",
       .reading =
           "Level 0 is the program as written, level 1 what the inner gradient added. Arrows are coloured "
           "by the gradient that they belong to; where a gradient is stopped the arrow is cut.",
       .claims = {{"the groups hold every node once", 0, 0, "nodes"}},
       .pictures = {program}},
      {.id = "costs",
       .title = "What estimators cost",
       .question = "What does a cheaper gradient lose, and what does it save?",
       .pictures = {costs, short_table}},
      {.id = "nodes",
       .title = "All nodes",
       .question = "What is in the graph?",
       .pictures = {nodes},
       .open = false},
      {.id = "sample",
       .title = "A sample",
       .question = "What does it write?",
       .preformatted = "a line of text that is long enough to need breaking on a narrow page, "
                       "and-a-word-without-any-space-in-it-that-is-also-very-long-indeed\n<end> & more",
       .open = false}};
}

}  // namespace

TEST_CASE("a report is one file that needs nothing else") {
  const Chart chart{.title = "Loss", .series = {{"training", {0, 1}, {1, 0}}}};
  const std::string page =
      html_report("Run", "small", {{"steps", "100"}},
                  {{.id = "loss",
                    .title = "Loss",
                    .question = "Does it fall?",
                    .reading = "First.\n\nSecond.",
                    .pictures = {chart, chart}},
                   {.id = "sample", .title = "Sample", .preformatted = "to be\nor", .open = false}});
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(contains(page, "<dt>steps</dt><dd>100</dd>"));
  CHECK(contains(page, "<p>First.</p>\n<p>Second.</p>"));
  CHECK(contains(page, "<pre>\nto be\nor</pre>"));
  CHECK(count(page, "<pre>") == 1);
  CHECK(count(page, "<svg ") == 2);
  CHECK(contains(page, "<details class=\"view\" id=\"loss\" open=\"\">\n<summary><h2>Loss</h2>"));
  CHECK(contains(page, "<details class=\"view\" id=\"sample\">\n<summary>"));
  CHECK(contains(page, "prefers-color-scheme:dark"));
}

TEST_CASE(
    "a page with one of each picture is well-formed, small and without references to anything outside") {
  const std::string page = html_report(
      "A look inside layers.0", "256 tokens, inner mini-batches of 16, 2 heads of 64 features",
      {{"policy", "full gradient, every step stored"},
       {"inner steps", "16"},
       {"outer loss", "1.4142 nats per byte"},
       {"checkpoint", "runs/a-folder-with-a-very-long-name/that-does-not-fit/checkpoint.safetensors"}},
      sample_views());
  CHECK(tags_match(page));
  CHECK(page.size() < 500000);
  CHECK(count(page, "<svg ") == 10);
  CHECK(count(page, "<figure ") == 13);
  CHECK(count(page, "<details class=\"view\"") == 8);
  for (const char* outside : {"http:", "https:", "src=", "url(", "@import", "<link", "<iframe", "<object"}) {
    CAPTURE(outside);
    CHECK_FALSE(contains(page, outside));
  }
  CHECK(count(page, "href=\"") == count(page, "href=\"#"));
  // For the test in a browser.
  if (const char* folder = std::getenv("NESTGRAD_PAGE_FOLDER"))
    write_file_atomically(std::string(folder) + "/sample.html", page);
}

TEST_CASE("what is too much of a chart is red above the value, and nowhere without one") {
  Chart chart{"c", "x", "y", {{"s", {0, 1}, {0, 2}}}};
  CHECK_FALSE(contains(svg(chart), "class=\"danger\""));
  chart.too_much = 1;
  CHECK(contains(svg(chart), "class=\"danger\""));
}
