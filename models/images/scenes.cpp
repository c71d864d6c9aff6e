#include "models/images/scenes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "models/images/draws.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

using detail::Draws;
using V = Vector3;

constexpr std::uint32_t kThings = 0x73'63'65'01, kAround = 0x73'63'65'02, kCamera = 0x73'63'65'03,
                        kOwn = 0x73'63'65'04;  // purposes of draws
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kPi = 3.14159265358979323846;
constexpr double kSpread = 1.4;    // of things around the origin
constexpr double kDome = 5;        // radius
constexpr double kAmbient = 0.42;  // light that comes from everywhere
constexpr double kFade = 14;       // distance at which half of the colour is the sky's
constexpr double kNothing = 1e-6;  // a ray that starts from a surface does not meet it there

V operator+(V a, V b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
V operator-(V a, V b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
V operator*(double s, V a) { return {s * a.x, s * a.y, s * a.z}; }
double dot(V a, V b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
V cross(V a, V b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
V unit(V a) { return (1 / std::sqrt(dot(a, a))) * a; }
V mixed(V a, V b, double share) { return (1 - share) * a + share * b; }

// Turned into the axes of a box.
V into(const Box& box, V a) {
  return {box.cosine * a.x + box.sine * a.y, box.cosine * a.y - box.sine * a.x, a.z};
}
V out_of(const Box& box, V a) {
  return {box.cosine * a.x - box.sine * a.y, box.cosine * a.y + box.sine * a.x, a.z};
}

// A colour of this hue (0 to 1 around the circle), neither grey nor dark.
V hued(double hue, double saturation, double value) {
  const auto channel = [&](double turn) {
    double h = hue + turn;
    h = 6 * (h - std::floor(h));
    return value * (1 - saturation * std::clamp(std::abs(h - 3) - 1, 0.0, 1.0));
  };
  return {channel(0.5), channel(0.5 - 1.0 / 3), channel(0.5 + 1.0 / 3)};
}

// A sphere around things: a ray that misses it need not be tried with them.
struct Bound {
  V centre;
  double squared_radius;
  bool misses(V origin, V direction) const {
    const V to = centre - origin;
    const double along = dot(to, direction), squared = dot(to, to);
    return squared > squared_radius && (along < 0 || squared - along * along > squared_radius);
  }
};
Bound bound_of(const Box& box) { return {box.centre, dot(box.half, box.half)}; }
Bound bound_of(const Scene& scene) {
  Bound out{{0, 0, 0.5}, 0};
  double radius = 0;
  const auto include = [&](V centre, double own) {
    const V to = centre - out.centre;
    radius = std::max(radius, std::sqrt(dot(to, to)) + own);
  };
  for (const Sphere& sphere : scene.spheres) include(sphere.centre, sphere.radius);
  for (const Box& box : scene.boxes) include(box.centre, std::sqrt(dot(box.half, box.half)));
  out.squared_radius = radius * radius;
  return out;
}

// Whether the largest integer up to x is odd. (std::floor is a call on the oldest processors.) Far away it is as it may
// be.
bool is_odd(double x) {
  const auto whole = static_cast<std::int64_t>(std::clamp(x, -1e9, 1e9));
  return ((whole - (x < static_cast<double>(whole) ? 1 : 0)) & 1) != 0;
}

struct Hit {
  double distance = kInfinity;
  V normal, colour;
  bool is_object = false;
};

V normal_of(const Box& box, V at) {
  const V p = into(box, at - box.centre);
  const double x = std::abs(p.x) / box.half.x, y = std::abs(p.y) / box.half.y, z = std::abs(p.z) / box.half.z;
  if (x >= y && x >= z) return out_of(box, {p.x < 0 ? -1.0 : 1.0, 0, 0});
  if (y >= z) return out_of(box, {0, p.y < 0 ? -1.0 : 1.0, 0});
  return {0, 0, p.z < 0 ? -1.0 : 1.0};
}

Hit nearest(const Scene& scene, const Bound& all, V origin, V direction) {
  Hit hit;
  if (direction.z < 0) {
    hit.distance = -origin.z / direction.z;
    const double x = origin.x + hit.distance * direction.x, y = origin.y + hit.distance * direction.y;
    hit.normal = {0, 0, 1};
    hit.colour = scene.floor[is_odd(x) != is_odd(y)];
  }
  if (all.misses(origin, direction)) return hit;
  for (const Sphere& sphere : scene.spheres)
    if (const double d = distance_along(sphere, origin, direction); d < hit.distance)
      hit = {d, unit(origin + d * direction - sphere.centre), sphere.colour, true};
  const Box* box = nullptr;
  for (const Box& one : scene.boxes)
    if (const double d = distance_along(one, origin, direction); d < hit.distance)
      hit.distance = d, hit.colour = one.colour, hit.is_object = true, box = &one;
  if (box != nullptr) hit.normal = normal_of(*box, origin + hit.distance * direction);
  return hit;
}

bool is_dark(const Scene& scene, const Bound& all, V at) {
  if (all.misses(at, scene.to_light)) return false;
  for (const Sphere& sphere : scene.spheres)
    if (distance_along(sphere, at, scene.to_light) < kInfinity) return true;
  for (const Box& box : scene.boxes)
    if (distance_along(box, at, scene.to_light) < kInfinity) return true;
  return false;
}

V seen(const Scene& scene, const Bound& all, V origin, V direction, bool& is_object) {
  const Hit hit = nearest(scene, all, origin, direction);
  is_object = hit.is_object;
  if (hit.distance == kInfinity) return scene.sky;
  double light = std::max(dot(hit.normal, scene.to_light), 0.0);
  if (light > 0 && is_dark(scene, all, origin + hit.distance * direction + 1e-4 * hit.normal)) light = 0;
  const double haze = hit.distance * hit.distance / (hit.distance * hit.distance + kFade * kFade);
  return mixed((kAmbient + (1 - kAmbient) * light) * hit.colour, scene.sky, haze);
}

// Direction of the ray through a point of the picture, as shares of its width and height.
V through(const Camera& c, double x, double y) {
  return unit(c.forward + (c.half_width * (2 * x - 1)) * c.right + (c.half_width * (2 * y - 1)) * c.down);
}

// size x size pixels.
void draw(const Scene& scene, const Camera& camera, std::int64_t size, float* image, float* rays,
          float* mask) {
  const double side = static_cast<double>(size);
  const Bound all = bound_of(scene);
  for (std::int64_t row = 0; row < size; ++row)
    for (std::int64_t column = 0; column < size; ++column) {
      const auto x = static_cast<double>(column), y = static_cast<double>(row);
      V sum;
      bool any = false;
      for (int sample = 0; sample < 4; ++sample) {
        bool is_object = false;
        const double dx = sample % 2 == 0 ? 0.25 : 0.75, dy = sample < 2 ? 0.25 : 0.75;
        sum = sum +
              seen(scene, all, camera.origin, through(camera, (x + dx) / side, (y + dy) / side), is_object);
        any = any || is_object;
      }
      for (const double v : {sum.x, sum.y, sum.z}) *image++ = static_cast<float>(std::min(0.25 * v, 1.0));
      const V o = camera.origin, d = through(camera, (x + 0.5) / side, (y + 0.5) / side);
      for (const double v : {o.x, o.y, o.z, d.x, d.y, d.z}) *rays++ = static_cast<float>(v);
      *mask++ = any ? 1.0f : 0.0f;
    }
}

void check_size(const char* who, std::int64_t size) {
  if (size < 1 || size > 4096)
    throw ConfigError(
        fmt::format("[{}] a picture must be 1 to 4096 pixels high; {} were asked for", who, size));
}

}  // namespace

double distance_along(const Sphere& sphere, const Vector3& origin, const Vector3& direction) {
  const V to = sphere.centre - origin;
  const double b = dot(to, direction), c = dot(to, to) - sphere.radius * sphere.radius, d = b * b - c;
  if (d < 0) return kInfinity;
  const double root = std::sqrt(d);
  if (b - root > kNothing) return b - root;
  return b + root > kNothing ? b + root : kInfinity;
}

double distance_along(const Box& box, const Vector3& origin, const Vector3& direction) {
  if (bound_of(box).misses(origin, direction)) return kInfinity;
  const V o = into(box, origin - box.centre), d = into(box, direction);
  double enter = -kInfinity, leave = kInfinity;
  const auto slab = [&](double from, double along, double half) {
    if (along == 0) {
      if (std::abs(from) > half) leave = -kInfinity;
      return;
    }
    const double per = 1 / along, a = (-half - from) * per, b = (half - from) * per;
    enter = std::max(enter, std::min(a, b));
    leave = std::min(leave, std::max(a, b));
  };
  slab(o.x, d.x, box.half.x), slab(o.y, d.y, box.half.y), slab(o.z, d.z, box.half.z);
  if (enter > leave || leave <= kNothing) return kInfinity;
  return enter > kNothing ? enter : leave;
}

Scene scene(std::uint64_t seed, std::uint64_t index) {
  constexpr int kTries = 60;
  Draws things(seed, kThings, index), around(seed, kAround, index);
  Scene out;
  const int count = 3 + things.below(3), spheres = 1 + things.below(count - 1);
  const double hue = things.unit();
  std::vector<V> taken;  // x, y, and the radius of what surrounds it
  for (int i = 0; i < count; ++i) {
    const bool round = i < spheres;
    const double a = things.between(0.38, 0.72), b = things.between(0.3, 0.6), c = things.between(0.3, 0.75);
    double turn_cosine, turn_sine;
    cos_sin_of_turns(things.unit(), turn_cosine, turn_sine);
    // Hues are spread over the circle, so that things differ.
    const double own = hue + (i + things.around(0.3)) / count, saturation = things.between(0.65, 0.95);
    const V colour = hued(own, saturation, things.between(0.75, 1));
    double radius = round ? a : std::sqrt(a * a + b * b);
    V place;
    bool free = false;
    for (int tries = 0; tries < kTries && !free; ++tries) {
      const double spread = kSpread * (1 + 0.03 * tries);  // further away where there is no room
      place = {things.around(spread), things.around(spread), 0};
      free = std::ranges::all_of(taken, [&](V other) {
        const double dx = place.x - other.x, dy = place.y - other.y, apart = radius + other.z + 0.05;
        return dx * dx + dy * dy > apart * apart;
      });
    }
    if (!free) place = {3 * kSpread + 2.0 * i, 0, 0};  // beyond all others
    taken.push_back({place.x, place.y, radius});
    if (round) out.spheres.push_back({{place.x, place.y, a}, a, colour});
    else out.boxes.push_back({{place.x, place.y, c}, {a, b, c}, turn_cosine, turn_sine, colour});
  }
  double cosine, sine;
  cos_sin_of_turns(around.unit(), cosine, sine);
  out.to_light = unit({cosine, sine, around.between(0.9, 1.8)});
  const double floor_hue = around.unit(), bright = around.between(0.7, 0.95);
  out.floor[0] = hued(floor_hue, 0.2, bright);
  out.floor[1] = hued(floor_hue, 0.35, 0.5 * bright);
  out.sky = hued(around.between(0.5, 0.65), 0.3, 0.9);
  return out;
}

Camera camera(std::uint64_t seed, std::uint64_t index, std::uint64_t view) {
  Draws scene(seed, kCamera, index);
  const double side = scene.unit(), begin = scene.unit();
  // Multiples of the golden ratio spread evenly over any interval, however many there are.
  constexpr double kGolden = 0.61803398874989484820;
  double share = begin + kGolden * static_cast<double>(view);
  share -= std::floor(share);
  Draws own(seed, kOwn, index ^ (view + 1) * 0x9E3779B97F4A7C15ULL);
  const double around = 2 * kPi * side + (share - 0.5) * (2 * kPi / 3),
               up = own.between(25, 60) * (kPi / 180);
  Camera out;
  out.origin = kDome * V{m::cos(around) * m::cos(up), m::sin(around) * m::cos(up), m::sin(up)};
  const V target{own.around(0.2), own.around(0.2), own.between(0.2, 0.5)};
  out.forward = unit(target - out.origin);
  out.right = unit(cross(out.forward, {0, 0, 1}));
  out.down = cross(out.forward, out.right);
  return out;
}

RenderedView render(const Scene& scene, const Camera& camera, std::int64_t size) {
  check_size("render", size);
  RenderedView out{Array(DType::f32, {size, size, 3}), Array(DType::f32, {size, size, 6}),
                   Array(DType::f32, {size, size, 1})};
  draw(scene, camera, size, out.image.as<float>().data(), out.rays.as<float>().data(),
       out.object_mask.as<float>().data());
  return out;
}

SceneViews scene_views(std::uint64_t seed, std::uint64_t first, std::int64_t scenes, std::int64_t views,
                       std::int64_t size) {
  check_size("scene_views", size);
  if (scenes < 0 || views < 1)
    throw ConfigError(fmt::format("[scene_views] {} scenes of {} views cannot be drawn", scenes, views));
  const auto array = [&](std::int64_t channels) {
    return Array(DType::f32, {scenes, views, size, size, channels});
  };
  SceneViews out{array(3), array(6), array(1)};
  float *const images = out.images.as<float>().data(), *const rays = out.rays.as<float>().data(),
               *const masks = out.masks.as<float>().data();
  in_parallel(static_cast<int>(scenes), thread_count(), [&](int i, int) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    const Scene drawn = scene(seed, index);
    for (std::int64_t view = 0; view < views; ++view) {
      const std::int64_t pixels = (i * views + view) * size * size;
      draw(drawn, camera(seed, index, static_cast<std::uint64_t>(view)), size, images + 3 * pixels,
           rays + 6 * pixels, masks + pixels);
    }
  });
  return out;
}

}  // namespace nestgrad
