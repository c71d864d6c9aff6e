#include "ttt/state.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad::ttt {

Gates each(const Gates& gates, const std::function<Tensor(Tensor)>& fn) {
  Gates out;
  for (const auto& [name, value] : gates) out[name] = fn(value);
  return out;
}

Gates columns_of(const Gates& rows) {
  return each(rows, [](Tensor value) { return transpose(value); });
}

Gates chunk_gates(const Gates& rows) {
  return each(rows, [](Tensor value) { return transpose(mean(value, {-2}, kKeep)); });
}

Tensor rate_of(const Policy& policy, const Gates& gates, const FastWeight& weight) {
  Tensor out;
  for (const std::string& name : {std::string("rate"), "rate." + weight.name, std::string(kWriteSize)})
    if (const auto at = gates.find(name); at != gates.end())
      out = out.defined() ? out * at->second : at->second;
  if (!policy.ascent) return out;
  return out.defined() ? -out : constant(-1.0, weight.value.dtype());
}

Views part(const Views& views, std::int64_t begin, std::int64_t end) {
  const auto cut = [&](Tensor x) { return slice(x, 2, begin, end); };
  const bool whole = begin == 0 && end == views.k.dim(2);  // q may then have another length
  return {whole ? views.q : cut(views.q), cut(views.k),   cut(views.v),
          each(views.gates, cut),         views.position, {}};
}

Block block_of(const Views& views, const Policy& policy, std::int64_t begin, std::int64_t end) {
  Block out{part(views, begin, end), policy.writes(end - begin, views.k.dim(2)), {}, {}};
  if (out.position.defined())
    out.position = slice(views.position, 0, 0, std::min(end - begin, views.position.dim(0)));
  return out;
}

Block split_chunks(const Block& all, std::int64_t chunks) {
  const auto split = [&](Tensor x) {
    const Tensor parts = reshape(x, {x.dim(0), x.dim(1), chunks, x.dim(2) / chunks, x.dim(3)});
    return permute(parts, {2, 0, 1, 3, 4});
  };
  return {{split(all.q), split(all.k), split(all.v), each(all.gates, split), all.position, {}}, true, {}, {}};
}

Tensor join_chunks(Tensor rows) {
  const Tensor parts = permute(rows, {1, 2, 0, 3, 4});
  return reshape(parts, {parts.dim(0), parts.dim(1), parts.dim(2) * parts.dim(3), parts.dim(4)});
}

void walk_chunks(std::int64_t from, std::int64_t time, std::int64_t chunk,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& step) {
  for (std::int64_t begin = from; begin < time; begin += chunk) step(begin, std::min(begin + chunk, time));
}

State State::start(const Learner& learner, const Weights& weights) {
  if (weights.size() == 0)
    throw ConfigError(
        "[inner_loop] the learner has no weights, so nothing learns; Learner::init() gives them");
  const InnerOptimizer optimizer = learner.optimizer();
  State out{weights, {}};
  for (std::size_t i = 0; i < weights.size(); ++i) out.slots.push_back(optimizer.slots(weights.at(i)));
  std::vector<std::string> names = out.names();
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw ConfigError(fmt::format(
        "[inner_loop] '{}' is the name of a fast weight and of what the optimiser keeps for another ({}); "
        "give the weight another name",
        *twice, optimizer.str()));
  return out;
}

std::vector<Tensor> State::of(std::size_t weight) const {
  std::vector<Tensor> out{weights.at(weight).value};
  for (const FastWeight& slot : slots[weight]) out.push_back(slot.value);
  return out;
}

std::vector<Tensor> State::flat() const {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < weights.size(); ++i)
    for (const Tensor& t : of(i)) out.push_back(t);
  return out;
}

State State::with(std::span<const Tensor> flat) const {
  State out = *this;
  std::vector<Tensor> values;
  std::size_t at = 0;
  for (std::vector<FastWeight>& own : out.slots) {
    values.push_back(flat[at++]);
    for (FastWeight& slot : own) slot.value = flat[at++];
  }
  out.weights = weights.with(values);
  return out;
}

State begun(const State& s, const State& first, Tensor starts) {
  if (!starts.defined()) return s;
  std::vector<Tensor> flat = s.flat();
  const std::vector<Tensor> start = first.flat();
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = select(starts, start[i], flat[i]);
  return s.with(flat);
}

std::vector<std::string> State::names() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    out.push_back(weights.at(i).name);
    for (const FastWeight& slot : slots[i]) out.push_back(weights.at(i).name + "." + slot.name);
  }
  return out;
}

namespace {

// A learner of which only some weights learn; the others are constants of the inner loop.
class Restricted : public Learner {
 public:
  Restricted(const Learner& whole, Weights all, const std::vector<std::string>& trained)
      : whole_(whole), all_(std::move(all)) {
    for (const std::string& name : trained) {
      places_.push_back(all_.index(name));
      if (std::ranges::count(places_, places_.back()) > 1)
        throw ConfigError(fmt::format("[policy] '{}' is named twice among the weights that learn", name));
    }
  }
  Weights init() const override { return pick(whole_.init()); }
  Tensor predict(const Weights& w, Tensor x) const override { return whole_.predict(merged(w, x), x); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override { return whole_.loss(merged(w, k), k, v); }
  InnerOptimizer optimizer() const override { return whole_.optimizer(); }
  std::vector<std::string> own_gates() const override { return whole_.own_gates(); }
  Gates gates(const Weights& w, Tensor k, Tensor v, Tensor place) const override {
    return whole_.gates(merged(w, k), k, v, place);
  }

  Weights pick(const Weights& all) const {
    std::vector<FastWeight> out;
    for (std::size_t i : places_) out.push_back(all.at(i));
    return Weights(std::move(out));
  }

 private:
  Weights merged(const Weights& w, Tensor rows) const {
    std::vector<Tensor> values = all_.spread(rows.dim(-2)).values();
    std::vector<Tensor> held = values;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      values[places_[i]] = w.at(i).value;
      held[places_[i]] = w.held(w.at(i).name);
    }
    return all_.with(values).with_held(held);
  }
  const Learner& whole_;
  Weights all_;
  std::vector<std::size_t> places_;
};

}  // namespace

Trained restrict_to(const Learner& learner, const State& start, const std::vector<std::string>& trained) {
  if (trained.empty()) return {nullptr, &learner, start};
  auto restricted = std::make_unique<Restricted>(learner, start.weights, trained);
  State own{restricted->pick(start.weights), {}};
  for (const std::string& name : trained) own.slots.push_back(start.slots[start.weights.index(name)]);
  const Learner* which = restricted.get();
  return {std::move(restricted), which, own};
}

State with_trained(State whole, const State& learnt, const std::vector<std::string>& trained) {
  if (trained.empty()) return learnt;
  std::vector<Tensor> values = whole.weights.values();
  for (std::size_t i = 0; i < trained.size(); ++i) {
    const std::size_t place = whole.weights.index(trained[i]);
    values[place] = learnt.weights.at(i).value;
    whole.slots[place] = learnt.slots[i];
  }
  whole.weights = whole.weights.with(values);
  return whole;
}

}  // namespace nestgrad::ttt
