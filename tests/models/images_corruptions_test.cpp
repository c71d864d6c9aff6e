// Corrupted images, and copies that are a little different.
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "models/images/corruptions.h"
#include "models/images/glyphs.h"
#include "tests/models/images_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

double distance(const Array& a, const Array& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
  return std::sqrt(sum / static_cast<double>(a.size()));
}

Array grey(double value, std::int64_t side = 28) {
  return Array::full(DType::f32, {1, side, side, 1}, value);
}

// Higher than wide, three channels.
Array mixed_sizes() { return random_uniform({DType::f32, {4, 20, 14, 3}}, 0, 1, 2, 0); }

}  // namespace

TEST_CASE("images: every corruption is further from the image with every severity, and stays in [0, 1]") {
  REQUIRE(corruptions().size() == 8);
  const Array images = glyphs({.size = 28}, 1, 0, 40).images;
  for (const CorruptionRow& row : corruptions()) {
    CAPTURE(row.name);
    CHECK(corruption_named(row.name) == row.corruption);
    CHECK(name(row.corruption) == row.name);
    double before = 0.01;
    for (int severity = 1; severity <= 5; ++severity) {
      const Array bad = corrupted(images, row.corruption, severity, 3);
      check_in_unit(bad);
      const double now = distance(bad, images);
      CHECK(now > before);
      before = now;
    }
  }
}

TEST_CASE("images: a corrupted image depends on corruption, severity, seed and number alone") {
  const Array images = mixed_sizes();
  std::string digests;
  for (const CorruptionRow& row : corruptions()) {
    CAPTURE(row.name);
    const Array bad = corrupted(images, row.corruption, 3, 5, 10);
    for (const std::int64_t i : {0, 3})
      CHECK(corrupted(rows(images, i, i + 1), row.corruption, 3, 5, static_cast<std::uint64_t>(10 + i))
                .same_bits(rows(bad, i, i + 1)));
    digests += digest(bad) + " ";
  }
  CHECK(digests ==
        "95db711ffb66a856 b160986f791c8720 487d69179b4eb651 1b08a344862faddb 6d3661a37633f542 "
        "3889d49552111018 7dfe612a152572c5 0361bd19c36ef04a ");
}

TEST_CASE("images: corruptions do what they say") {
  const Array images = glyphs({.size = 28, .distractors = 0}, 1, 0, 6).images;
  const auto of = [](const Array& a, Corruption c, int severity) { return corrupted(a, c, severity, 1); };
  const Array pale = of(images, Corruption::low_contrast, 2),
              inverted = of(images, Corruption::inverted_ground, 5);
  for (std::int64_t i = 0; i < images.size(); ++i) {
    CHECK(pale.at(i) == doctest::Approx(0.25 + 0.5 * images.at(i)));
    CHECK(inverted.at(i) == doctest::Approx(1 - images.at(i)));
  }
  // Two of five parts are inverted: the first two from a side.
  CHECK(sum_of(of(grey(0, 30), Corruption::inverted_ground, 2)) == 0.4 * 900);
  // A bell leaves what is constant, and the sum of what lies far from the edges.
  CHECK(distance(of(grey(0.3), Corruption::blur, 5), grey(0.3)) < 1e-6);
  Array point = grey(0);
  point.as<float>()[14 * 28 + 14] = 1;
  const Array bell = of(point, Corruption::blur, 2);
  CHECK(sum_of(bell) == doctest::Approx(1).epsilon(1e-5));
  CHECK(bell.at(14 * 28 + 15) / bell.at(14 * 28 + 14) ==
        doctest::Approx(std::exp(-0.5 / 0.81)).epsilon(1e-5));
  CHECK(bell.at(14 * 28 + 13) == bell.at(14 * 28 + 15));
  // 0.08 of normal numbers.
  CHECK(distance(of(grey(0.5, 100), Corruption::noise, 1), grey(0.5, 100)) ==
        doctest::Approx(0.08).epsilon(0.03));
  // A grey square of .3 of the side.
  CHECK(sum_of(of(grey(0, 100), Corruption::occlusion, 3)) == doctest::Approx(0.5 * 900).epsilon(0.03));
  // From nothing to 0.6; half of it on the average.
  const std::vector<double> fog = of(grey(0, 100), Corruption::fog_ramp, 3).to_vector();
  CHECK(std::ranges::min(fog) < 0.006);
  CHECK(std::ranges::max(fog) > 0.594);
  CHECK(sum_of(of(grey(0, 100), Corruption::fog_ramp, 3)) == doctest::Approx(0.3 * 10000).epsilon(1e-4));
  CHECK(distance(of(grey(1), Corruption::fog_ramp, 5), grey(1)) < 1e-6);
  // Seven blocks of four pixels, each its mean.
  const Array blocks = of(images, Corruption::pixels, 4);
  CHECK(sum_of(blocks) == doctest::Approx(sum_of(images)).epsilon(1e-5));
  for (std::int64_t i = 0; i < blocks.size(); ++i)
    CHECK(blocks.at(i) == blocks.at(i / 112 * 112 + i % 28 / 4 * 4));
  // A cross: one of its lines is left, the other leans by 0.3.
  Array cross = grey(0, 41);
  for (std::size_t i = 0; i < 41; ++i) cross.as<float>()[20 * 41 + i] = cross.as<float>()[i * 41 + 20] = 1;
  const Array leaning = of(cross, Corruption::shear, 2);
  double straight = 0, slanted = 0;
  for (const bool upright : {false, true}) {
    const auto at = [&](std::int64_t along, std::int64_t aside) {
      return leaning.at(upright ? along * 41 + aside : aside * 41 + along);
    };
    double on_line = 0, on_slant = 0;
    for (const std::int64_t along : {0, 10, 30, 40}) {
      const double shift = 0.3 * static_cast<double>(along - 20);
      on_line += at(along, 20) / 4;
      on_slant += std::max(at(along, 20 + std::lround(shift)), at(along, 20 - std::lround(shift))) / 4;
    }
    straight = std::max(straight, on_line), slanted = std::max(slanted, on_slant);
  }
  CHECK(straight > 0.99);
  CHECK(slanted > 0.99);
}

