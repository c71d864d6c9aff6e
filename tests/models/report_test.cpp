#include "models/report.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

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
  const std::string broken = svg({.series = {{"", {0, 1, 2, 3, 4}, {1, 2, kNan, 4, 5}}}});
  CHECK(count(last_path(broken), "M") == 2);
  CHECK(count(last_path(broken), "L") == 2);
  const std::string infinite = svg({.series = {{"", {0, 1, kInfinity, 3, 4}, {1, -kInfinity, 3, 4, 1e308}}},
                                    .reference_lines = {{"lost", kNan}, {"gone", kInfinity}}});
  for (const std::string* picture : {&broken, &infinite}) {
    CHECK_FALSE(contains(*picture, "nan"));
    CHECK_FALSE(contains(*picture, "inf"));
  }
  CHECK_FALSE(contains(infinite, "lost"));
}

TEST_CASE("values that a log axis cannot show break the line") {
  const std::string picture = svg({.series = {{"", {1, 2, 3, 4, 5}, {1, 10, 0, 10, -1}}}, .log_y = true});
  CHECK(count(last_path(picture), "M") == 2);
  CHECK_FALSE(contains(picture, "nan"));
  CHECK_FALSE(contains(picture, "inf"));
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
  const std::string page = html_report(nasty, nasty, {{nasty, nasty}}, {{nasty, nasty, {chart}, nasty}});
  CHECK_FALSE(contains(page, "<script"));
  CHECK_FALSE(contains(page, "<b>"));
  CHECK_FALSE(contains(page, "\"a\""));
  CHECK(count(page, "&lt;script&gt;alert(&quot;a&quot; &amp;") >= 10);
  CHECK(tags_match(svg(chart)));
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

TEST_CASE("a report is one file that needs nothing else") {
  const Chart chart{.title = "Loss", .series = {{"training", {0, 1}, {1, 0}}}};
  const std::string page =
      html_report("Run", "small", {{"steps", "100"}},
                  {{"Loss", "First.\n\nSecond.", {chart, chart}, ""}, {"Sample", "", {}, "to be\nor"}});
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(contains(page, "<th scope=\"row\">steps</th><td>100</td>"));
  CHECK(contains(page, "<p>First.</p>\n<p>Second.</p>"));
  CHECK(contains(page, "<pre>\nto be\nor</pre>"));
  CHECK(count(page, "<pre>") == 1);
  CHECK(count(page, "<svg ") == 2);
  CHECK(contains(page, "prefers-color-scheme:dark"));
  for (const char* outside : {"<script", "src=", "href=", "url(", "@import"}) {
    CAPTURE(outside);
    CHECK_FALSE(contains(page, outside));
  }
}
