#include "models/streams.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "engine/core/hash.h"
#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/training_checkpoint.h"

namespace nestgrad {

namespace {

// Streams of a group read together: a thread has a group at a time. More rows than these gain nothing more.
constexpr std::size_t kMostRows = 12;
constexpr const char *kPosition = "position", *kModel = "model";  // in the metadata of a file

std::size_t row_bytes(const Array& rows) { return rows.bytes() / uz(rows.shape()[0]); }

// Some rows of [rows, ..], on the CPU.
Array rows_of(const Array& rows, const std::vector<std::size_t>& which) {
  const Array from = rows.to(Device::cpu());
  Shape shape = rows.shape();
  shape[0] = std::ssize(which);
  Array out(rows.dtype(), shape);
  const std::size_t bytes = row_bytes(rows);
  for (std::size_t i = 0; i < which.size(); ++i)
    std::memcpy(out.data() + i * bytes, from.data() + which[i] * bytes, bytes);
  return out;
}

// The inverse: rows on the CPU go where they came from. Of an array on the CPU nothing else is touched, so that threads
// may fill one together.
void put_rows(const Array& from, const std::vector<std::size_t>& which, Array& rows) {
  const bool here = rows.device().is_cpu();
  Array copy = here ? Array() : rows.to(Device::cpu());
  std::byte* const to = (here ? rows : copy).data();
  const std::size_t bytes = row_bytes(from);
  for (std::size_t i = 0; i < which.size(); ++i)
    std::memcpy(to + which[i] * bytes, from.data() + i * bytes, bytes);
  if (!here) rows = copy.to(rows.device());
}

// alone: as a Decoder carries the states of one sequence.
StateDict state_of(const CarriedStates& alone, const std::vector<Array>& states) {
  StateDict out;
  for (std::size_t i = 0; i < states.size(); ++i)
    out.emplace(alone.names[i], states[i].reshaped(alone.initial[i].shape()));
  return out;
}

}  // namespace

void Stopped::save(const std::string& path) const {
  SafeTensors file{.tensors = state, .metadata = {{kPosition, std::to_string(position)}}, .types = {}};
  if (!model.empty()) file.metadata[kModel] = model;
  write_safetensors(path, file);
}

Stopped Stopped::load(const std::string& path) {
  SafeTensors file = read_safetensors(path);
  const auto at = file.metadata.find(kPosition);
  const std::string text = at == file.metadata.end() ? "" : at->second;
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    throw IoError(fmt::format(
        "[streams] {}: no stream that has left: its metadata have no position; give a file that Stopped::save wrote",
        printable(path)));
  const auto of = file.metadata.find(kModel);
  return {std::move(file.tensors), std::stoll(text), of == file.metadata.end() ? "" : of->second};
}

struct Streams::Row {
  Id id;
  std::int64_t position;
  std::vector<Array> states;  // [1, ..] each, on the CPU
};

struct Streams::Group {
  // Where a stream's states are: in a row of those of the group or, of one that has come since the last step, by
  // themselves. So of many that come or go between two steps each is copied once.
  struct Place {
    std::size_t row = 0;
    std::vector<Array> own = {};  // [1, ..] each, on the CPU, that nobody writes to; empty: in the row
  };

  std::vector<Id> ids;
  std::vector<std::int64_t> positions;
  std::vector<Place> places;
  std::vector<Array> states;  // [rows, ..] each; after settle() the streams' own rows, in their order
  // By how many streams, and what is learnt (0: a token is read).
  std::map<std::pair<std::size_t, std::int64_t>, std::unique_ptr<StateProgram>> programs;

  std::size_t size() const { return ids.size(); }

  void add(Row row) {
    ids.push_back(row.id);
    positions.push_back(row.position);
    places.push_back({0, std::move(row.states)});
  }

  Row row(std::size_t at) const {
    Row out{ids[at], positions[at], {}};
    for (const Array& own : places[at].own) out.states.push_back(own.clone());
    if (out.states.empty())
      for (const Array& rows : states) out.states.push_back(rows_of(rows, {places[at].row}));
    return out;
  }

  Row take(std::size_t at) {
    Row out = row(at);
    const auto erase = [at](auto& of) { of.erase(of.begin() + static_cast<std::ptrdiff_t>(at)); };
    erase(ids), erase(positions), erase(places);
    if (ids.empty()) states.clear();
    return out;
  }

  // Brings every stream's states into a row of the group's, in the order of the streams. Each is copied once.
  void settle(const Device& device) {
    bool settled = states.empty() || states[0].shape()[0] == std::ssize(places);
    for (std::size_t i = 0; i < places.size(); ++i)
      settled = settled && places[i].own.empty() && places[i].row == i;
    if (settled) return;
    const std::vector<Array>& like = states.empty() ? places[0].own : states;
    std::vector<Array> now;
    for (std::size_t s = 0; s < like.size(); ++s) {
      const Array old = like[s].to(Device::cpu());
      Spec spec = old.spec();
      spec.shape[0] = std::ssize(places);
      Array all(spec);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& [row, own] = places[i];
        const Array& from = own.empty() ? old : own[s];
        const std::size_t bytes = row_bytes(from);
        std::memcpy(all.data() + i * bytes, from.data() + row * bytes, bytes);
      }
      now.push_back(all.to(device));
    }
    states = std::move(now);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = {i};
  }

