#include "reproduce/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "engine/core/error.h"
#include "reproduce/statistics.h"
#include "ttt/claim.h"

namespace nestgrad::reproduce {

namespace {

// What fn makes of each seed, where it is a number: an infinity is no more one than NaN.
std::vector<double> known_of(const Results& results, const OfSeed& fn) {
  std::vector<double> out;
  for (const std::uint64_t seed : results.seeds())
    if (const double value = fn(results, seed); std::isfinite(value)) out.push_back(value);
  return out;
}

// The evidence of so many of all seeds.
Evidence of_pairs(Evidence e, std::size_t known, std::size_t all) {
  if (known == all) return e;
  e.shown += fmt::format("; {} of {} pairs: in the others a run diverged or is missing", known, all);
  if (2 * known < all) e.p = e.against = kUnknown;
  return e;
}

std::string shown_of(const std::vector<double>& values, const std::string& unit) {
  const std::string of_unit = unit.empty() ? "" : " " + unit;
  if (!varies(values)) return fmt::format("{:+.4f}{} in every pair", values.front(), of_unit);
  const Interval i = mean_interval(values);
  return fmt::format("{:+.4f} ± {:.4f}{}", i.estimate, (i.high - i.low) / 2, of_unit);
}

// Numbers that should be below -by.
Evidence evidence_of_negative(const std::vector<double>& values, const std::string& unit, double by) {
  const std::size_t n = values.size();
  if (n < 2) return {kUnknown, kUnknown, fmt::format("{} pairs of runs: too few for a test", n)};
  std::vector<double> x = values;
  for (double& v : x) v += by;
  const PairedDifference d = paired_difference(steady(x), std::vector<double>(n, 0.0));
  const double p = d.deviation > 0 || d.t == 0 ? d.p : sign_test(n, n);
  return d.t < 0 ? Evidence{p, 1, shown_of(values, unit)} : Evidence{1, p, shown_of(values, unit)};
}

double difference(const Results& results, const std::string& a, const std::string& b,
                  const std::string& number, std::uint64_t seed) {
  return results.number(a, seed, number) - results.number(b, seed, number);
}

// A test that cannot be made decides nothing.
Evidence evidence_of(const DeclaredClaim& claim, const Results& results) try {
  return claim.test(results);
} catch (const Error& e) {
  return {kUnknown, kUnknown, e.what()};
}

}  // namespace

const char* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::holds:
      return "holds";
    case Verdict::open:
      return "not reproduced at this scale";
    case Verdict::fails:
      return "contradicted";
  }
  return "";
}

std::vector<JudgedClaim> judge(const Results& results) {
  std::vector<JudgedClaim> out;
  std::vector<double> p, against;
  const auto number = [](double x) { return std::isnan(x) ? 1.0 : x; };
  for (const DeclaredClaim& claim : results.experiment().claims) {
    if (claim.full_only && !results.settings().full()) continue;
    out.push_back({claim.text, evidence_of(claim, results)});
    p.push_back(number(out.back().evidence.p));
    against.push_back(number(out.back().evidence.against));
  }
  p = holm(p), against = holm(against);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].p = p[i], out[i].against = against[i];
    out[i].verdict = p[i] < kLevel ? Verdict::holds : against[i] < kLevel ? Verdict::fails : Verdict::open;
  }
  return out;
}

DeclaredClaim below(std::string a, std::string b, std::string number, std::string text, double by) {
  return negative(
      std::move(text), "",
      [=](const Results& results, std::uint64_t seed) { return difference(results, a, b, number, seed); },
      by);
}

DeclaredClaim within(std::string a, std::string b, std::string number, double margin, std::string text) {
  return {
      std::move(text), [=](const Results& results) {
        const std::vector<double> apart = known_of(
            results, [&](const Results& r, std::uint64_t seed) { return difference(r, a, b, number, seed); });
        Evidence out = evidence_of_negative(apart, "", 0);
        if (apart.size() >= 2) {
          const std::vector<double> zero(apart.size(), 0.0);
          // Against: the difference is beyond the margin on the side where it is.
          std::vector<double> size = apart;
          if (mean_interval(apart).estimate < 0) size = less(zero, apart);
          out = {equivalence_p(steady(apart), zero, margin), evidence_of_negative(size, "", -margin).against,
                 fmt::format("{}, margin {}", out.shown, margin)};
        }
        return of_pairs(out, apart.size(), results.seeds().size());
      }};
}

