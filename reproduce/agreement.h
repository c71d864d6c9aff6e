// Do two runs of an experiment, with other seeds, agree? Each number that a run measures is compared: the mean of one call's
// seeds with the mean of the other's.
#pragma once

#include <string>
#include <vector>

#include "reproduce/journal.h"

namespace nestgrad::reproduce {

struct ComparedNumber {
  std::string row, number;           // "MAML", "error, 1 step"
  std::vector<double> first, again;  // of the seeds of each
  double p = 1;                      // Welch's test of equal means, adjusted for all numbers (Holm)
};

struct Agreement {
  std::vector<ComparedNumber> numbers;  // all that both have, of two seeds at least
  std::vector<ComparedNumber> apart;    // those whose means differ: p below kLevel
  std::size_t overlapping = 0;          // of which the 95 % t-intervals of the two means overlap
};

// ConfigError where the two cannot be compared: of other experiments or extents, on other data, or with a seed in common.
Agreement agreement_of(const Journal& first, const Journal& again);

// "40 numbers in both, 39 with overlapping intervals, no means differ"
std::string text_of(const Agreement& agreement);

// In Markdown: that sentence, the verdict of each claim in both, and the numbers whose means differ.
std::string markdown_of(const Journal& first, const Journal& again);

}  // namespace nestgrad::reproduce
