#include "reproduce/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "engine/core/error.h"
#include "reproduce/experiments/catalogue.h"

namespace nestgrad::reproduce {

const char* name(Extent extent) { return extent == Extent::quick ? "quick" : "full"; }

Results::Results(const Experiment& experiment, Settings settings)
    : experiment_(&experiment), settings_(std::move(settings)), rows_(experiment.rows(settings_)) {}

std::vector<std::uint64_t> Settings::all_seeds() const {
  std::vector<std::uint64_t> out;
  for (int i = 0; i < seeds; ++i) out.push_back(first_seed + static_cast<std::uint64_t>(i));
  return out;
}

void check_seeds(const Settings& settings) {
  const std::uint64_t first = settings.first_seed, more = static_cast<std::uint64_t>(settings.seeds - 1);
  if (first > std::numeric_limits<std::uint64_t>::max() - more)
    throw ConfigError(fmt::format("[reproduce] {} seeds from {} go beyond 2^64; begin with a smaller one",
                                  settings.seeds, first));
  if (first <= kHeldOutSeed && kHeldOutSeed <= first + more)
    throw ConfigError(fmt::format(
        "[reproduce] seeds {} to {} hold {}, of the data that runs are tested with; begin with another one",
        first, first + more, kHeldOutSeed));
}

const std::vector<double>& Measured::curve(const std::string& name, std::size_t length) const {
  const std::vector<double>& out = curves.at(name);
  if (out.size() != length) throw std::out_of_range("a curve of another length");
  return out;
}

std::vector<std::uint64_t> Results::seeds() const { return settings_.all_seeds(); }

const Measured* Results::find(const std::string& row, std::uint64_t seed) const {
  const auto at = runs_.find({row, seed});
  return at == runs_.end() ? nullptr : &at->second;
}

const Measured* Results::finished(const std::string& row, std::uint64_t seed) const {
  const Measured* m = find(row, seed);
  return m && !m->failed() ? m : nullptr;
}

void Results::add(const std::string& row, std::uint64_t seed, Measured measured) {
  runs_.insert_or_assign({row, seed}, std::move(measured));
}

std::size_t Results::known() const {
  std::size_t out = 0;
  for (const std::string& row : rows_)
    for (const std::uint64_t seed : seeds()) out += find(row, seed) != nullptr;
  return out;
}

namespace {

const double& number_of(const Measured& m, const std::string& row, const std::string& number) {
  const auto at = m.numbers.find(number);
  if (at == m.numbers.end())
    throw ConfigError(fmt::format("[reproduce] a run of '{}' has no number '{}'; its experiment asks for one",
                                  row, number));
  return at->second;
}

}  // namespace

std::vector<double> Results::of(const std::string& row, const std::string& number) const {
  std::vector<double> out;
  for (const std::uint64_t seed : seeds())
    if (const Measured* m = finished(row, seed)) out.push_back(number_of(*m, row, number));
  return out;
}

double Results::number(const std::string& row, std::uint64_t seed, const std::string& number) const {
  const Measured* m = finished(row, seed);
  return m ? number_of(*m, row, number) : kUnknown;
}

std::pair<std::vector<double>, std::vector<double>> Results::paired(const std::string& a,
                                                                    const std::string& b,
                                                                    const std::string& number) const {
  std::pair<std::vector<double>, std::vector<double>> out;
  for (const std::uint64_t seed : seeds()) {
    const Measured *of_a = finished(a, seed), *of_b = finished(b, seed);
    if (!of_a || !of_b) continue;
    out.first.push_back(number_of(*of_a, a, number));
    out.second.push_back(number_of(*of_b, b, number));
  }
  return out;
}

std::vector<std::vector<double>> Results::curves(const std::string& row, const std::string& curve) const {
  std::vector<std::vector<double>> out;
  for (const std::uint64_t seed : seeds()) {
    const Measured* m = finished(row, seed);
    if (m && m->curves.contains(curve)) out.push_back(m->curves.at(curve));
  }
  return out;
}

double Results::clock(const std::string& row, const std::string& number) const {
  std::vector<double> all;
  for (const std::uint64_t seed : seeds())
    if (const Measured* m = find(row, seed); m && m->clock.contains(number))
      all.push_back(m->clock.at(number));
  if (all.empty()) return kUnknown;
  std::ranges::sort(all);
  return all[all.size() / 2];
}

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> all{
#define NESTGRAD_EXPERIMENT(function) function(),
#include "reproduce/experiments/catalogue.def"
#undef NESTGRAD_EXPERIMENT
  };
  return all;
}

const Experiment& experiment_named(const std::string& name) {
  std::string known;
  for (const Experiment& e : experiments()) {
    if (e.name == name) return e;
    known += (known.empty() ? "" : ", ") + e.name;
  }
  throw ConfigError(fmt::format("[reproduce] there is no experiment '{}'; there are {}", name, known));
}

}  // namespace nestgrad::reproduce
