// Does a model read a sequence that is cut in time, or packed with others, as it reads the whole? The stream is told whether it was
// asked anything (Stream::heeds_cut, has_looked), and a Trainer refuses a model that asked nothing; whether it asked for all that it
// needs, numbers say. Both belong in a test of every model of one's own that is trained so, beside check_decoding.
#pragma once

#include "models/decoder.h"

namespace nestgrad {

// Reads random tokens once as a whole, and once in so many slices of each sequence (TrainingOptions::slices), which must divide
// options.tokens, each by a thread. ConfigError where the answers differ: it says from which token on, and by how much.
void check_slices(const LogitsFn& model, std::int64_t slices, const CheckDecodingOptions& options = {});

// Reads two random documents once each by itself, and once packed into one sequence of options.tokens (TrainingOptions::pack), the second
// of which begins at a multiple of `align`. ConfigError as above.
void check_packing(const LogitsFn& model, std::int64_t align, const CheckDecodingOptions& options = {});

}  // namespace nestgrad
