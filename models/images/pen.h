// A pen that writes characters: what glyphs.cpp and invented.cpp share. Not for use outside this folder.
#pragma once

#include <vector>

#include "models/images/canvas.h"
#include "models/images/glyph_table.h"

namespace nestgrad::detail {

using Line = std::vector<Point>;  // a pen's way, as points that lines join

// A character as a hand writes it, 1 high, its middle at 0. Points of different strokes that coincide are moved
// together.
std::vector<Line> written(const Character& character, double jitter, Draws& draws);

Line transformed(const Affine& pose, const Line& line);

double squared_distance_to_segment(Point p, Point a, Point b);

// A character of a random height, lean and angle, and how far it reaches around 0, where its pose puts it.
struct Posed {
  Affine pose;
  double left = 1e9, right = -1e9, top = 1e9, bottom = -1e9;
};
Posed posed(const std::vector<Line>& lines, const GlyphOptions& options, Draws& draws);

// Where ink may come to lie, and how near to it each pixel's centre is.
class Ink {
 public:
  explicit Ink(std::int64_t size);  // of a square image, in pixels

  // A stroke, `half` pixels thick on either side of the line, into image [size, size]. Ink is full up to half a pixel within its
  // edge, and none from half a pixel outside.
  void draw(const Line& line, double half, float* image);

 private:
  std::int64_t bound(double at) const;
  std::int64_t size_;
  std::vector<double> squared_;
};

}  // namespace nestgrad::detail
