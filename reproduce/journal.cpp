#include "reproduce/journal.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/io/file.h"

namespace nestgrad::reproduce {

namespace {

using Json = nlohmann::ordered_json;

// The parts of a run that its row, seed, settings and data decide.
Json line_of(const std::string& row, std::uint64_t seed, const Measured& m) {
  Json line{{"row", row}, {"seed", seed}};
  if (m.failed()) {
    line["failure"] = m.failure;
    return line;
  }
  line["numbers"] = m.numbers;
  if (!m.curves.empty()) line["curves"] = m.curves;
  return line;
}

Json head_of(const Results& results) {
  const Settings& s = results.settings();
  return {{"experiment", results.experiment().name},
          {"extent", name(s.extent)},
          {"seeds", s.seeds},
          {"first_seed", s.first_seed}};
}

// A whole number of a file: 5.9 is none, nor is what an int would cut to 5.
std::uint64_t whole_at(const Json& line, const char* field, std::uint64_t least, std::uint64_t most) {
  const Json& value = line.at(field);
  const bool is_whole = value.is_number_unsigned();
  if (!is_whole || value.get<std::uint64_t>() < least || value.get<std::uint64_t>() > most)
    throw ConfigError(
        fmt::format("\"{}\" is {}, and not a whole number from {} to {}", field, value.dump(), least, most));
  return value.get<std::uint64_t>();
}

// Why a run cannot be of the same row as another; "" if it can.
std::string unlike(const Measured& m, const Measured& other) {
  const auto names = [](const Measured& of) {
    std::vector<std::string> out;
    for (const auto& [name, value] : of.numbers) out.push_back(name);
    return out;
  };
  if (names(m) != names(other)) return "it has not the numbers that the row's other runs have";
  for (const auto& [name, curve] : m.curves)
    if (const auto theirs = other.curves.find(name);
        theirs != other.curves.end() && theirs->second.size() != curve.size())
      return fmt::format("its curve '{}' has {} numbers, that of another run of the row {}", printable(name),
                         curve.size(), theirs->second.size());
  return "";
}

template <class Fn>
void each_run(const Results& results, Fn fn) {
  for (const std::string& row : results.rows())
    for (const std::uint64_t seed : results.seeds())
      if (const Measured* m = results.find(row, seed)) fn(row, seed, *m);
}

}  // namespace

std::string to_jsonl(const Results& results, const Circumstances& where) {
  Json head = head_of(results);
  head["data"] = where.data, head["fingerprint"] = where.fingerprint;
  head["machine"] = where.machine, head["date"] = where.date;
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  std::string out = text(head);
  each_run(results, [&](const std::string& row, std::uint64_t seed, const Measured& m) {
    Json line = line_of(row, seed, m);
    if (!m.clock.empty()) line["clock"] = m.clock;
    out += text(line);
  });
  return out;
}

Journal parse_jsonl(const std::string& text, const std::string& what, const std::string& experiment) {
  std::istringstream lines(text);
  std::string line;
  std::size_t number = 0;
  const auto wrong = [&](const std::string& why) {
    return IoError(
        fmt::format("[reproduce] {}, line {}: {}; it was not written by reproduce, or has been changed: "
                    "delete it, or choose another --out",
                    what, number, why));
  };
  const auto next = [&](Json& json) {
    if (!std::getline(lines, line)) return false;
    ++number;
    json = Json::parse(line, nullptr, false);
    if (!json.is_object()) throw wrong("is no JSON object");
    return true;
  };
  try {
    Json head;
    if (!next(head)) throw wrong("is missing");
    Settings settings;
    const std::string extent = head.at("extent");
    if (extent != "quick" && extent != "full") throw wrong("the extent is neither quick nor full");
    settings.extent = extent == "full" ? Extent::full : Extent::quick;
    settings.seeds = static_cast<int>(whole_at(head, "seeds", 1, 1000));
    settings.first_seed = whole_at(head, "first_seed", 0, std::numeric_limits<std::uint64_t>::max());
    check_seeds(settings);
    if (const std::string found = head.at("experiment"); !experiment.empty() && found != experiment)
      throw wrong(fmt::format("these are runs of '{}', and not of {}", printable(found), experiment));
    Journal out{Results(experiment_named(head.at("experiment")), settings),
                {head.at("data"), head.at("fingerprint"), head.at("machine"), head.at("date")}};
    for (Json json; next(json);) {
      const std::string row = json.at("row");
      const std::uint64_t seed = whole_at(json, "seed", 0, std::numeric_limits<std::uint64_t>::max());
      const std::vector<std::string>& rows = out.results.rows();
      const std::vector<std::uint64_t> seeds = out.results.seeds();
      if (std::ranges::find(rows, row) == rows.end() || std::ranges::find(seeds, seed) == seeds.end())
        throw wrong(fmt::format("there is no run of row '{}' with seed {}", printable(row), seed));
      if (out.results.find(row, seed)) throw wrong("this run is there twice");
      Measured m;
      if (json.contains("failure")) {
        m.failure = json.at("failure");
        if (m.failure.empty()) throw wrong("a run has failed without a reason");
      } else m.numbers = json.at("numbers").get<std::map<std::string, double>>();
      if (json.contains("curves")) m.curves = json.at("curves").get<decltype(m.curves)>();
      for (const auto& [curve, values] : m.curves)
        if (values.empty()) throw wrong(fmt::format("the curve '{}' has no numbers", printable(curve)));
      if (json.contains("clock")) m.clock = json.at("clock").get<std::map<std::string, double>>();
      for (const std::uint64_t known : seeds)
        if (const Measured* other = out.results.finished(row, known); other && !m.failed())
          if (const std::string why = unlike(m, *other); !why.empty())
            throw wrong(fmt::format("the run of row '{}' with seed {} is unlike others: {}", printable(row),
                                    seed, why));
      out.results.add(row, seed, std::move(m));
    }
    return out;
  } catch (const Json::exception&) {
    throw wrong("a field is missing, or of another type");
  } catch (const ConfigError& e) {
    throw wrong(e.what());
  }
}

std::string digest(const Results& results, const Circumstances& where) {
  std::uint64_t hash = fnv1a(where.fingerprint, fnv1a(head_of(results).dump()));
  each_run(results, [&](const std::string& row, std::uint64_t seed, const Measured& m) {
    hash = fnv1a(line_of(row, seed, m).dump(-1, ' ', false, Json::error_handler_t::replace), hash);
  });
  return fmt::format("{:016x}", hash);
}

std::string first_difference(const Results& a, const Results& b) {
  if (head_of(a) != head_of(b))
    return fmt::format("{} was asked for, {} is what it is compared with", head_of(a).dump(),
                       head_of(b).dump());
  std::string out;
  const auto compare = [&](const Results& x, const Results& y, const char* other) {
    each_run(x, [&](const std::string& row, std::uint64_t seed, const Measured& m) {
      if (!out.empty()) return;
      const Measured* theirs = y.find(row, seed);
      const std::string run = fmt::format("'{}' with seed {}", row, seed);
      if (!theirs) {
        out = fmt::format("{} has no run of {}", other, run);
        return;
      }
      const Json mine = line_of(row, seed, m), yours = line_of(row, seed, *theirs);
      if (mine == yours) return;
      const Json patch = Json::diff(yours, mine);
      const std::string path = patch[0].at("path");
      const auto at = [&](const Json& json) {
        const Json::json_pointer pointer(path);
        return json.contains(pointer) ? json.at(pointer).dump() : std::string("nothing");
      };
      out = fmt::format("{}: {} is {}, it was {}", run, path.substr(1), at(mine), at(yours));
    });
  };
  compare(a, b, "the other");
  compare(b, a, "this");
  return out;
}

}  // namespace nestgrad::reproduce
