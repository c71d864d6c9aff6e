// Written characters without a download: strokes from a small table, drawn with a random hand at a random place; and
// the same trial with digits of a data set. For classifying where a plain digit in the middle is too easy.
#pragma once

#include <cstdint>

#include "models/images/labelled_images.h"

namespace nestgrad {

// What a drawn or placed character looks like. Lengths are shares of the image's side, angles are in radians.
struct GlyphOptions {
  std::int64_t size = 40;                  // height and width, in pixels
  int classes = 10;                        // glyphs: the first so many of "0" to "9", then letters; up to 29
  int distractors = 4;                     // fragments of other characters elsewhere in the image
  double smallest = 0.45, largest = 0.62;  // height of a character
  double rotation = 0.3;                   // up to it, to either side
  double shear = 0.25;  // likewise: how far the top leans, over the height. Not of placed digits
  double thinnest = 0.045, thickest = 0.085;  // stroke of a glyph
  double jitter = 0.025;  // glyphs: how far points of strokes are moved (standard deviation), over the height

  bool operator==(const GlyphOptions&) const = default;
};

// Images [count, size, size, 1] with numbers first, first + 1, ..: image i depends on options, seed and i alone,
// whatever else is drawn. Of images 0 to classes - 1, classes to 2 classes - 1, .. each run has every class once, in
// random order. ConfigError for options that make no sense.
//
//   const LabelledImages batch = glyphs({}, seed, step * 64, 64);
LabelledImages glyphs(const GlyphOptions& options, std::uint64_t seed, std::uint64_t first,
                      std::int64_t count);

// The same from digits (or other characters) of [n, height, width, 1] with ground 0, as read_mnist has them: image i
// has digit i mod n, so that every run of n images shows each of them once, at the i-th random place, height and angle.
// Distractors are round pieces of strokes of others with another label. options.classes, shear, thickness and jitter
// are not used. ShapeError unless there is one channel, ConfigError as above and where all digits have one label but
// distractors are wanted.
LabelledImages placed(const LabelledImages& digits, const GlyphOptions& options, std::uint64_t seed,
                      std::uint64_t first, std::int64_t count);

}  // namespace nestgrad
