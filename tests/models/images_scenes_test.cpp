// Scenes, their cameras, and pictures by rays.
#include <cmath>

#include "engine/core/error.h"
#include "models/images/scenes.h"
#include "tests/models/images_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

double dot(const Vector3& a, const Vector3& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// Looks along x from far left, at the height 1.
Camera from_the_left() { return {{-4, 0, 1}, {0, -1, 0}, {0, 0, -1}, {1, 0, 0}}; }

Scene ball_on_grey() {
  Scene out;
  out.spheres = {{{0, 0, 1}, 0.5, {1, 0.5, 0.25}}};
  out.to_light = {0, 0, 1};
  out.floor[0] = out.floor[1] = {0.5, 0.5, 0.5};
  out.sky = {0, 0, 1};
  return out;
}

// Pixel (row, column) of a view of one size and so many channels.
std::vector<double> pixel(const Array& a, std::int64_t row, std::int64_t column) {
  std::vector<double> out;
  const std::int64_t channels = a.shape()[2];
  for (std::int64_t c = 0; c < channels; ++c)
    out.push_back(a.at((row * a.shape()[1] + column) * channels + c));
  return out;
}

}  // namespace

TEST_CASE("images: rays meet spheres and boxes where geometry says") {
  const Sphere ball{{0, 0, 1}, 0.5, {}};
  CHECK(distance_along(ball, {-4, 0, 1}, {1, 0, 0}) == 3.5);
  CHECK(distance_along(ball, {-4, 0, 1}, {-1, 0, 0}) == INFINITY);
  CHECK(distance_along(ball, {-4, 0, 1.6}, {1, 0, 0}) == INFINITY);
  CHECK(distance_along(ball, {0, 0, 1}, {0, 0, 1}) == 0.5);  // from inside
  CHECK(distance_along(ball, {-4, 0.3, 1}, {1, 0, 0}) == doctest::Approx(4 - 0.4));
  const Box straight{{0, 0, 1}, {1, 2, 1}, 1, 0, {}};
  CHECK(distance_along(straight, {-4, 1.9, 1}, {1, 0, 0}) == 3);
  CHECK(distance_along(straight, {-4, 2.1, 1}, {1, 0, 0}) == INFINITY);
  CHECK(distance_along(straight, {0, 0, 5}, {0, 0, -1}) == 3);
  CHECK(distance_along(straight, {0, 0, 5}, {0, 0, 1}) == INFINITY);
  const double half = std::sqrt(0.5);
  const Box turned{{0, 0, 1}, {1, 1, 1}, half, half, {}};
  CHECK(distance_along(turned, {-5, 0, 1}, {1, 0, 0}) == doctest::Approx(5 - std::sqrt(2)));
  CHECK(distance_along(turned, {-5, 1, 1}, {1, 0, 0}) == doctest::Approx(5 - (std::sqrt(2) - 1)));
}

TEST_CASE(
    "images: a view's rays are its camera's, its mask is where things are, its colours are those of light") {
  constexpr std::int64_t kSize = 65;
  const Scene scene = ball_on_grey();
  const Camera camera = from_the_left();
  const RenderedView view = render(scene, camera, kSize);
  CHECK(pixel(view.rays, 32, 32) == std::vector<double>{-4, 0, 1, 1, 0, 0});
  for (std::int64_t row = 0; row < kSize; row += 8)
    for (std::int64_t column = 0; column < kSize; column += 8) {
      const std::vector<double> ray = pixel(view.rays, row, column);
      const Vector3 d{ray[3], ray[4], ray[5]};
      CHECK(dot(d, d) == doctest::Approx(1).epsilon(1e-6));
      const auto share = [&](std::int64_t at) { return (2 * static_cast<double>(at) + 1) / kSize - 1; };
      CHECK(dot(d, camera.right) / dot(d, camera.forward) ==
            doctest::Approx(0.52 * share(column)).epsilon(1e-5));
      CHECK(dot(d, camera.down) / dot(d, camera.forward) == doctest::Approx(0.52 * share(row)).epsilon(1e-5));
      // A pixel whose centre's ray meets the ball well inside of it is masked, one that passes well beside is not.
      const double miss = std::sqrt(std::max(0.0, 16 - 16 * d.x * d.x));
      if (std::abs(miss - 0.5) > 0.05) CHECK(pixel(view.object_mask, row, column)[0] == (miss < 0.5 ? 1 : 0));
    }
  CHECK(pixel(view.object_mask, 32, 32)[0] == 1);
  const double radius = std::tan(std::asin(0.125)) / 0.52 * kSize / 2, disc = 3.14159 * radius * radius;
  CHECK(sum_of(view.object_mask) > 0.98 * disc);
  CHECK(sum_of(view.object_mask) < 1.15 * disc);

  // Of 1 x 1 pixels from straight above the ball: its top, all light. The samples are near to it.
  const Camera above{{0, 0, 5}, {1, 0, 0}, {0, -1, 0}, {0, 0, -1}, 1e-6};
  const double haze = 3.5 * 3.5 / (3.5 * 3.5 + 14 * 14);
  const std::vector<double> top = pixel(render(scene, above, 1).image, 0, 0);
  CHECK(top[0] == doctest::Approx(1 - haze).epsilon(1e-5));
  CHECK(top[1] == doctest::Approx(0.5 * (1 - haze)).epsilon(1e-5));
  CHECK(top[2] == doctest::Approx(0.25 * (1 - haze) + haze).epsilon(1e-5));
  // The floor below the ball lies in its shadow, that beside it in the light. Both from one height, along slanted rays.
  const auto floor_at = [&](double y) {
    const double c = std::sqrt(0.5);
    return pixel(render(scene, {{-2, y, 2}, {0, -1, 0}, {-c, 0, -c}, {c, 0, -c}, 1e-6}, 1).image, 0, 0)[0];
  };
  const double far = 8.0 / (8 + 14 * 14);
  CHECK(floor_at(1) == doctest::Approx(0.5 * (1 - far)).epsilon(1e-5));
  CHECK(floor_at(0.45) == doctest::Approx(0.42 * 0.5 * (1 - far)).epsilon(1e-5));
}