TEST_CASE("images: augmented copies differ within their bounds, and depend on seed and number alone") {
  const Array image = rows(glyphs({}, 1, 0, 1).images, 0, 1).reshaped({40, 40, 1}),
              copies = repeated(image, 8);
  const Array all = augmented(copies, 6, 80);
  check_in_unit(all);
  CHECK(augmented(rows(copies, 0, 1), 6, 85).same_bits(rows(all, 5, 6)));
  CHECK_FALSE(rows(all, 0, 1).same_bits(rows(all, 1, 2)));
  CHECK(digest(all) == "7e76b69a2a43a216");
  CHECK(augmented(copies, 6, 80, {0, 0, 0, 0, 0}).same_bits(copies));

  // What is far from the edges keeps its sum where it is shifted alone, and its middle moves by no more than 3 pixels.
  Array dot = Array::zeros(DType::f32, {50, 30, 30, 1});
  for (std::size_t i = 0; i < 50; ++i) dot.as<float>()[i * 900 + 15 * 30 + 15] = 1;
  const Array moved = augmented(dot, 1, 0, {.shift = 0.1, .rotation = 0, .scale = 0});
  double furthest = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    double mass = 0, x = 0;
    for (std::int64_t p = 0; p < 900; ++p)
      mass += moved.at(i * 900 + p), x += moved.at(i * 900 + p) * static_cast<double>(p % 30);
    CHECK(mass == doctest::Approx(1).epsilon(1e-5));
    furthest = std::max(furthest, std::abs(x / mass - 15));
  }
  CHECK(furthest <= 3);
  CHECK(furthest > 2.5);
  // Turned by up to 0.5 around the middle: a point ten pixels above it goes aside by up to 10 sin 0.5.
  Array arm = Array::zeros(DType::f32, {50, 31, 31, 1});
  for (std::size_t i = 0; i < 50; ++i) arm.as<float>()[i * 961 + 5 * 31 + 15] = 1;
  const Array turned = augmented(arm, 1, 0, {.shift = 0, .rotation = 0.5, .scale = 0});
  double widest = 0;
  for (std::int64_t i = 0; i < 50; ++i)
    for (std::int64_t p = 0; p < 961; ++p)
      if (turned.at(i * 961 + p) > 0.2) widest = std::max(widest, std::abs(static_cast<double>(p % 31) - 15));
  CHECK(widest <= 10 * std::sin(0.5) + 1);
  CHECK(widest >= 4);
  CHECK(distance(augmented(grey(0.5), 1, 0, {0, 0, 0, 0, 0.1}), grey(0.5)) ==
        doctest::Approx(0.1).epsilon(0.1));
}

TEST_CASE("images: what cannot be corrupted is refused") {
  CHECK_THROWS_WITH_AS(corrupted(grey(0), Corruption::blur, 6, 1),
                       "[corrupted] severities are 1 to 5; 6 was asked for", ConfigError);
  CHECK_THROWS_WITH_AS(
      corruption_named("snow"),
      "[corruption] there is no 'snow'; need one of noise, blur, low_contrast, inverted_ground, shear, "
      "occlusion, fog_ramp, pixels",
      ConfigError);
  CHECK_THROWS_AS(corrupted(Array::zeros(DType::f32, {3, 3, 1}), Corruption::blur, 1, 1), ShapeError);
  CHECK_THROWS_AS(corrupted(Array::zeros(DType::f64, {1, 3, 3, 1}), Corruption::blur, 1, 1), DTypeError);
  CHECK_THROWS_AS(augmented(grey(0), 1, 0, {.shift = -1}), ConfigError);
  CHECK_THROWS_AS(augmented(grey(0), 1, 0, {.scale = 1}), ConfigError);
  CHECK_THROWS_AS(augmented(grey(0), 1, 0, {.rotation = NAN}), ConfigError);
  CHECK(corrupted(Array::zeros(DType::f32, {0, 3, 3, 1}), Corruption::pixels, 1, 1).size() == 0);
  CHECK(corrupted(Array::full(DType::f32, {1, 1, 1, 1}, 0.5), Corruption::pixels, 5, 1).at(0) == 0.5);
}
