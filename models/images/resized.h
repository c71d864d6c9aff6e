// Images of another size.
#pragma once

#include "engine/core/array.h"

namespace nestgrad {

// images: f32 [.., height, width, channels] with any number of axes before; the same with this height and width. An
// axis that becomes shorter, or stays, is averaged over areas: an output pixel is the mean of what it covers. One that
// becomes longer is interpolated linearly between the centres of pixels, and constant beyond the outermost. The mean of
// an averaged image is that of the image. Sums are of f64, in the order of the pixels. ShapeError unless there are
// three axes and no size is 0, DTypeError unless f32.
Array resized(const Array& images, std::int64_t height, std::int64_t width);

}  // namespace nestgrad
