#include "reproduce/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reproduce/claims.h"
#include "reproduce/page.h"
#include "reproduce/statistics.h"

namespace nestgrad::reproduce {

namespace {

void require_comparable(const Journal& first, const Journal& again) {
  const Results &a = first.results, &b = again.results;
  const std::string& experiment = a.experiment().name;
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("[agreement] runs of {} cannot be compared: {}", experiment, why));
  };
  if (b.experiment().name != experiment) refuse("the others are of " + b.experiment().name);
  if (a.settings().extent != b.settings().extent)
    refuse(fmt::format("one is --{}, the other --{}", name(a.settings().extent), name(b.settings().extent)));
  if (first.where.fingerprint != again.where.fingerprint) refuse("they are on other data");
  for (const std::uint64_t seed : a.seeds())
    if (std::ranges::count(b.seeds(), seed) > 0)
      refuse(fmt::format("both have seed {}; give one of them another --first-seed", seed));
}

bool overlap(const Interval& a, const Interval& b) { return a.low <= b.high && b.low <= a.high; }

// A number: counts it, and says with what p its means are equal.
double compare(const ComparedNumber& c, Agreement& out) {
  std::vector<double> both = c.first;
  both.insert(both.end(), c.again.begin(), c.again.end());
  if (varies(c.first) || varies(c.again)) {
    ++out.varying;
    out.overlapping += overlap(mean_interval(c.first), mean_interval(c.again));
  } else if (!varies(both)) {
    ++out.same;
    return 1;
  }
  return unpaired_difference(steady(c.first), steady(c.again)).p;
}

// By the size of the first mean: the difference that Welch's test, as Holm's first of all, finds four times in five.
double least_found(const Agreement& a) {
  std::vector<double> found;
  for (const ComparedNumber& c : a.numbers) {
    if (!varies(c.first) && !varies(c.again)) continue;
    const UnpairedDifference d = unpaired_difference(c.first, c.again);
    const double half = (d.interval.high - d.interval.low) / 2,
                 error = half / student_quantile(0.975, d.degrees);
    const double level = kLevel / static_cast<double>(a.numbers.size());
    found.push_back(error * (student_quantile(1 - level / 2, d.degrees) + student_quantile(0.8, d.degrees)) /
                    std::abs(mean_interval(c.first).estimate));
  }
  if (found.empty()) return kUnknown;
  std::ranges::sort(found);
  return found[found.size() / 2];
}

std::vector<Moved> moved(const Agreement& a) {
  std::vector<Moved> all;
  for (const ComparedNumber& c : a.numbers) {
    const double ratio = mean_interval(c.again).estimate / mean_interval(c.first).estimate;
    if (!(ratio > 0) || !std::isfinite(ratio)) continue;
    const std::string kind = c.number.substr(0, c.number.find(','));
    auto at = std::ranges::find_if(all, [&](const Moved& m) { return m.row == c.row && m.kind == kind; });
    if (at == all.end()) at = all.insert(all.end(), Moved{c.row, kind});
    ++at->numbers;
    at->ratio *= ratio;
  }
  for (Moved& m : all) m.ratio = std::pow(m.ratio, 1 / static_cast<double>(m.numbers));
  std::erase_if(all, [](const Moved& m) { return m.ratio < kFactor && m.ratio > 1 / kFactor; });
  return all;
}

// What the test could not see, for people.
std::string power_text(const Agreement& a) {
  if (std::isnan(a.least_found)) return "";
  return fmt::format(
      " So many numbers of so few seeds are a blunt test: a mean had to be about {:.0f} % away to be found four times in five "
      "(the median over numbers).",
      100 * a.least_found);
}

}  // namespace

Agreement agreement_of(const Journal& first, const Journal& again) {
  require_comparable(first, again);
  Agreement out;
  std::vector<double> p;
  for (const std::string& row : first.results.rows()) {
    std::vector<std::string> names;
    for (const std::uint64_t seed : first.results.seeds())
      if (const Measured* m = first.results.finished(row, seed); m && names.empty())
        for (const auto& [name, value] : m->numbers) names.push_back(name);
    for (const std::string& number : names) {
      ComparedNumber c{row, number, first.results.of(row, number), again.results.of(row, number)};
      if (c.first.size() < 2 || c.again.size() < 2) continue;
      p.push_back(compare(c, out));
      out.numbers.push_back(std::move(c));
    }
  }
  p = holm(p);
  for (std::size_t i = 0; i < p.size(); ++i) {
    out.numbers[i].p = p[i];
    if (p[i] < kLevel) out.apart.push_back(out.numbers[i]);
  }
  out.least_found = least_found(out);
  out.moved = moved(out);
  return out;
}

std::string text_of(const Agreement& agreement) {
  const std::size_t others = agreement.numbers.size() - agreement.varying;
  const std::string still =
      others == 0 ? "" : fmt::format(", of {} that do not {} are the same", others, agreement.same);
  return fmt::format("{} numbers in both: of {} that vary {} have overlapping intervals{}; {}",
                     agreement.numbers.size(), agreement.varying, agreement.overlapping, still,
                     agreement.apart.empty()       ? "no means differ"
                     : agreement.apart.size() == 1 ? "one mean differs"
                                                   : fmt::format("{} means differ", agreement.apart.size()));
}

std::string markdown_of(const Journal& first, const Journal& again) {
  const Agreement agreement = agreement_of(first, again);
  const std::string seeds = "seeds " + seeds_text(again.results);
  std::string out = fmt::format(
      "**Again, with {}{}** ({}, {}; digest `{}`): {} (95 % t-intervals; Welch's test, adjusted for all of them).{}\n\n",
      seeds, missing_text(again.results), again.where.machine, again.where.date,
      digest(again.results, again.where), text_of(agreement), power_text(agreement));
  Table verdicts{"Claims, again", {"claim", "seeds " + seeds_text(first.results), seeds}};
  const std::vector<JudgedClaim> before = judge(first.results), now = judge(again.results);
  for (std::size_t i = 0; i < before.size(); ++i)
    verdicts.rows.push_back({before[i].text, text_of(before[i].verdict), text_of(now[i].verdict)});
  out += markdown_of(verdicts);
  if (agreement.moved.empty()) {
    out += fmt::format("No numbers of a row are {} times as large or small together.\n\n", kFactor);
  } else {
    Table moved{fmt::format("Numbers of a row that are {} times as large or small together, or more: no test",
                            kFactor),
                {"row", "numbers", "how many", "times"}};
    for (const Moved& m : agreement.moved)
      moved.rows.push_back({m.row, m.kind, std::to_string(m.numbers), fmt::format("{:.2f}", m.ratio)});
    out += markdown_of(moved);
  }
  if (agreement.apart.empty()) return out;
  Table apart{"Means that differ", {"row", "number", "seeds " + seeds_text(first.results), seeds, "p"}};
  for (const ComparedNumber& c : agreement.apart)
    apart.rows.push_back(
        {c.row, c.number, mean_text(c.first, 4), mean_text(c.again, 4), fmt::format("{:.3g}", c.p)});
  return out + markdown_of(apart);
}

}  // namespace nestgrad::reproduce
