// Pictures as PNG files (https://www.w3.org/TR/png-3/), read and written by libpng.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "engine/core/array.h"

namespace nestgrad {

// A picture as f32 [height, width, channels], each number a sample of the file over its largest: v / 255, or v / 65535
// of 16 bits. No gamma is applied.
//   grey                 one channel, of 1, 2, 4, 8 or 16 bits
//   colour, palette      three
//   alpha, transparency  is no channel: the picture is laid on black, each number times its alpha
// `what` names the bytes in error messages, usually a path. The bytes are not trusted: whatever they are, the result is
// an Array or an IoError of one line that says what is wrong and what to do. Checksums of all chunks are looked at;
// what stands behind the end of the picture is not. More than 2^24 pixels are
// refused.
Array parse_png(std::span<const std::byte> bytes, const std::string& what);
Array read_png(const std::string& path);

// The bytes of a PNG file, 8 bits a sample. image: f32 [height, width, channels] with 1 (grey) or 3 channels; values
// are clipped to [0, 1] and rounded to the nearest of 256. DTypeError, ShapeError (also for a picture without pixels),
// ValueError for NaN.
//
//   std::ofstream("glyph.png", std::ios::binary) << format_png(image);
std::string format_png(const Array& image);

}  // namespace nestgrad
