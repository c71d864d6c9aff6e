// What a table with error bars needs: intervals, paired comparisons, and p-values for a whole table.
//
// The same numbers give the same bits on every processor: sums go in the order of the arguments, elementary
// functions are those of ops/numerics, random numbers are counter-based, and the C library's lgamma, exp and
// log, which differ in the last bits, are not called.
//
// Every number that is given must be finite. ValueError says which one is not, or that there are too few, or
// not as many of one as of the other; ConfigError is for what a caller chooses: a level, a margin, how many
// resamples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace nestgrad::reproduce {

// An estimate and the ends of its error bar, in the unit of what is estimated.
struct Interval {
  double estimate, low, high;
};

// ---- Student's t distribution, degrees >= 1 and finite, not only whole ones ----

// The probability of a value up to t, which may be infinite. In the lower tail its relative error is some
// 1e-14 (1 - log p), so that small p-values are p = 2 student_cdf(-|t|, ..).
double student_cdf(double t, double degrees);

// The value that is not exceeded with probability p, 0 < p < 1.
double student_quantile(double p, double degrees);

// ---- runs, one number each ----

// The mean of runs (seeds), with the interval in which the mean of all possible runs lies with probability
// `level`: mean -+ t s / sqrt(n), right for numbers that are normally distributed. At least 2 runs. Where all
// are equal it is a point, which says that nothing varied, and not that the mean is known.
Interval mean_interval(std::span<const double> x, double level = 0.95);

// Two ways compared in pairs: a[i] and b[i] share their seed, their data, or whatever else adds to both.
struct PairedDifference {
  Interval interval;  // of the mean of a - b
  double t;           // mean / (deviation / sqrt(pairs)); infinite where all differences are equal and not 0
  double p;           // two-sided, of a mean of 0
  double deviation;   // of the differences, with n - 1 below: the standard deviation of one pair
  std::size_t pairs;
};

// Student's paired test: the difference is significant where p is at most the level that was chosen before.
// In a table of several comparisons, give all p to holm() first. At least 2 pairs. Where all differences are
// equal the interval is a point: nothing is known of how they vary, so p is that of their signs alone, 2^(1 - pairs), or 1
// for differences of 0.
PairedDifference paired_difference(std::span<const double> a, std::span<const double> b, double level = 0.95);

// Are a and b the same but for less than `margin` (positive, in their unit)? The p-value of the claim that
// the mean of a - b lies inside of (-margin, margin): the larger one of two one-sided tests (Schuirmann 1987).
// Small is equivalent; a difference that is merely not significant shows no such thing. Where all differences
// are equal, p is that of as many signs, 2^-pairs, inside of the margin, and 1 at it and beyond.
double equivalence_p(std::span<const double> a, std::span<const double> b, double margin);

// The chance that `yes` or more of `all` fair coins show heads: the one-sided sign test, for counts and for differences
// without any spread. sign_test(3, 3) is 0.125: three pairs that agree are no proof.
double sign_test(std::size_t yes, std::size_t all);

// Do these differ by more than what rounding makes of equal numbers (1e-9 of the largest)?
bool varies(std::span<const double> x);
// Equal numbers where they do not.
std::vector<double> steady(std::vector<double> x);

// Two ways compared that share nothing, such as runs of one with other seeds.
struct UnpairedDifference {
  Interval interval;  // of the mean of a less that of b
  double t,
      degrees;  // degrees of freedom, no whole number; t is infinite where neither varies and they differ
  double p;     // two-sided, of equal means
};

// Welch's test (1947): the two may vary differently. At least 2 of each. Where neither varies the interval is a point, and p is that
// of the exact permutation test, 2 / C(runs of both, runs of a), or 1 for equal ones.
UnpairedDifference unpaired_difference(std::span<const double> a, std::span<const double> b,
                                       double level = 0.95);

// ---- several comparisons ----

// P-values of one table, adjusted so that calling those significant that are at most a level names any
// comparison without an effect with at most that probability, however they depend on each other (Holm 1979).
// In the order in which they were given. ValueError for what is no probability.
std::vector<double> holm(std::span<const double> p);

// ---- documents ----

// The percentile bootstrap (Efron 1979): documents are drawn again, as many as there are and with repetition,
// `resamples` times, and `level` of what the statistic makes of them lies inside of the interval. The
// estimate is the statistic of every document once, 0, 1, .. . For statistics that are no mean of
// independent numbers, such as a ratio of sums; with few documents, below some 30, it is too narrow.
//
// statistic(chosen): indices below `documents`, in no order; it is called from this thread, and throws
// ValueError out of here where it gives no finite number. Resample r is drawn from (seed, r) alone: more
// resamples begin with those of fewer. At least 2 documents, and ConfigError where less than one resample
// would lie beyond each end (below 40 for 0.95; some thousands are usual).
Interval bootstrap(std::size_t documents,
                   const std::function<double(std::span<const std::size_t> chosen)>& statistic, int resamples,
                   std::uint64_t seed, double level = 0.95);

// ---- does one number go with another? ----

// Spearman's rank correlation, -1 to 1; equal numbers share the mean of their ranks. As many x as y, at least
// 2; ValueError where all x or all y are equal, which have no order.
double spearman(std::span<const double> x, std::span<const double> y);

// Of the least squares line, in units of y by units of x. As many x as y, and two different x at least.
double slope(std::span<const double> x, std::span<const double> y);

}  // namespace nestgrad::reproduce
