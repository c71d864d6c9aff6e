#include "ttt/stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/collectives.h"

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
  if (chunk < 1)
    throw ConfigError(fmt::format(
        "[stream] state '{}' is carried on at the end of chunks of {} tokens; a chunk has at least 1", name,
        chunk));
  if (mode_ == Mode::chained && !is_last.defined())
    throw ConfigError(fmt::format(
        "[stream] state '{}' changes at the end of chunks of {} tokens, by a program of its own that a Decoder runs; steps that "
        "stand in one program never come to it: let a Decoder read, or read the whole sequence",
        name, chunk));
  if (mode_ == Mode::step && !learns_outside_ && !is_last.defined())
    throw ConfigError(fmt::format(
        "[stream] state '{}' changes at the end of chunks of {} tokens, and nothing says which token is the last of one: give "
        "is_last, or learn outside (Stream::learn_outside)",
        name, chunk));
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

Tensor Stream::counter(const std::string& name, Count count, DType dtype) {
  if (count.end < 1)
    throw ConfigError(fmt::format("[stream] '{}' is to count in a period of {} tokens; it must be at least 1",
                                  name, count.end));
  if (count.again < 0 || count.again > count.end)
    throw ConfigError(fmt::format("[stream] '{}' counts to {} and is to go on from {}; it must be 0 to {}",
                                  name, count.end, count.again, count.end));
  const Tensor now = state(name, zeros(dtype, counter_shape())), next = now + 1.0;
  counters_[name] = count;
  const auto end = static_cast<double>(count.end);
  carry(name, count.ends() ? next : select(equal(next, end), static_cast<double>(count.again), next));
  return now;
}

Tensor Stream::with_history(const std::string& name, Tensor x, std::int64_t rows) {
  if (is_packed())
    throw ConfigError(fmt::format(
        "[stream] '{}' asks for the {} rows before, which in packed documents may be another document's; ask for "
        "before() or conv(), or look at places()",
        name, rows));
  if (!stepping()) return preceded(name, x, rows);
  const Tensor before = state(name, zeros(x.dtype(), {x.dim(0), rows, x.dim(2)}));
  const Tensor all = concat({before, x}, 1);
  carry(name, slice(all, 1, x.dim(1), x.dim(1) + rows));
  return all;
}

// x and the rows before it.
Tensor Stream::preceded(const std::string& name, Tensor x, std::int64_t rows) const {
  if (!is_cut()) return pad(x, 1, rows, 0);
  const std::int64_t time = x.dim(1);
  if (rows > time)
    throw ConfigError(fmt::format(
        "[stream] '{}' asks for the {} tokens before, and each rank has slices of {}: cut sequences into fewer",
        name, rows, time));
  return concat({rank_before(slice(x, 1, time - rows, time), *ranks_), x}, 1);
}

// Rows `back` tokens earlier: of the same document, or zeros.
Tensor Stream::rows_back(const std::string& name, Tensor x, std::int64_t back) const {
  if (back == 0) return x;
  const std::int64_t time = x.dim(1), shift = is_cut() ? back : std::min(back, time);
  const Tensor moved = slice(preceded(name, x, shift), 1, 0, time);
  const Tensor outside = less(reshape(places(), {x.dim(0), time, 1}), static_cast<double>(back));
  return select(outside, zero_like(moved), moved);
}

Tensor Stream::before(const std::string& name, Tensor x) {
  if (is_packed()) return rows_back(name, x, 1);
  return slice(with_history(name, x, 1), 1, 0, x.dim(1));
}

Tensor Stream::conv(const std::string& name, Tensor x, Tensor weight, Tensor bias) {
  const std::int64_t taps = weight.dim(-1);
  if (!is_packed()) return conv1d(with_history(name, x, taps - 1), weight, bias);
  // Each token with the rows that its taps meet, as a sequence of its own: [batch * time, taps, dim].
  const std::int64_t batch = x.dim(0), time = x.dim(1), dim = x.dim(2);
  std::vector<Tensor> rows;
  for (std::int64_t k = 0; k < taps; ++k)
    rows.push_back(reshape(rows_back(name, x, taps - 1 - k), {batch * time, 1, dim}));
  return reshape(conv1d(concat(rows, 1), weight, bias), {batch, time, dim});
}

Tensor Stream::positions(const std::string& name, Tensor x, std::int64_t capacity) {
  if (stepping()) return counter(name, Count{capacity, capacity}, x.dtype());
  if (is_packed()) return reshape(cast(places(), x.dtype()), {x.dim(0), 1, x.dim(1), 1});
  return own_tokens(iota(x.dtype(), {all_tokens(x.dim(1))}, 0));
}

void Stream::cut(const ProcessGroup& ranks, SliceForm form) {
  if (mode_ != Mode::whole)
    throw ConfigError(
        "[stream] sequences are cut where they are read whole; token by token there is nothing to cut");
  if (ranks.size() > 1) ranks_ = ranks;
  slice_form_ = form;
}

Tensor Stream::own_tokens(Tensor of_all) const {
  if (!is_cut()) return of_all;
  const std::int64_t here = of_all.dim(0) / ranks_->size();
  return slice(of_all, 0, ranks_->rank() * here, (ranks_->rank() + 1) * here);
}

Tensor Stream::whole_time(const std::string& who, Tensor x) const {
  if (!is_cut()) return x;
  if (x.dim(1) % ranks_->size() != 0)
    throw ConfigError(fmt::format(
        "[stream] {} has {} heads, which {} slices of a sequence cannot share equally: cut it into a divisor of them",
        who, x.dim(1), ranks_->size()));
  return all_to_all(x, 1, 2, *ranks_);
}
Tensor Stream::whole_heads(Tensor x) const { return is_cut() ? all_to_all(x, 2, 1, *ranks_) : x; }
Tensor Stream::of_all_tokens(Tensor x, int time_axis) const {
  return is_cut() ? all_gather(x, time_axis, *ranks_) : x;
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
