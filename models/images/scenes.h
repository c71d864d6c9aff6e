// Lit scenes of spheres and boxes on a checkered floor, and pictures of them by rays: for synthesis of views of which
// nothing need be downloaded. The floor is the plane z = 0, z points upwards; lengths are in the units of its checkers'
// sides.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/array.h"

namespace nestgrad {

struct Vector3 {
  double x = 0, y = 0, z = 0;
};

// Things lie on the floor and do not meet. Colours are red, green and blue from 0 to 1.
struct Sphere {
  Vector3 centre;
  double radius;
  Vector3 colour;
};
struct Box {
  Vector3 centre, half;  // half of its sides' lengths
  double cosine, sine;   // of the angle by which it is turned around the vertical
  Vector3 colour;
};
struct Scene {
  std::vector<Sphere> spheres;
  std::vector<Box> boxes;
  Vector3 to_light;       // unit; the light is infinitely far away
  Vector3 floor[2], sky;  // colours
};

// A pinhole. right, down and forward are unit vectors, each normal to the others.
struct Camera {
  Vector3 origin, right, down, forward;
  double half_width = 0.52;  // of the picture, at distance 1
};

struct RenderedView {
  Array image;  // f32 [height, width, 3]
  Array rays;   // f32 [height, width, 6]: origin and unit direction of the ray through each pixel's centre
  Array object_mask;  // f32 [height, width, 1]: 1 where a sphere or a box is seen, in a sample at least
};

// Scene `index` of a seed: three to five things, at least one of each kind, around the origin, with a light of its own.
Scene scene(std::uint64_t seed, std::uint64_t index);

// One of the cameras of scene `index`: on a dome of radius 5 over the origin, at which it looks nearly, from 25 to 60
// degrees above the floor. All cameras of a scene are within 120 degrees around the vertical, at a random side;
// consecutive ones are far from each other, and any number of them is spread evenly.
Camera camera(std::uint64_t seed, std::uint64_t index, std::uint64_t view);

// Diffuse light with shadows, and ambient light; what is far away fades into the sky. A pixel is the mean of two by two
// samples. ConfigError unless size is 1 to 4096.
RenderedView render(const Scene& scene, const Camera& camera, std::int64_t size);

// How far along a ray of unit direction it meets a thing (> 0); infinite where it does not.
double distance_along(const Sphere& sphere, const Vector3& origin, const Vector3& direction);
double distance_along(const Box& box, const Vector3& origin, const Vector3& direction);

// Scenes first, first + 1, .. from cameras 0 to views - 1 each.
struct SceneViews {
  Array images;  // f32 [scenes, views, size, size, 3]
  Array rays;    // f32 [scenes, views, size, size, 6]
  Array masks;   // f32 [scenes, views, size, size, 1]
};
// Scene i depends on (seed, i) alone, whatever else is drawn. ConfigError for counts that make no sense.
SceneViews scene_views(std::uint64_t seed, std::uint64_t first, std::int64_t scenes, std::int64_t views,
                       std::int64_t size);

}  // namespace nestgrad
