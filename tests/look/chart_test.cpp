// Charts: axes, lines, what is missing.
#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("a chart shows its title, labels with units, names and reference lines") {
  const std::string picture =
      svg({.title = "Loss",
           .x_label = "step",
           .y_label = "loss (nats per byte)",
           .series = {{"training", {0, 100}, {5, 2}}, {"validation", {0, 100}, {5, 3}}},
           .reference_lines = {{"bigram", 2.48}}});
  for (const std::string text :
       {">Loss<", ">step<", ">loss (nats per byte)<", ">training<", ">validation<", ">bigram 2.48<"}) {
    CAPTURE(text);
    CHECK(contains(picture, text));
  }
  CHECK(tags_match(picture));
}

TEST_CASE("ticks are round numbers that cover the data") {
  const std::string picture = svg({.series = {{"", {0, 2000}, {1.62, 5.49}}}});
  for (const std::string tick : {">1<", ">2<", ">5<", ">6<", ">500<", ">2000<"}) {
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
  const std::string infinite = svg({.series = {{"", {0, 1, kInf, 3, 4}, {1, -kInf, 3, 4, 1e308}}},
                                    .reference_lines = {{"lost", kNan}, {"gone", kInf}}});
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

TEST_CASE("numbers that are too small for ticks between them are drawn as one") {
  for (const double size : {5e-324, 1e-310, 1e-300})
    for (const bool log : {false, true}) {
      CAPTURE(size);
      CAPTURE(log);
      const std::string picture =
          svg({.series = {{"", {0, 1, 2}, {size, 2 * size, 3 * size}}}, .log_y = log});
      CHECK(contains(picture, "<svg"));
      CHECK(picture.size() < 20000);
      CHECK_FALSE(contains(picture, "nan"));
    }
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
  const std::string three = replacement + replacement + replacement;
  CHECK(escape_xml("a\xe2\x80\xae\xe2\x81\xa6") == "a" + three + three);         // U+202E, U+2066
  CHECK(escape_xml("\xc3") == replacement);                                      // cut short
  CHECK(escape_xml("\xc0\xaf") == replacement + replacement);                    // overlong
  CHECK(escape_xml("\xe0\x80\xaf") == replacement + replacement + replacement);  // overlong
  CHECK(escape_xml("\xed\xa0\x80") == replacement + replacement + replacement);  // surrogate
  CHECK(escape_xml("\xf4\x90\x80\x80") == replacement + replacement + replacement + replacement);
  CHECK(escape_xml("\xef\xbf\xbf") == replacement + replacement + replacement);  // not a character
}

// --- Heat maps
