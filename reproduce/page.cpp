#include "reproduce/page.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

namespace nestgrad::reproduce {

namespace {

// Of the side that the verdict is for; "" where there was no test, "exact" where there is no chance in it.
std::string p_of(const JudgedClaim& c) {
  if (std::isnan(c.evidence.p)) return "";
  const double p = c.verdict == Verdict::fails ? c.against : c.p;
  if (p == 0) return "exact";
  return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p);
}

Table claims_table(const std::vector<JudgedClaim>& claims) {
  Table table{"Claims", {"claim", "found", "p", "verdict"}};
  for (const JudgedClaim& c : claims)
    table.rows.push_back({c.text, c.evidence.shown, p_of(c), text_of(c.verdict)});
  return table;
}

std::string sentence(std::string words) {
  words[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(words[0])));
  return words + ".";
}

constexpr const char* kReadingOfClaims =
    "Claims were declared in the program before their runs were made, but for those of which this page says otherwise. Runs "
    "are paired by their seeds; intervals are 95 % t-intervals; p is of a paired t-test, or of two one-sided ones where two "
    "rows are claimed to differ by less than a margin; of signs alone where every pair shows the same number, and for counts; "
    "adjusted together for all claims of this page (Holm). A claim that the runs decide neither way is not "
    "reproduced at this scale, and one is contradicted where they decide against it.";

std::set<std::string> names_of(const Results& results) {
  std::set<std::string> out;
  for (const std::string& row : results.rows())
    for (const std::uint64_t seed : results.seeds())
      if (const Measured* m = results.find(row, seed))
        for (const auto& [name, value] : m->numbers) out.insert(name);
  return out;
}

Table every_run(const Results& results) {
  const std::set<std::string> names = names_of(results);
  Table table{"Every run", {"row", "seed"}};
  table.columns.insert(table.columns.end(), names.begin(), names.end());
  for (const std::string& row : results.rows())
    for (const std::uint64_t seed : results.seeds()) {
      const Measured* m = results.finished(row, seed);
      if (!m) continue;
      std::vector<std::string> cells{row, std::to_string(seed)};
      for (const std::string& name : names)
        cells.push_back(m->numbers.contains(name) ? fmt::format("{:.4f}", m->numbers.at(name)) : "");
      table.rows.push_back(std::move(cells));
    }
  return table;
}

// "reproduce t5 --full --first-seed 3": makes these runs again.
std::string call_of(const Results& results) {
  const Experiment& e = results.experiment();
  const Settings& s = results.settings();
  std::string out = fmt::format("reproduce {} --{}", e.name, name(s.extent));
  if (s.seeds != (s.full() ? e.full_seeds : e.quick_seeds)) out += fmt::format(" --seeds {}", s.seeds);
  if (s.first_seed != Settings{}.first_seed) out += fmt::format(" --first-seed {}", s.first_seed);
  return out;
}

Table failed_runs(const Results& results) {
  Table table{"Runs that failed", {"row", "seed", "why"}};
  for (const std::string& row : results.rows())
    for (const std::uint64_t seed : results.seeds())
      if (const Measured* m = results.find(row, seed); m && m->failed())
        table.rows.push_back({row, std::to_string(seed), m->failure});
  return table;
}

}  // namespace

std::string seeds_text(const Results& results) {
  const std::vector<std::uint64_t> seeds = results.seeds();
  return seeds.size() == 1 ? fmt::format("{}", seeds[0])
                           : fmt::format("{} to {}", seeds.front(), seeds.back());
}

std::string missing_text(const Results& results) {
  const std::size_t all = results.rows().size() * results.seeds().size();
  return results.complete() ? "" : fmt::format("; incomplete: {} of {} runs are there", results.known(), all);
}

std::string markdown_of(const Table& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (std::string cell : cells) {
      for (std::size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) cell.insert(at, "\\");
      out += " " + cell + " |";
    }
    return out + "\n";
  };
  std::string out = fmt::format("**{}**\n\n", table.title) + line(table.columns) + "|";
  for (std::size_t i = 0; i < table.columns.size(); ++i) out += "---|";
  out += "\n";
  for (const std::vector<std::string>& row : table.rows) out += line(row);
  return out + "\n";
}

std::string page_of(const Results& results, const Circumstances& where) {
  const Experiment& e = results.experiment();
  std::vector<ReportView> views{{.id = "claims",
                                 .title = "What must come out",
                                 .question = sentence(e.shows),
                                 .reading = kReadingOfClaims,
                                 .pictures = {claims_table(judge(results))}}};
  for (ReportView& view : e.views(results)) views.push_back(std::move(view));
  ReportView all{.id = "runs", .title = "Every run", .pictures = {every_run(results)}, .open = false};
  const Table failed = failed_runs(results);
  if (failed.rows.empty()) all.reading = "All runs are finite.";
  else all.pictures.emplace_back(failed);
  views.push_back(std::move(all));
  return html_report(e.title, e.source,
                     {{"extent", name(results.settings().extent)},
                      {"seeds", seeds_text(results) + missing_text(results)},
                      {"data", where.data.empty() ? "drawn by the program" : where.data},
                      {"digest of all numbers", digest(results, where)}},
                     views);
}

std::string markdown_of(const Results& results, const Circumstances& where) {
  const Experiment& e = results.experiment();
  std::string out =
      fmt::format("## {}: {}\n\n{} After {}.\n\n", e.name, e.title, sentence(e.shows), e.source);
  out += fmt::format("`{}`, seeds {}{}; {}; {}, {}; digest `{}`.\n\n", call_of(results), seeds_text(results),
                     missing_text(results), where.data.empty() ? "data drawn by the program" : where.data,
                     where.machine, where.date, digest(results, where));
  for (const ReportView& view : e.views(results))
    for (const Picture& picture : view.pictures)
      if (const auto* table = std::get_if<Table>(&picture)) out += markdown_of(*table);
  for (const JudgedClaim& c : judge(results)) {
    const std::string p = p_of(c);
    out += fmt::format("* {}: **{}** ({}{}).\n", c.text, text_of(c.verdict), c.evidence.shown,
                       p.empty() || p == "exact" ? "" : ", p " + p);
  }
  const Table failed = failed_runs(results);
  if (!failed.rows.empty()) out += "\n" + markdown_of(failed);
  return out + "\n";
}

}  // namespace nestgrad::reproduce
