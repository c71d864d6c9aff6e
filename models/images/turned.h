// Images in quarter turns: what a model that guesses how an image was turned learns from (models/vision/heads.h).
#pragma once

#include "engine/core/array.h"

namespace nestgrad {

// Image i of images, f32 [n, size, size, channels], turned counterclockwise by quarters[i] quarter turns, quarters i32 [n]
// from 0 to 3: no pixel changes its value. ShapeError for other shapes or images that are not square, DTypeError, ValueError
// for another number of quarters.
Array turned(const Array& images, const Array& quarters);

}  // namespace nestgrad
