// Drawn characters, and digits on a larger ground.
#include <set>

#include "engine/core/random.h"
#include "models/images/glyphs.h"
#include "tests/models/images_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// White squares of 10 x 10 on 28 x 28, not in the middle, of two classes.
LabelledImages squares() {
  LabelledImages out{
      Array::zeros(DType::f32, {4, 28, 28, 1}), Array::of({0, 1, 0, 1}, {4}, DType::i32), {"a", "b"}};
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t y = 4; y < 14; ++y)
      for (std::int64_t x = 8; x < 18; ++x)
        out.images.as<float>()[static_cast<std::size_t>((i * 28 + y) * 28 + x)] = 1;
  return out;
}

// All digits alike, drawn without distractors.
LabelledImages digits28() {
  return glyphs({.size = 28, .distractors = 0, .smallest = 0.7, .largest = 0.7}, 3, 0, 50);
}

GlyphOptions bare(GlyphOptions o = {}) {
  o.distractors = 0;
  return o;
}

}  // namespace

TEST_CASE("images: a glyph depends on options, seed and number alone") {
  const GlyphOptions options;
  const LabelledImages all = glyphs(options, 7, 0, 24);
  CHECK(all.images.shape() == Shape{24, 40, 40, 1});
  check_in_unit(all.images);
  for (const std::int64_t i : {0, 9, 10, 23}) {
    const LabelledImages one = glyphs(options, 7, static_cast<std::uint64_t>(i), 1);
    CHECK(one.images.same_bits(rows(all.images, i, i + 1)));
    CHECK(one.labels.at(0) == all.labels.at(i));
  }
  CHECK(digest(all.images) == "f6cff537deadc0d4");
  CHECK(digest(all.labels) == "cbf10106dff35900");
  CHECK_FALSE(glyphs(options, 8, 0, 24).images.same_bits(all.images));
  CHECK(glyphs(options, 7, std::uint64_t{1} << 40, 1).images.shape() == Shape{1, 40, 40, 1});
  CHECK(glyphs(options, 7, 0, 0).images.shape() == Shape{0, 40, 40, 1});
}

TEST_CASE("images: every run of glyphs has each class once, in an order that differs") {
  const LabelledImages all = glyphs({.size = 16, .classes = 29, .distractors = 0}, 1, 0, 87);
  CHECK(all.classes.size() == 29);
  CHECK(all.classes[9] == "9");
  CHECK(std::set<std::string>(all.classes.begin(), all.classes.end()).size() == 29);
  std::set<std::vector<double>> orders;
  for (std::int64_t run = 0; run < 3; ++run) {
    const std::vector<double> labels = rows(all.labels, 29 * run, 29 * (run + 1)).to_vector();
    CHECK(std::set<double>(labels.begin(), labels.end()).size() == 29);
    orders.insert(labels);
  }
  CHECK(orders.size() == 3);
}

TEST_CASE("images: distractors are added to the same glyph, and a stroke's ink grows with its thickness") {
  const Array with = glyphs({}, 2, 0, 20).images, without = glyphs(bare(), 2, 0, 20).images;
  int more = 0;
  for (std::int64_t i = 0; i < with.size(); ++i) {
    CHECK_FALSE(with.at(i) < without.at(i));
    more += with.at(i) > without.at(i);
  }
  CHECK(more > 20 * 4 * 4);
  const double thin = sum_of(glyphs(bare({.thinnest = 0.05, .thickest = 0.05}), 2, 0, 20).images),
               thick = sum_of(glyphs(bare({.thinnest = 0.1, .thickest = 0.1}), 2, 0, 20).images);
  CHECK(thick / thin > 1.7);
  CHECK(thick / thin < 2.05);
}

