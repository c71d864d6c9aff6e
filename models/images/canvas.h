// Where things are put on an image: what glyphs.cpp and placed.cpp share. Not for use outside this folder. Coordinates
// are in pixels from the upper left corner of the image; the centre of pixel (row, column) is (column + 1/2, row +
// 1/2).
#pragma once

#include <vector>

#include "models/images/draws.h"
#include "models/images/glyphs.h"

namespace nestgrad::detail {

struct Point {
  double x, y;
};

// p -> (xx p.x + xy p.y + x, yx p.x + yy p.y + y)
struct Affine {
  double xx = 1, xy = 0, yx = 0, yy = 1, x = 0, y = 0;
  Point operator()(Point p) const { return {xx * p.x + xy * p.y + x, yx * p.x + yy * p.y + y}; }
  Affine inverse() const;
};

// Scales, leans to the right by `shear` of the height, and turns clockwise by `angle` (radians), around the origin.
Affine turned(double scale_x, double scale_y, double shear, double angle);

// Smallest squared distance from p to any of the points; infinite for none.
double squared_distance(const std::vector<Point>& points, Point p);

// A random place for something of this radius, away from what is there: of sixteen drawn places the first that is at
// least `apart` from all points, or else the one that is furthest.
Point free_place(Draws& draws, const std::vector<Point>& there, double size, double radius, double apart);

// ConfigError in the name of `who` for options that make no sense.
void check_options(const GlyphOptions& options, const char* who);

}  // namespace nestgrad::detail