DeclaredClaim negative(std::string text, std::string unit, OfSeed fn, double by) {
  return {std::move(text), [=](const Results& results) {
            const std::vector<double> values = known_of(results, fn);
            return of_pairs(evidence_of_negative(values, unit, by), values.size(), results.seeds().size());
          }};
}

DeclaredClaim mostly_negative(std::string text, OfSeed fn,
                              std::function<std::string(const Results& results)> shown) {
  return {
      std::move(text), [=](const Results& results) {
        const std::vector<double> values = known_of(results, fn);
        const auto below = static_cast<std::size_t>(
                       std::ranges::count_if(values, [](double x) { return x < 0; })),
                   above = static_cast<std::size_t>(
                       std::ranges::count_if(values, [](double x) { return x > 0; }));
        const Evidence e{sign_test(below, below + above), sign_test(above, below + above), shown(results)};
        return of_pairs(e, values.size(), results.seeds().size());
      }};
}

DeclaredClaim exact(std::string text, std::function<Exact(const Results&)> fn) {
  return {std::move(text), [=](const Results& results) {
            const Exact e = fn(results);
            if (!e.holds) return Evidence{kUnknown, kUnknown, e.shown.empty() ? "no runs" : e.shown};
            if (!results.complete()) return Evidence{kUnknown, kUnknown, e.shown + "; runs are missing"};
            if (*e.holds && e.diverged > 0)
              return Evidence{kUnknown, kUnknown, fmt::format("{}; {} diverged", e.shown, e.diverged)};
            return *e.holds ? Evidence{0, 1, e.shown} : Evidence{1, 0, e.shown};
          }};
}

double largest_of(const std::vector<double>& numbers) {
  double out = numbers.empty() ? kUnknown : numbers.front();
  for (const double x : numbers) out = worse(out, x);
  return out;
}

double least_of(const std::vector<double>& numbers) {
  return -largest_of(less(std::vector<double>(numbers.size(), 0.0), numbers));
}

std::vector<double> less(std::vector<double> a, const std::vector<double>& b) {
  if (a.size() != b.size()) throw std::out_of_range("less: not as many of one as of the other");
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

std::string mean_text(const std::vector<double>& numbers, int digits) {
  if (numbers.empty()) return "";
  if (numbers.size() == 1) return fmt::format("{:.{}f}", numbers[0], digits);
  const Interval i = mean_interval(numbers);
  return fmt::format("{:.{}f} ± {:.{}f}", i.estimate, digits, (i.high - i.low) / 2, digits);
}

std::string change_text(const std::vector<double>& numbers, int digits) {
  const std::string text = mean_text(numbers, digits);
  return text.empty() || text[0] == '-' ? text : "+" + text;
}

std::string difference_text(const Results& results, const std::string& a, const std::string& b,
                            const std::string& number, int digits) {
  const auto [of_a, of_b] = results.paired(a, b, number);
  return change_text(less(of_a, of_b), digits);
}

void add_difference(Intervals& picture, const Results& results, const std::string& a, const std::string& b,
                    const std::string& number, double reference) {
  const auto [of_a, of_b] = results.paired(a, b, number);
  if (of_a.size() < 2) return;
  const Interval i = mean_interval(less(of_a, of_b));
  picture.rows.push_back({a, i.estimate, i.low, i.high, reference});
}

void add_mean(Series& line, double x, const std::vector<double>& numbers) {
  if (numbers.empty()) return;
  const Interval i =
      numbers.size() == 1 ? Interval{numbers[0], numbers[0], numbers[0]} : mean_interval(numbers);
  line.x.push_back(x), line.y.push_back(i.estimate), line.low.push_back(i.low), line.high.push_back(i.high);
}

Series mean_line(std::string name, const std::vector<double>& x,
                 const std::vector<std::vector<double>>& curves) {
  Series line{std::move(name), {}, {}};
  if (curves.empty()) return line;
  line.x = x, line.y.resize(x.size());
  for (const std::vector<double>& curve : curves) {
    if (curve.size() != x.size()) throw std::out_of_range("mean_line: a curve of another length");
    for (std::size_t i = 0; i < x.size(); ++i) line.y[i] += curve[i] / static_cast<double>(curves.size());
  }
  return line;
}

Series step_line(std::string name, const std::vector<double>& curve, int first) {
  Series line{std::move(name), std::vector<double>(curve.size()), curve};
  std::iota(line.x.begin(), line.x.end(), static_cast<double>(first));
  return line;
}

}  // namespace nestgrad::reproduce