  // Those whose chunk of so many tokens is complete.
  std::vector<std::size_t> due(std::int64_t chunk) const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < size(); ++i)
      if (positions[i] > 0 && positions[i] % chunk == 0) out.push_back(i);
    return out;
  }
};

Streams::Streams(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t capacity,
                 ttt::FormChoice form)
    : params_(std::move(params)), dtype_(dtype) {
  if (config.ttt_layer_type == kEndToEnd)
    throw ConfigError(
        "[streams] ttt-e2e counts what its caches hold for all sequences at once, so that none can join or leave; read "
        "each text with a Decoder of its own");
  if (config.ttt_layer_type == "attention") capacity_ = capacity;
  trace(decoding_model(config, capacity, form));
  // Two ways to write one model are one.
  LanguageModelConfig settled = config;
  if (config.ttt_layer_type != "attention")
    settled.attention_window = window_of(config, learner_system(config.ttt_layer_type));
  config_ = settled.to_json();
}

Streams::Streams(const LogitsFn& model, StateDict params, DType dtype)
    : params_(std::move(params)), dtype_(dtype) {
  trace(model);
}

Streams::~Streams() = default;

void Streams::trace(const LogitsFn& model) {
  model_ = model;
  alone_ = CarriedStates::of(model_, params_.all(), dtype_, 1, false);
  apart_ = CarriedStates::of(model_, params_.all(), dtype_, 1, true);
  const CarriedStates two = CarriedStates::of(model_, params_.all(), dtype_, 2, true);
  for (std::size_t i = 0; i < two.names.size(); ++i) {
    const Shape &shape = two.initial[i].shape(), &one = apart_.initial[i].shape();
    if (!shape.empty() && shape[0] == 2 && one[0] == 1 &&
        std::equal(shape.begin() + 1, shape.end(), one.begin() + 1))
      continue;
    throw ConfigError(fmt::format(
        "[streams] the state '{}' of two sequences is {}: its first axis must be theirs, so that one can leave and "
        "take its row along; counts are to be those of Stream::counter, which are then [2, 1, 1, 1]",
        two.names[i], to_string(shape)));
  }
  check_apart(model_, dtype_, 0);
  for (const std::int64_t chunk : apart_.chunks) check_apart(model_, dtype_, chunk);
  // A Decoder refuses a model that remembers nothing and yet is another when it is read as a whole.
  if (alone_.names.empty()) const Decoder refuses(model_, params_.all(), dtype_, 1);
  groups_.push_back(std::make_unique<Group>());
  const StateProgram& one = program(*groups_[0], 1, 0);
  vocab_size_ = one.vocab_size();
  device_ = one.device();
}

StateProgram& Streams::program(Group& group, std::size_t rows, std::int64_t learns) {
  std::unique_ptr<StateProgram>& found = group.programs[{rows, learns}];
  if (!found)
    found = std::make_unique<StateProgram>(
        model_, apart_, params_, dtype_,
        StateProgram::Sizes{.batch = static_cast<std::int64_t>(rows), .apart = true, .learns = learns});
  return *found;
}

// Of the model's description, what it carries, and its weights: made when a stream first leaves, or joins again.
const std::string& Streams::fingerprint() const {
  if (fingerprint_.empty())
    fingerprint_ =
        fmt::format("{:016x}{}", fnv1a(fmt::format("{} {}", config_, fmt::join(alone_.names, " "))),
                    fingerprint_of(params_.all()));
  return fingerprint_;
}

std::pair<std::size_t, std::size_t> Streams::place_of(Id stream) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<Id>& ids = groups_[g]->ids;
    if (const auto at = std::ranges::find(ids, stream); at != ids.end())
      return {g, static_cast<std::size_t>(at - ids.begin())};
  }
  throw ConfigError(fmt::format("[streams] there is no stream {}; it has left, or never joined", stream));
}

std::int64_t Streams::position(Id stream) const {
  require_whole();
  const auto [group, row] = place_of(stream);
  return groups_[group]->positions[row];
}

Streams::Id Streams::enter(std::int64_t position, std::vector<Array> states) {
  ids_.push_back(next_++);
  make_groups();
  smallest_group().add({ids_.back(), position, std::move(states)});
  level();
  return ids_.back();
}

void Streams::require_whole() const {
  if (is_broken_)
    throw ConfigError(
        "[streams] an earlier step failed part way: some streams had read their token, some had not. Make new Streams, "
        "and let them join with what was saved before");
}

Streams::Id Streams::join() {
  require_whole();
  std::vector<Array> states;
  for (const Array& initial : apart_.initial) states.push_back(initial.to(Device::cpu()));
  return enter(0, std::move(states));
}

