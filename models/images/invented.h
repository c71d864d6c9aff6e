// Characters that nobody writes, as many as are wanted: for learning new classes from few images, without a download.
#pragma once

#include <cstdint>

#include "engine/core/array.h"

namespace nestgrad {

// Character `character` of an alphabet, in the hand number `hand`: f32 [size, size, 1], values in [0, 1] on a ground of 0. A
// character is two to four strokes through random points, some of which begin where another ends; a hand moves the points a
// little, turns and leans it, and has a thickness. It depends on these four numbers alone. ConfigError for a size that makes no
// sense.
Array invented(std::uint64_t alphabet, std::uint64_t character, std::uint64_t hand, std::int64_t size = 28);

}  // namespace nestgrad
