#include "ttt/check_gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "engine/core/nearest_name.h"

namespace nestgrad::ttt {

namespace {

// What can be read is `rate` and what the optimiser needs, of all weights or of one; a misspelt gate would be no gate. Pieces of one's own
// may read any.
void check_gates_are_read(const InnerOptimizer& optimizer, const Weights& weights, const Gates& gates) {
  if (optimizer.has_own_pieces()) return;
  std::vector<std::string> read = optimizer.gates();
  read.emplace_back("rate");
  for (std::size_t i = 0, n = read.size(); i < n; ++i)
    for (std::size_t w = 0; w < weights.size(); ++w) read.push_back(read[i] + "." + weights.at(w).name);
  for (const auto& [name, rows] : gates)
    if (name != kWriteSize && std::ranges::find(read, name) == read.end())
      throw ConfigError(fmt::format(
          "[inner_loop] nothing reads the gate '{}'{}; the learner's optimiser ({}) reads {}: name it as one of these, or leave it out",
          name, did_you_mean(name, read), optimizer.str(), fmt::join(read, ", ")));
}

}  // namespace

void check_gates(const Trained& trained, const Weights& all, const Views& views) {
  const Weights& weights = trained.start.weights;
  const Gates& gates = views.gates;
  const auto refuse = [](const std::string& name, Tensor rows, const std::string& why) {
    throw ShapeError(fmt::format("[inner_loop] the gate '{}' is {}: {}", name, to_string(rows.spec()), why));
  };
  for (const auto& [name, rows] : gates) {
    if (rows.rank() != 4 ||
        !std::ranges::equal(std::span(rows.shape()).first(3), std::span(views.k.shape()).first(3)))
      throw ShapeError(fmt::format(
          "[inner_loop] the gate '{}' is {}; it must be [batch, heads, time, 1 or in] beside k {}", name,
          to_string(rows.spec()), to_string(views.k.spec())));
    if ((name == "rate" || name.starts_with("rate.")) && rows.dim(-1) != 1)
      refuse(name, rows, "a rate is one number a token, [batch, heads, time, 1]");
  }
  const InnerOptimizer optimizer = trained.learner->optimizer();
  const std::vector<std::string> own = trained.learner->own_gates();
  for (const std::string& name : own)
    if (const auto at = gates.find(name); at != gates.end())
      refuse(name, at->second, "the learner makes it itself (Learner::own_gates)");
  check_gates_are_read(optimizer, all, gates);
  for (const std::string& used : optimizer.gates())
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const FastWeight& w = weights.at(i);
      bool given = false;
      for (const std::string& name : {used, used + "." + w.name}) {
        given = given || std::ranges::find(own, name) != own.end();
        const auto at = gates.find(name);
        if (at == gates.end()) continue;
        given = true;
        const std::int64_t width = at->second.dim(-1);
        if (width == 1) continue;
        if (w.kind == WeightKind::row)
          refuse(name, at->second,
                 fmt::format("it has a number per input feature, and '{0}' is a row that has no inputs; give "
                             "'{1}.W' for each matrix W, and '{1}.{0}' with one number a token",
                             w.name, used));
        if (w.value.dim(-2) != width)
          refuse(name, at->second,
                 fmt::format("it has {} numbers a token, and '{}' is {} with {} inputs", width, w.name,
                             to_string(w.value.spec()), w.value.dim(-2)));
      }
      if (!given)
        throw ConfigError(fmt::format(
            "[inner_loop] the learner's optimiser ({}) needs the gate '{}', which the views do not have for "
            "'{}'; give '{}', or '{}.{}' for this weight alone",
            optimizer.str(), used, w.name, used, used, w.name));
    }
}

}  // namespace nestgrad::ttt
