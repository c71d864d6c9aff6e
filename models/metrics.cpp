#include "models/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "engine/io/file.h"
#include "models/json.h"

namespace nestgrad {

namespace {

// Visits every field by its name in the file.
template <class M, class Fn>
void for_each_field(M& m, Fn fn) {
  fn("step", m.step);
  fn("loss", m.loss);
  fn("grad_norm", m.grad_norm);
  fn("lr", m.rate);
  fn("tokens_per_second", m.tokens_per_second);
}

[[noreturn]] void fail(const std::string& what, std::size_t line, const std::string& problem) {
  throw IoError(fmt::format("[metrics] {}: line {} {}; bring the file back, or delete it to go on without it",
                            printable(what), line, problem));
}

}  // namespace

std::string to_line(const Metric& metric) {
  nlohmann::ordered_json json;
  for_each_field(metric, [&](const char* name, const auto& value) { json[name] = value; });
  if (!metric.peak_mb.empty())
    json["processes"] = metric.peak_mb.size(), json["peak_rss_mb_by_rank"] = metric.peak_mb;
  return json.dump() + "\n";
}

std::vector<Metric> parse_metrics(const std::string& text, const std::string& what) {
  std::vector<Metric> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = parse_json(line);
    const std::size_t number = out.size() + 1;
    if (!json.is_object()) fail(what, number, "is not a JSON object");
    Metric m{};
    for_each_field(m, [&](const char* name, auto& value) {
      const auto field = json.find(name);
      if (field == json.end() || !fits(*field, value))
        fail(what, number, fmt::format("has no number '{}'", name));
      field->get_to(value);
    });
    if (const auto peaks = json.find("peak_rss_mb_by_rank"); peaks != json.end()) {
      if (!peaks->is_array() || !std::ranges::all_of(*peaks, &nlohmann::json::is_number))
        fail(what, number, "has other than numbers in 'peak_rss_mb_by_rank'");
      peaks->get_to(m.peak_mb);
    }
    if (m.step < 1) fail(what, number, fmt::format("is of step {}", m.step));
    if (!out.empty() && m.step != out.back().step + 1)
      fail(what, number, fmt::format("is of step {}, the one before of {}", m.step, out.back().step));
    out.push_back(m);
  }
  return out;
}

}  // namespace nestgrad
