#include "reproduce/claims.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "reproduce/statistics.h"

namespace nestgrad::reproduce {

namespace {

// Numbers that should be below 0, by seeds.
Evidence evidence_of_negative(const std::vector<double>& x, const std::string& unit, double shift) {
  if (x.size() < 2)
    return {kUnknown, kUnknown, fmt::format("{} pairs of runs: too few for a test", x.size())};
  const std::vector<double> none(x.size(), 0.0);
  const PairedDifference d = paired_difference(x, none);
  const std::string shown =
      fmt::format("{:+.4f} ± {:.4f}{}{}", d.interval.estimate - shift, (d.interval.high - d.interval.low) / 2,
                  unit.empty() ? "" : " ", unit);
  return d.interval.estimate < 0 ? Evidence{d.p, 1, shown} : Evidence{1, d.p, shown};
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
    out.push_back({claim.text, claim.test(results)});
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
      [=](const Results& results, std::uint64_t seed) {
        return results.number(a, seed, number) - results.number(b, seed, number);
      },
      by);
}

DeclaredClaim within(std::string a, std::string b, std::string number, double margin, std::string text) {
  return {std::move(text), [=](const Results& results) {
            const auto [of_a, of_b] = results.paired(a, b, number);
            if (of_a.size() < 2)
              return Evidence{kUnknown, kUnknown,
                              fmt::format("{} pairs of runs: too few for a test", of_a.size())};
            const PairedDifference d = paired_difference(of_a, of_b);
            // Against: the difference is beyond the margin on the side where it is.
            std::vector<double> beyond = of_a;
            for (std::size_t i = 0; i < beyond.size(); ++i)
              beyond[i] = d.interval.estimate < 0 ? of_b[i] - of_a[i] - margin : of_a[i] - of_b[i] - margin;
            const Evidence contrary = evidence_of_negative(beyond, "", 0);
            return Evidence{equivalence_p(of_a, of_b, margin), contrary.against,
                            fmt::format("{:+.4f} ± {:.4f}, margin {}", d.interval.estimate,
                                        (d.interval.high - d.interval.low) / 2, margin)};
          }};
}

DeclaredClaim negative(std::string text, std::string unit,
                       std::function<double(const Results&, std::uint64_t)> fn, double by) {
  return {std::move(text), [=](const Results& results) {
            std::vector<double> x;
            for (const std::uint64_t seed : results.seeds())
              if (const double value = fn(results, seed); !std::isnan(value)) x.push_back(value + by);
            return evidence_of_negative(x, unit, by);
          }};
}

DeclaredClaim exact(std::string text, std::function<Exact(const Results&)> fn) {
  return {std::move(text), [=](const Results& results) {
            const Exact e = fn(results);
            if (!e.holds) return Evidence{kUnknown, kUnknown, e.shown.empty() ? "no runs" : e.shown};
            return *e.holds ? Evidence{0, 1, e.shown} : Evidence{1, 0, e.shown};
          }};
}

std::vector<double> less(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b.at(i);
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
  for (const std::vector<double>& curve : curves)
    for (std::size_t i = 0; i < x.size(); ++i) line.y[i] += curve.at(i) / static_cast<double>(curves.size());
  return line;
}

Series step_line(std::string name, const std::vector<double>& curve, int first) {
  Series line{std::move(name), std::vector<double>(curve.size()), curve};
  std::iota(line.x.begin(), line.x.end(), static_cast<double>(first));
  return line;
}

}  // namespace nestgrad::reproduce
