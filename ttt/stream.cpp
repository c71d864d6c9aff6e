#include "ttt/stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad::ttt {

Stream Stream::learning(std::int64_t chunk, std::int64_t sequences) {
  Stream out(Mode::learn, sequences);
  out.learnt_chunk_ = chunk;
  return out;
}

Stream::State& Stream::find(const std::string& name) {
  for (State& s : states_)
    if (s.name == name) return s;
  throw GraphError(fmt::format("[stream] there is no state '{}'; ask for it with state() first", name));
}

Tensor Stream::state(const std::string& name, Tensor initial) {
  if (!stepping())
    throw GraphError(
        fmt::format("[stream] state '{}' exists only while decoding step by step, and this stream "
                    "is read whole: ask for it where stream.stepping(), else begin with its "
                    "initial value",
                    name));
  for (const State& s : states_)
    if (s.name == name) throw GraphError(fmt::format("[stream] state '{}' is asked for twice", name));
  Tensor value = initial;
  if (mode_ == Mode::step || mode_ == Mode::learn) value = initial.graph().input(initial.spec(), name);
  if (const auto found = before_.find(name); found != before_.end()) value = found->second;
  states_.push_back({name, value, {}, {}, {}});
  return states_.back().value;
}

std::map<std::string, Tensor> Stream::carried() const {
  std::map<std::string, Tensor> out;
  for (const State& s : states_) out[s.name] = s.next;
  return out;
}

void Stream::carry(const std::string& name, Tensor next) {
  State& s = find(name);
  if (s.next.defined())
    throw GraphError(
        fmt::format("[stream] state '{}' is carried on twice in one step; carry() it once", name));
  if (next.spec() != s.value.spec())
    throw ShapeError(fmt::format("[stream] state '{}' is {} and would become {}", name,
                                 to_string(s.value.spec()), to_string(next.spec())));
  s.next = mode_ == Mode::learn ? s.value : next;
}

void Stream::carry_chunk(const std::string& name, Tensor next, std::int64_t chunk, Tensor is_last) {
  chunks_.insert(chunk);
  const Tensor now = find(name).value;
  const bool within = mode_ == Mode::chained || (mode_ == Mode::step && !learns_outside_);
  if (within && is_last.defined()) return carry(name, select(is_last, next, now));
  carry(name, mode_ == Mode::learn ? next : now);
  if (mode_ == Mode::learn && chunk == learnt_chunk_) find(name).next = next;
}

void Stream::carry_row(const std::string& name, Tensor next, Tensor row, Tensor place) {
  if (mode_ != Mode::step || !rows_outside_) return carry(name, next);
  carry(name, find(name).value);
  find(name).row = row;
  find(name).place = place;
}

Tensor Stream::counter(const std::string& name, std::int64_t period, DType dtype) {
  const Tensor first = zeros(dtype, counter_shape()), now = state(name, first);
  carry(name, select(equal(now, static_cast<double>(period - 1)), first, now + 1.0));
  return now;
}

Tensor Stream::with_history(const std::string& name, Tensor x, std::int64_t rows) {
  if (is_packed())
    throw ConfigError(fmt::format(
        "[stream] '{}' asks for the {} rows before, which in packed documents may be another document's; ask for "
        "before() or conv(), or look at places()",
        name, rows));
  if (!stepping()) return pad(x, 1, rows, 0);
  const Tensor before = state(name, zeros(x.dtype(), {x.dim(0), rows, x.dim(2)}));
  const Tensor all = concat({before, x}, 1);
  carry(name, slice(all, 1, x.dim(1), x.dim(1) + rows));
  return all;
}

namespace {

// Rows `back` tokens earlier: of the same document, or zeros. places [batch, time].
Tensor rows_back(Tensor x, std::int64_t back, Tensor places) {
  if (back == 0) return x;
  const std::int64_t time = x.dim(1), shift = std::min(back, time);
  const Tensor moved = slice(pad(x, 1, shift, 0), 1, 0, time);
  const Tensor outside = less(reshape(places, {x.dim(0), time, 1}), static_cast<double>(back));
  return select(outside, zero_like(moved), moved);
}

}  // namespace

Tensor Stream::before(const std::string& name, Tensor x) {
  if (is_packed()) return rows_back(x, 1, places());
  return slice(with_history(name, x, 1), 1, 0, x.dim(1));
}

Tensor Stream::conv(const std::string& name, Tensor x, Tensor weight, Tensor bias) {
  const std::int64_t taps = weight.dim(-1);
  if (!is_packed()) return conv1d(with_history(name, x, taps - 1), weight, bias);
  // Each token with the rows that its taps meet, as a sequence of its own: [batch * time, taps, dim].
  const std::int64_t batch = x.dim(0), time = x.dim(1), dim = x.dim(2);
  std::vector<Tensor> rows;
  for (std::int64_t k = 0; k < taps; ++k)
    rows.push_back(reshape(rows_back(x, taps - 1 - k, places()), {batch * time, 1, dim}));
  return reshape(conv1d(concat(rows, 1), weight, bias), {batch, time, dim});
}

Tensor Stream::positions(const std::string& name, Tensor x, std::int64_t capacity) {
  if (stepping()) return counter(name, capacity, x.dtype());
  if (is_packed()) return reshape(cast(places(), x.dtype()), {x.dim(0), 1, x.dim(1), 1});
  return iota(x.dtype(), {x.dim(1)}, 0);
}

void Stream::pack(Tensor places, std::int64_t align) {
  if (mode_ != Mode::whole)
    throw ConfigError(
        "[stream] documents are packed where sequences are read whole; token by token, read one each");
  if (places.rank() != 2)
    throw ShapeError(fmt::format("[stream] places of packed documents are {}; they must be [batch, time]",
                                 to_string(places.spec())));
  if (align < 1)
    throw ConfigError(fmt::format(
        "[stream] packed documents begin at multiples of {} tokens; it must be 1 or more", align));
  places_ = places, alignment_ = align;
}

}  // namespace nestgrad::ttt