TEST_CASE("images: glyphs of a class are alike, those of two are not: the nearest mean finds nearly all") {
  // One size, no turning: what differs is the hand. Where it is placed is taken out by the means of its coordinates.
  const GlyphOptions still =
      bare({.smallest = 0.6, .largest = 0.6, .rotation = 0, .shear = 0, .thinnest = 0.08, .thickest = 0.08});
  const auto centred = [](const LabelledImages& all) {
    std::vector<std::vector<double>> out;
    for (std::int64_t i = 0; i < all.labels.size(); ++i) {
      double mass = 0, x = 0, y = 0;
      const std::vector<double> v = rows(all.images, i, i + 1).to_vector();
      for (std::size_t p = 0; p < v.size(); ++p)
        mass += v[p], x += v[p] * static_cast<double>(p % 40), y += v[p] * static_cast<double>(p / 40);
      const auto dx = static_cast<std::int64_t>(x / mass + 0.5) - 20,
                 dy = static_cast<std::int64_t>(y / mass + 0.5) - 20;
      std::vector<double> moved(1600);
      for (std::int64_t r = 0; r < 40; ++r)
        for (std::int64_t c = 0; c < 40; ++c)
          if (r + dy >= 0 && r + dy < 40 && c + dx >= 0 && c + dx < 40)
            moved[static_cast<std::size_t>(r * 40 + c)] = v[static_cast<std::size_t>((r + dy) * 40 + c + dx)];
      out.push_back(moved);
    }
    return out;
  };
  const LabelledImages training = glyphs(still, 1, 0, 100), test = glyphs(still, 2, 0, 50);
  std::vector<std::vector<double>> means(10, std::vector<double>(1600));
  const auto known = centred(training), asked = centred(test);
  for (std::size_t i = 0; i < known.size(); ++i)
    for (std::size_t p = 0; p < 1600; ++p)
      means[static_cast<std::size_t>(training.labels.at(static_cast<std::int64_t>(i)))][p] +=
          known[i][p] / 10;
  int right = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::size_t best = 0;
    double least = 1e300;
    for (std::size_t c = 0; c < 10; ++c) {
      double distance = 0;
      for (std::size_t p = 0; p < 1600; ++p)
        distance += (asked[i][p] - means[c][p]) * (asked[i][p] - means[c][p]);
      if (distance < least) least = distance, best = c;
    }
    right += best == static_cast<std::size_t>(test.labels.at(static_cast<std::int64_t>(i)));
  }
  CHECK(right >= 45);
}

TEST_CASE(
    "images: a placed digit depends on digits, options, seed and number alone, and each digit comes once a run") {
  const LabelledImages digits = digits28(), all = placed(digits, {}, 4, 0, 60);
  check_in_unit(all.images);
  CHECK(all.classes == digits.classes);
  for (std::int64_t i = 0; i < 60; ++i) CHECK(all.labels.at(i) == digits.labels.at(i % 50));
  for (const std::int64_t i : {0, 31, 59})
    CHECK(
        placed(digits, {}, 4, static_cast<std::uint64_t>(i), 1).images.same_bits(rows(all.images, i, i + 1)));
  CHECK_FALSE(rows(all.images, 0, 1).same_bits(rows(all.images, 50, 51)));  // the same digit, placed anew
  CHECK(digest(all.images) == "581b59213ac484e3");
}

TEST_CASE("images: a placed digit has the height that is asked for, wherever and however it is turned") {
  const Array all = placed(squares(), bare({.smallest = 0.5, .largest = 0.5}), 1, 0, 40).images;
  for (std::int64_t i = 0; i < 40; ++i) {
    // 20 pixels high and wide; its edge is soft, a source pixel wide, half of that outside.
    const double area = sum_of(rows(all, i, i + 1));
    CHECK(area > 0.98 * 20 * 20);
    CHECK(area < 1.02 * 20 * 20);
  }
  // All of the image is used: some lie at each of its sides.
  double left = 0, right = 0;
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t y = 0; y < 40; ++y)
      left += all.at((i * 40 + y) * 40 + 5), right += all.at((i * 40 + y) * 40 + 34);
  CHECK(left > 20);
  CHECK(right > 20);
  const Array with = placed(squares(), {}, 1, 0, 10).images,
              without = placed(squares(), bare(), 1, 0, 10).images;
  for (std::int64_t i = 0; i < with.size(); ++i) CHECK_FALSE(with.at(i) < without.at(i));
  CHECK(sum_of(with) > sum_of(without) + 10 * 4 * 4);
}

TEST_CASE("images: characters that cannot be drawn are refused") {
  CHECK_THROWS_WITH_AS(glyphs({.classes = 30}, 1, 0, 1),
                       "[glyphs] there are 1 to 29 classes; 30 were asked for", ConfigError);
  for (const GlyphOptions& o : {GlyphOptions{.size = 4},
                                {.classes = 0},
                                {.classes = 1},
                                {.distractors = -1},
                                {.smallest = 0.9, .largest = 0.5},
                                {.rotation = NAN},
                                {.thinnest = 0},
                                {.jitter = 3}})
    CHECK_THROWS_AS(glyphs(o, 1, 0, 1), ConfigError);
  CHECK_THROWS_AS(glyphs({}, 1, 0, -1), ConfigError);
  LabelledImages digits = squares();
  digits.labels = Array::zeros(DType::i32, {4});
  CHECK_THROWS_AS(placed(digits, {}, 1, 0, 1), ConfigError);
  CHECK(placed(digits, bare(), 1, 0, 1).labels.at(0) == 0);
  digits.labels = Array::zeros(DType::i32, {3});
  CHECK_THROWS_AS(placed(digits, bare(), 1, 0, 1), ShapeError);
}
