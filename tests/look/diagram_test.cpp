// Diagrams: layers, arrows, legends.
#include <regex>

#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;

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
  for (const std::string arrow : {"a \xe2\x86\x92 b: forward", "c \xe2\x86\x92 a: forward",
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