Streams::Id Streams::join(const Stopped& stopped) {
  require_whole();
  check_position("streams", stopped.position, capacity_);
  if (!stopped.model.empty() && stopped.model != fingerprint())
    throw ConfigError(
        "[streams] this stream has read with another model, or with other weights: let it join Streams of the ones it was "
        "saved from");
  alone_.check_fits(stopped.state, stopped.position);
  std::vector<Array> states;
  for (std::size_t i = 0; i < apart_.names.size(); ++i) {
    const Array& given = stopped.state.at(apart_.names[i]);
    states.push_back(given.to(Device::cpu()).clone().reshaped(apart_.initial[i].shape()));
  }
  return enter(stopped.position, std::move(states));
}

Stopped Streams::look(Id stream) const {
  require_whole();
  const auto [group, at] = place_of(stream);
  const Row row = groups_[group]->row(at);
  return {state_of(alone_, row.states), row.position, fingerprint()};
}

Stopped Streams::leave(Id stream) {
  require_whole();
  const auto [group, at] = place_of(stream);
  const Row row = groups_[group]->take(at);
  std::erase(ids_, stream);
  level();
  return {state_of(alone_, row.states), row.position, fingerprint()};
}

// A group for each thread, or more where they would have too many rows.
void Streams::make_groups() {
  const std::size_t needed = std::max<std::size_t>(std::min(uz(thread_count()), ids_.size()),
                                                   (ids_.size() + kMostRows - 1) / kMostRows);
  while (groups_.size() < needed) groups_.push_back(std::make_unique<Group>());
}

Streams::Group& Streams::smallest_group() const {
  return **std::ranges::min_element(groups_, {}, [](const std::unique_ptr<Group>& g) { return g->size(); });
}

void Streams::level() {
  make_groups();
  for (;;) {
    const auto [least, most] =
        std::ranges::minmax_element(groups_, {}, [](const std::unique_ptr<Group>& g) { return g->size(); });
    if ((*most)->size() < (*least)->size() + 2) return;
    (*least)->add((*most)->take((*most)->size() - 1));
  }
}

void Streams::check(const std::vector<std::int32_t>& tokens) const {
  require_whole();
  if (tokens.size() != ids_.size())
    throw ShapeError(
        fmt::format("[streams] {} tokens for {} streams; a step wants one for each, in the order of ids()",
                    tokens.size(), ids_.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size_)
      throw ValueError(fmt::format("[streams] token {} of stream {} is outside of the vocabulary, 0 to {}",
                                   tokens[i], ids_[i], vocab_size_ - 1));
    if (capacity_ > 0 && position(ids_[i]) >= capacity_)
      throw ConfigError(fmt::format(
          "[streams] the attention cache of stream {} holds {} tokens and is full; let it leave, or make Streams with "
          "more capacity",
          ids_[i], capacity_));
    apart_.check_counts("streams", position(ids_[i]));
  }
}

// What the streams whose chunk is complete learn from it, before they read the token behind it.
void Streams::learn(Group& group, std::int64_t chunk, const Array& tokens) {
  const std::vector<std::size_t> due = group.due(chunk);
  if (due.empty()) return;
  StateProgram& program = this->program(group, due.size(), chunk);
  if (due.size() == group.size()) return program.run(tokens, group.states);
  std::vector<Array> states(group.states.size());
  for (const std::vector<std::size_t>& some : {program.reads(), program.changes()})
    for (const std::size_t i : some)
      if (!states[i].defined()) states[i] = rows_of(group.states[i], due).to(device_);
  program.run(rows_of(tokens, due), states);
  for (const std::size_t i : program.changes()) put_rows(states[i].to(Device::cpu()), due, group.states[i]);
}

Array Streams::step(const std::vector<std::int32_t>& tokens) {
  check(tokens);
  Array out(dtype_, {std::ssize(ids_), vocab_size_});
  std::vector<Group*> reading;
  // Programs share weights, so they are made one after the other.
  for (const std::unique_ptr<Group>& group : groups_) {
    if (group->size() == 0) continue;
    reading.push_back(group.get());
    group->settle(device_);
    program(*group, group->size(), 0);
    for (const std::int64_t chunk : apart_.chunks)
      if (const std::size_t due = group->due(chunk).size(); due > 0) program(*group, due, chunk);
  }
  const auto read = [&](int part, int) {
    Group& group = *reading[uz(part)];
    Array own(DType::i32, {std::ssize(group.ids)});
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < group.size(); ++i) {
      places.push_back(static_cast<std::size_t>(std::ranges::find(ids_, group.ids[i]) - ids_.begin()));
      own.as<std::int32_t>()[i] = tokens[places[i]];
    }
    for (const std::int64_t chunk : apart_.chunks) learn(group, chunk, own);
    StateProgram& step = program(group, group.size(), 0);
    step.run(own, group.states);
    for (std::int64_t& position : group.positions) ++position;
    put_rows(step.logits(), places, out);
  };
  is_broken_ = true;
  in_parallel(static_cast<int>(reading.size()), thread_count(), read);
  is_broken_ = false;
  return out;
}

}  // namespace nestgrad
