// Images of a page.
#include "engine/io/png.h"
#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string page_of(const Images& images) {
  return html_report("", "", {}, {{.id = "a", .pictures = {images}}});
}

Array ramp() { return Array::of({0, 0.2, 0.4, 0.6, 0.8, 1}, {2, 3, 1}, DType::f32); }

// What the n-th data URI of a page holds.
std::string bytes_of_image(const std::string& page, std::size_t n) {
  constexpr std::string_view kStart = "src=\"data:image/png;base64,",
                             kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::size_t at = 0;
  for (std::size_t i = 0; i <= n; ++i) at = page.find(kStart, at) + kStart.size();
  std::string out;
  unsigned bits = 0;
  int held = 0;
  for (; page[at] != '"' && page[at] != '='; ++at) {
    bits = bits << 6 | static_cast<unsigned>(kDigits.find(page[at]));
    held += 6;
    if (held >= 8) out += static_cast<char>(bits >> (held -= 8) & 255);
  }
  return out;
}

}  // namespace

TEST_CASE("images of a page are PNG inside of it, enlarged, with words and marks") {
  Images images{.title = "Digits <of> the test",
                .tiles = {{ramp(), "7 \"?\"", "good"}, {ramp(), "", "bad"}, {ramp()}}};
  const std::string page = page_of(images);
  CHECK(tags_match(page));
  CHECK(count(page, "<img ") == 3);
  CHECK(contains(page, "<figcaption>Digits &lt;of&gt; the test</figcaption>"));
  // 32 times: 96 pixels.
  CHECK(contains(page,
                 "alt=\"Digits &lt;of&gt; the test: 7 &quot;?&quot; (good)\" width=\"96\" height=\"64\""));
  CHECK(contains(page, "alt=\"Digits &lt;of&gt; the test, 2 of 3 (bad)\""));
  CHECK(contains(page, "alt=\"Digits &lt;of&gt; the test, 3 of 3\""));
  CHECK(count(page, "<div class=\"tile good\"") == 1);
  CHECK(count(page, "<div class=\"tile bad\"") == 1);
  CHECK(contains(page, "<span class=\"holds\">\xe2\x9c\x93</span> <span>7 &quot;?&quot;</span>"));
  CHECK(contains(page, "image-rendering:pixelated"));
  CHECK_FALSE(contains(page, "max-width:0px"));
  CHECK_FALSE(contains(page, "not finite"));
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string bytes = bytes_of_image(page, i);
    CHECK(relative_error(parse_png(std::as_bytes(std::span(bytes)), "tile"), ramp()) < 0.002);
  }
  images.scale = 2, images.columns = 2;
  CHECK(contains(page_of(images), "width=\"6\" height=\"4\""));
  CHECK(contains(page_of(images), "<div class=\"tiles\" style=\"max-width:96px\">"));
}

TEST_CASE("images in rows: each row has its name, and the last may be shorter") {
  Images images{.title = "Views", .columns = 2, .row_names = {"input", "truth"}};
  for (int i = 0; i < 3; ++i) images.tiles.push_back({ramp(), fmt::format("view {}", i)});
  const std::string page = page_of(images);
  CHECK(tags_match(page));
  CHECK(count(page, "<div class=\"tile-row\">") == 2);
  const std::size_t second = page.find("<div class=\"row-name\">truth</div>");
  REQUIRE(second != std::string::npos);
  CHECK(page.find("alt=\"Views, input: view 1\"") < second);
  CHECK(page.find("alt=\"Views, truth: view 2\"") > second);
  CHECK(page.find("alt=\"Views, truth: view 2\"") != std::string::npos);
  images.row_names.pop_back();
  CHECK_THROWS_WITH_AS(page_of(images), "[html_report] images 'Views' have 1 names for 2 rows of 2 columns",
                       ValueError);
}

TEST_CASE("images: what cannot be shown as it is, is said") {
  const std::string page =
      page_of({.title = "odd", .tiles = {{Array::of({kNan, kInf, -1, 0.5}, {2, 2, 1}, DType::f32)}}});
  CHECK(contains(page, "2 of 4 values are not finite numbers and drawn as 0."));
  CHECK(contains(page, "1 of 4 values are below 0 or above 1 and drawn as these."));
  CHECK(contains(page_of({.title = "none"}), "There are no images to show."));
  CHECK_THROWS_WITH_AS(page_of({.title = "t", .tiles = {{ramp(), "", "so-so"}}}),
                       "[html_report] images 't' have a tile marked 'so-so'; need good, bad or nothing",
                       ValueError);
  CHECK_THROWS_WITH_AS(page_of({.title = "t", .tiles = {{Array::zeros(DType::f32, {2, 2})}}}),
                       "[html_report] images 't' have a tile f32[2,2]; need [height, width, 1 or 3]",
                       ValueError);
  CHECK_THROWS_AS(page_of({.title = "t", .tiles = {{Array::zeros(DType::f32, {2, 2, 2})}}}), ShapeError);
  CHECK_THROWS_AS(page_of({.title = "t", .columns = -1}), ValueError);
}
