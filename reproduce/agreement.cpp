#include "reproduce/agreement.h"

#include <fmt/format.h>

#include <algorithm>

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
      p.push_back(unpaired_difference(c.first, c.again).p);
      if (overlap(mean_interval(c.first), mean_interval(c.again))) ++out.overlapping;
      out.numbers.push_back(std::move(c));
    }
  }
  p = holm(p);
  for (std::size_t i = 0; i < p.size(); ++i) {
    out.numbers[i].p = p[i];
    if (p[i] < kLevel) out.apart.push_back(out.numbers[i]);
  }
  return out;
}

std::string text_of(const Agreement& agreement) {
  return fmt::format("{} numbers in both, {} with overlapping intervals, {}", agreement.numbers.size(),
                     agreement.overlapping,
                     agreement.apart.empty()       ? "no means differ"
                     : agreement.apart.size() == 1 ? "one mean differs"
                                                   : fmt::format("{} means differ", agreement.apart.size()));
}

std::string markdown_of(const Journal& first, const Journal& again) {
  const Agreement agreement = agreement_of(first, again);
  const std::string seeds = "seeds " + seeds_text(again.results);
  std::string out = fmt::format(
      "**Again, with {}** ({}, {}; digest `{}`): {} (95 % t-intervals; Welch's test, adjusted for all of them).\n\n",
      seeds, again.where.machine, again.where.date, digest(again.results, again.where), text_of(agreement));
  Table verdicts{"Claims, again", {"claim", "seeds " + seeds_text(first.results), seeds}};
  const std::vector<JudgedClaim> before = judge(first.results), now = judge(again.results);
  for (std::size_t i = 0; i < before.size(); ++i)
    verdicts.rows.push_back({before[i].text, text_of(before[i].verdict), text_of(now[i].verdict)});
  out += markdown_of(verdicts);
  if (agreement.apart.empty()) return out;
  Table apart{"Means that differ", {"row", "number", "seeds " + seeds_text(first.results), seeds, "p"}};
  for (const ComparedNumber& c : agreement.apart)
    apart.rows.push_back(
        {c.row, c.number, mean_text(c.first, 4), mean_text(c.again, 4), fmt::format("{:.3g}", c.p)});
  return out + markdown_of(apart);
}

}  // namespace nestgrad::reproduce
