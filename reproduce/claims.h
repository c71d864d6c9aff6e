// What the runs say of what was declared. All claims of an experiment are one family: their p-values are adjusted together
// (Holm 1979), so that of a table without any effect at most 5 % show one. That is what a t-test promises of numbers that vary
// by chance; where all seeds show the very same number it knows nothing of how they vary, and only their signs count: p is 2^-n
// of n seeds, so three seeds that agree decide nothing.
//
// A run that diverged or is missing has no number: what is claimed of a seed is NaN where a run that it needs has none, and
// the seed is left out. What was found then says how many are left; of less than half of them nothing is decided.
#pragma once

#include <optional>

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

enum class Verdict : std::uint8_t {
  holds,
  open,   // the runs decide neither for the claim nor against it: not reproduced at this scale
  fails,  // they decide against it
};
const char* text_of(Verdict verdict);

inline constexpr double kLevel = 0.05;  // of a family

struct JudgedClaim {
  std::string text;
  Evidence evidence;
  double p = 1, against = 1;  // adjusted
  Verdict verdict = Verdict::open;
};
// A claim whose test throws is open, with what it said.
std::vector<JudgedClaim> judge(const Results& results);

// The claims that there are. `number` is what Measured::numbers calls it, `text` what is claimed, in words.

// Row a has less of it than row b, by more than `by`: a paired t-test of a - b + by.
DeclaredClaim below(std::string a, std::string b, std::string number, std::string text, double by = 0);
// The two differ by less than `margin`: two one-sided tests (Schuirmann 1987).
DeclaredClaim within(std::string a, std::string b, std::string number, double margin, std::string text);
// The mean over seeds of what `fn` makes of each seed's runs is below 0, by more than `by`; fn gives NaN where a run is
// missing. What it gives is what is shown: a cost that is to stay below one is claimed with by = -1.
using OfSeed = std::function<double(const Results& results, std::uint64_t seed)>;
DeclaredClaim negative(std::string text, std::string unit, OfSeed fn, double by = 0);
// `fn` is below 0 for more seeds than above: a sign test, for counts and for runs that may break. shown: what was counted.
DeclaredClaim mostly_negative(std::string text, OfSeed fn,
                              std::function<std::string(const Results& results)> shown);
// Not a matter of chance: true for every seed, or false. `fn` says what it saw. Open while runs are still to be made, and
// where it would hold but for runs that diverged.
struct Exact {
  std::optional<bool> holds;  // nothing: no run tells
  std::string shown;
  std::size_t diverged = 0;  // of the runs that it is about
};
DeclaredClaim exact(std::string text, std::function<Exact(const Results& results)> fn);

// NaN where one is, which std::max would hide, and of none.
double largest_of(const std::vector<double>& numbers);
double least_of(const std::vector<double>& numbers);

// a - b, one by one. std::out_of_range where there are not as many of one as of the other.
std::vector<double> less(std::vector<double> a, const std::vector<double>& b);

// "1.234 +- 0.012", the 95 % t-interval of the mean; one number has none. "" of no numbers.
std::string mean_text(const std::vector<double>& numbers, int digits = 3);
// The same with a sign.
std::string change_text(const std::vector<double>& numbers, int digits = 3);
// The same of a - b, of the seeds that both have; "" where there are none.
std::string difference_text(const Results& results, const std::string& a, const std::string& b,
                            const std::string& number, int digits = 3);

// Adds the same to a picture; nothing where fewer than two seeds have both. reference: the paper's difference.
void add_difference(Intervals& picture, const Results& results, const std::string& a, const std::string& b,
                    const std::string& number, double reference = kUnknown);
// Adds their mean with its interval to a line; nothing of no numbers.
void add_mean(Series& line, double x, const std::vector<double>& numbers);
// The mean of curves at each x, without intervals; a line without points of no curves. std::out_of_range where one has not
// as many numbers as there are x.
Series mean_line(std::string name, const std::vector<double>& x,
                 const std::vector<std::vector<double>>& curves);
// One run's curve by steps: first, first + 1, ..
Series step_line(std::string name, const std::vector<double>& curve, int first = 1);

}  // namespace nestgrad::reproduce
