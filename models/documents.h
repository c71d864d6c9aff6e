// Documents of a text, packed into windows: several one after the other, each read as if nothing came before it
// (ttt/stream.h: Stream::pack).
#pragma once

#include "models/data.h"

namespace nestgrad {

// Windows of documents. A document begins at a multiple of `align` tokens; what is left until the next one is filled with
// newlines, which count as a part of the document but are no one's target.
struct PackedWindows {
  Array tokens;  // i32 [n, context + 1]
  Array places;  // f32 [n, context]: each token's place in its document, 0, 1, 2, ..
  Array
      counted;  // f32 [n, context]: 1 where the token behind is of the same document, so that it can be predicted
};

// Documents drawn at random until each window is full; of one that is longer than what is left, a part from a random
// byte on. Row r depends only on (split, seed, step, r). ConfigError where the part has no document of two bytes, or
// align is no number from 1 to context.
PackedWindows packed_batch(const ByteCorpus& corpus, Split split, std::uint64_t step, std::int64_t batch,
                           std::int64_t context, std::int64_t align, std::uint64_t seed);

// At most max_windows windows of the validation documents in their order, long ones in several parts; the same for every
// run. Errors as above.
PackedWindows packed_validation(const ByteCorpus& corpus, std::int64_t context, std::int64_t align,
                                std::int64_t max_windows);

}  // namespace nestgrad