TEST_CASE("images: scenes have three to five things of both kinds, on the floor, none in another") {
  int things = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Scene s = scene(3, i);
    struct Disc {
      double x, y, radius;
    };
    std::vector<Disc> discs;
    for (const Sphere& b : s.spheres) {
      CHECK(b.centre.z == b.radius);
      discs.push_back({b.centre.x, b.centre.y, b.radius});
    }
    for (const Box& b : s.boxes) {
      CHECK(b.centre.z == b.half.z);
      discs.push_back({b.centre.x, b.centre.y, std::hypot(b.half.x, b.half.y)});
    }
    CHECK_FALSE(s.spheres.empty());
    CHECK_FALSE(s.boxes.empty());
    CHECK(discs.size() >= 3);
    CHECK(discs.size() <= 5);
    things += static_cast<int>(discs.size());
    for (std::size_t a = 0; a < discs.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        CHECK(std::hypot(discs[a].x - discs[b].x, discs[a].y - discs[b].y) >
              discs[a].radius + discs[b].radius);
    CHECK(dot(s.to_light, s.to_light) == doctest::Approx(1));
    CHECK(s.to_light.z > 0);
  }
  CHECK(things > 3.8 * 200);
  CHECK(things < 4.2 * 200);
}

TEST_CASE("images: cameras stand on a dome, within 120 degrees, upright, and look at the middle") {
  for (std::uint64_t i = 0; i < 20; ++i)
    for (std::uint64_t view = 0; view < 6; ++view) {
      const Camera c = camera(3, i, view), other = camera(3, i, (view + 1) % 6);
      CHECK(dot(c.origin, c.origin) == doctest::Approx(25));
      CHECK(c.origin.z > 5 * std::sin(24.9 * 3.14159 / 180));
      CHECK(c.origin.z < 5 * std::sin(60.1 * 3.14159 / 180));
      for (const auto& [a, b] : {std::pair{c.right, c.down}, {c.right, c.forward}, {c.down, c.forward}})
        CHECK(std::abs(dot(a, b)) < 1e-12);
      CHECK(c.right.z == 0);
      CHECK(c.down.z < 0);
      // 120 degrees or less apart around the vertical.
      const double cosine = (c.origin.x * other.origin.x + c.origin.y * other.origin.y) /
                            (std::hypot(c.origin.x, c.origin.y) * std::hypot(other.origin.x, other.origin.y));
      CHECK(cosine > -0.5 - 1e-9);
      // It passes the origin at less than .65.
      const double along = -dot(c.origin, c.forward);
      CHECK(25 - along * along < 0.65 * 0.65);
    }
}

TEST_CASE("images: a scene's views depend on seed and number alone") {
  const SceneViews all = scene_views(9, 100, 5, 3, 16);
  CHECK(all.images.shape() == Shape{5, 3, 16, 16, 3});
  CHECK(all.rays.shape() == Shape{5, 3, 16, 16, 6});
  CHECK(all.masks.shape() == Shape{5, 3, 16, 16, 1});
  check_in_unit(all.images);
  const SceneViews one = scene_views(9, 103, 1, 3, 16), few = scene_views(9, 103, 1, 2, 16);
  CHECK(one.images.same_bits(rows(all.images, 3, 4)));
  CHECK(one.rays.same_bits(rows(all.rays, 3, 4)));
  CHECK(one.masks.same_bits(rows(all.masks, 3, 4)));
  CHECK(few.images.reshaped({2, 16, 16, 3}).same_bits(rows(one.images.reshaped({3, 16, 16, 3}), 0, 2)));
  const RenderedView view = render(scene(9, 103), camera(9, 103, 1), 16);
  CHECK(view.image.same_bits(rows(one.images.reshaped({3, 16, 16, 3}), 1, 2).reshaped({16, 16, 3})));
  CHECK(digest(all.images) == "1b1a345b35539b89");
  CHECK(digest(all.rays) == "c404696d6648e26e");
  CHECK(digest(all.masks) == "1d1c97cc98339095");
  // Things are in sight everywhere, and do not fill a picture.
  const SceneViews many = scene_views(1, 0, 40, 4, 16);
  for (std::int64_t v = 0; v < 160; ++v)
    CHECK(sum_of(rows(many.masks.reshaped({160, 16, 16, 1}), v, v + 1)) > 8);
  const double share = sum_of(many.masks) / static_cast<double>(many.masks.size());
  CHECK(share > 0.15);
  CHECK(share < 0.45);
}

TEST_CASE("images: views that cannot be drawn are refused") {
  CHECK_THROWS_WITH_AS(render(ball_on_grey(), from_the_left(), 0),
                       "[render] a picture must be 1 to 4096 pixels high; 0 were asked for", ConfigError);
  CHECK_THROWS_AS(scene_views(1, 0, -1, 1, 8), ConfigError);
  CHECK_THROWS_AS(scene_views(1, 0, 1, 0, 8), ConfigError);
  CHECK_THROWS_AS(scene_views(1, 0, 1, 1, 5000), ConfigError);
}
