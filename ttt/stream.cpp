#include "ttt/stream.h"

#include <fmt/format.h>

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
  states_.push_back({name, value, {}});
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
  if (mode_ == Mode::chained) return carry(name, select(is_last, next, now));
  carry(name, mode_ == Mode::learn ? next : now);
  if (mode_ == Mode::learn && chunk == learnt_chunk_) find(name).next = next;
}

Tensor Stream::counter(const std::string& name, std::int64_t period, DType dtype) {
  const Tensor first = zeros(dtype, counter_shape()), now = state(name, first);
  carry(name, select(equal(now, static_cast<double>(period - 1)), first, now + 1.0));
  return now;
}

Tensor Stream::with_history(const std::string& name, Tensor x, std::int64_t rows) {
  if (!stepping()) return pad(x, 1, rows, 0);
  const Tensor before = state(name, zeros(x.dtype(), {x.dim(0), rows, x.dim(2)}));
  const Tensor all = concat({before, x}, 1);
  carry(name, slice(all, 1, x.dim(1), x.dim(1) + rows));
  return all;
}

}  // namespace nestgrad::ttt
