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

// All numbers of one kind that a row has ("loss, noise" and "loss, fog" are losses), together: the geometric mean of the ratios
// of their means, again by first.
struct Moved {
  std::string row, kind;
  std::size_t numbers = 0;
  double ratio = 1;
};

struct Agreement {
  std::vector<ComparedNumber> numbers;  // all that both have, of two seeds at least
  std::vector<ComparedNumber> apart;    // those whose means differ: p below kLevel
  std::size_t varying = 0;              // of all: those that differ between seeds
  std::size_t overlapping = 0;          // of these: the 95 % t-intervals of the two means overlap
  std::size_t same = 0;                 // of those that do not vary: they are the same in both
  // How far a mean must be away, by its size, to be found four times in five: the median of those that vary. NaN of none.
  double least_found = 0;
  std::vector<Moved>
      moved;  // by a factor of kFactor at least. No test: few seeds find no factor of two in one number
};
inline constexpr double kFactor = 1.5;

// ConfigError where the two cannot be compared: of other experiments or extents, on other data, or with a seed in common.
Agreement agreement_of(const Journal& first, const Journal& again);

// "40 numbers in both: of 38 that vary 37 have overlapping intervals, of 2 that do not 2 are the same; no means differ"
std::string text_of(const Agreement& agreement);

// In Markdown: that sentence, what could have been found, the verdict of each claim in both, the numbers whose means differ, and
// what has moved.
std::string markdown_of(const Journal& first, const Journal& again);

}  // namespace nestgrad::reproduce
