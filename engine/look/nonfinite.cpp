#include "engine/look/nonfinite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "engine/look/print.h"
#include "engine/run/interpreter.h"

namespace nestgrad {

namespace {

constexpr std::string_view kFormat = "nestgrad reproducer 1";
constexpr std::string_view kReplayable = "yes";

NonFinite::Range range_of(const Array& a) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  NonFinite::Range r{.spec = a.spec(), .from = {}, .low = none, .high = none};
  dispatch(a.dtype(), [&]<class T>(T) {
    for (T element : a.as<T>()) {
      const auto v = static_cast<double>(element);
      if (std::isnan(v)) ++r.nans;
      else if (std::isinf(v)) ++r.infs;
      else r.low = std::fmin(r.low, v), r.high = std::fmax(r.high, v);
    }
  });
  return r;
}

// The report's op by itself, on inputs of the specs of its values.
Function alone(const NonFinite& r, const Op& op) {
  auto graph = std::make_shared<Graph>();
  ContextGuard guard;
  context().emit = {.graph = graph.get(), .level = r.level, .scope = ScopeName(r.scope)};
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < r.values.size(); ++i)
    in.push_back(graph->input(r.values[i].spec(), fmt::format("input{}", i), r.loc));
  const Tensor out = op.kind == OpKind::input
                         ? graph->input(r.value.spec(), r.attrs.as<InputAttrs>().name, r.loc)
                         : graph->append(op, in, r.attrs, r.loc);
  std::vector<NodeId> inputs = graph->inputs();
  return Function(std::move(graph), std::move(inputs), {out.id()});
}

void look_at_values(NonFinite& r) {
  r.inputs.clear();
  for (const Array& a : r.values) r.inputs.push_back(range_of(a));
  r.output = range_of(r.value);
  r.element = first_not_finite(r.value);
}

NonFinite report_of(const Visit& v) {
  NonFinite r{.op = std::string(v.node.op->name),
              .attrs = v.node.attrs,
              .node = v.id,
              .within = v.within,
              .steps = v.steps,
              .level = v.node.level,
              .scope = v.node.scope.str(),
              .loc = v.node.loc};
  for (const Array& a : v.inputs) r.values.push_back(a.clone());
  r.value = v.output.clone();
  look_at_values(r);
  for (std::size_t i = 0; i < r.inputs.size(); ++i) r.inputs[i].from = origin(v.nodes, v.node.inputs[i]);
  return r;
}

const Op& op_of(const NonFinite& r, const std::string& path) {
  if (const Op* op = find_op(r.op)) return *op;
  throw IoError(fmt::format("[reproducer] {}: this build has no op '{}'; use the build that found it",
                            printable(path), printable(r.op)));
}

// The numbers of a list that is separated by spaces; none if something else is among them.
template <class T>
std::optional<std::vector<T>> numbers_in(std::string_view text) {
  std::vector<T> out;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    T value{};
    const auto end = std::from_chars(word.data(), word.data() + word.size(), value);
    if (end.ec != std::errc() || end.ptr != word.data() + word.size()) return std::nullopt;
    out.push_back(value);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return out;
}

// A reproducer as it lies in a file.
class Saved {
 public:
  explicit Saved(const std::string& path) : path_(path), file_(read_safetensors(path)) {
    const auto format = file_.metadata.find("format");
    if (format == file_.metadata.end() || format->second != kFormat) fail("this file is no reproducer");
    if (text("replay") != kReplayable)
      throw IoError(fmt::format("[reproducer] {}: the op cannot be run from this file; {}", printable(path),
                                printable(text("replay"))));
  }

  const std::string& text(const std::string& key) const {
    const auto entry = file_.metadata.find(key);
    if (entry == file_.metadata.end()) fail(fmt::format("the metadata lack '{}'", key));
    return entry->second;
  }
  template <class T>
  std::vector<T> numbers(const std::string& key) const {
    auto out = numbers_in<T>(text(key));
    if (!out) fail(fmt::format("'{}' is no list of numbers: {}", key, printable(text(key))));
    return *out;
  }
  template <class T>
  T number(const std::string& key) const {
    const auto out = numbers<T>(key);
    if (out.size() != 1) fail(fmt::format("'{}' is not one number: {}", key, printable(text(key))));
    return out[0];
  }
  // Undefined if there is none.
  Array tensor(const std::string& name) const {
    const auto entry = file_.tensors.find(name);
    return entry == file_.tensors.end() ? Array() : entry->second;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw IoError(fmt::format("[reproducer] {}: {}; give a file that save_reproducer wrote", printable(path_),
                              problem));
  }

 private:
  std::string path_;
  SafeTensors file_;
};

Attrs attributes_in(const Saved& file, const Op& op) {
  if (op.kind == OpKind::input) return InputAttrs{file.text("text")};
  const std::vector<std::int64_t> numbers = file.numbers<std::int64_t>("ints");
  if (!op.read_attrs && numbers.empty()) return {};
  const std::optional<Attrs> attrs = op.read_attrs ? op.read_attrs(numbers) : std::nullopt;
  if (!attrs)
    file.fail(fmt::format("'ints' are not what '{}' needs: {}", op.name, printable(file.text("ints"))));
  return *attrs;
}

std::string place_text(const NonFinite& r) {
  std::string out;
  if (r.steps.size() == 1) out += fmt::format("step {}, ", r.steps[0]);
  else if (!r.steps.empty())
    out += fmt::format("steps {} (outermost scan first), ", fmt::join(r.steps, ", "));
  out += fmt::format("level {}", r.level);
  if (!r.scope.empty()) out += ", in " + r.scope;
  return r.loc.line() == 0 ? out : fmt::format("{} ({})", out, describe(r.loc));
}

}  // namespace

std::string NonFinite::Range::str() const {
  std::string out = to_string(spec) + ": ";
  out += std::isnan(low) ? std::string("nothing finite")
         : low == high   ? fmt::format("{:.6g}", low)
                         : fmt::format("from {:.6g} to {:.6g}", low, high);
  if (nans > 0) out += fmt::format("; {} NaN", nans);
  if (infs > 0) out += fmt::format("; {} infinite", infs);
  return out;
}

std::string NonFinite::str() const {
  const Op* row = find_op(op);
  std::string out = fmt::format("[{}] ", op);
  if (element >= 0)
    out += fmt::format("element {} of %{} = {} {} is {}, the first value that is not finite: {}", element,
                       node, row ? call_text(*row, attrs) : op, to_string(output.spec), value.at(element),
                       place_text(*this));
  else
    out += fmt::format("%{} = {} {} is finite: {}", node, row ? call_text(*row, attrs) : op,
                       to_string(output.spec), place_text(*this));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    out += fmt::format("\n  input {}, {}{}{}", i, inputs[i].from, inputs[i].from.empty() ? "" : ", ",
                       inputs[i].str());
  return out + "\n  output, " + output.str() + "\n";
}

std::optional<NonFinite> first_nonfinite(const Function& f, const std::vector<Array>& inputs) {
  std::optional<NonFinite> found;
  interpret(f, inputs, [&](const Visit& v) {
    if (v.node.op->kind == OpKind::constant || first_not_finite(v.output) < 0) return true;
    found = report_of(v);
    return false;
  });
  return found;
}

void save_reproducer(const NonFinite& r, const std::string& path) {
  const Op& op = op_of(r, path);
  const bool whole = r.attrs.bodies().empty();
  const InputAttrs* input = r.attrs.find<InputAttrs>();
  SafeTensors file;
  for (std::size_t i = 0; i < r.values.size(); ++i)
    file.tensors[fmt::format("input{}", i)] = r.values[i].to(Device::cpu());
  file.tensors["output"] = r.value.to(Device::cpu());
  file.metadata = {{"format", std::string(kFormat)},
                   {"replay", whole ? std::string(kReplayable)
                                    : "no: the op carries a program of its own (a body), which is not saved"},
                   {"op", r.op},
                   {"ints", fmt::format("{}", fmt::join(r.attrs.numbers(), " "))},
                   {"text", input ? input->name : ""},
                   {"attributes", attributes_text(op, r.attrs)},
                   {"inputs", std::to_string(r.values.size())},
                   {"node", std::to_string(r.node)},
                   {"within", fmt::format("{}", fmt::join(r.within, " "))},
                   {"steps", fmt::format("{}", fmt::join(r.steps, " "))},
                   {"level", std::to_string(r.level)},
                   {"scope", r.scope},
                   {"line", r.loc.line() == 0 ? "" : describe(r.loc)},
                   {"element", std::to_string(r.element)},
                   {"report", r.str()},
                   {"graph", whole ? alone(r, op).str() : ""}};
  write_safetensors(path, file);
}

Reproduction replay_reproducer(const std::string& path) {
  const Saved file(path);
  Reproduction out;
  NonFinite& r = out.report;
  r.op = file.text("op");
  r.node = file.number<NodeId>("node");
  r.within = file.numbers<NodeId>("within");
  r.steps = file.numbers<std::int64_t>("steps");
  r.level = file.number<int>("level");
  r.scope = file.text("scope");
  for (std::int64_t i = 0; i < file.number<std::int64_t>("inputs"); ++i) {
    r.values.push_back(file.tensor(fmt::format("input{}", i)));
    if (!r.values.back().defined()) file.fail(fmt::format("tensor 'input{}' is missing", i));
  }
  out.saved = file.tensor("output");
  if (!out.saved.defined()) file.fail("tensor 'output' is missing");
  const Op& op = op_of(r, path);
  if (op.samples &&
      std::ranges::none_of(op.samples(),
                           [&](const OpSample& s) { return s.inputs.size() == r.values.size(); }) &&
      (&op != find_op("concat") || r.values.empty()))
    file.fail(fmt::format("{} inputs are not as many as {} has", r.values.size(), r.op));
  r.attrs = attributes_in(file, op);
  if (op.kind == OpKind::input) r.value = out.saved;  // nothing to run: this is what was given
  else r.value = interpret(alone(r, op), r.values)[0];
  look_at_values(r);
  out.line = file.text("line");
  out.graph = file.text("graph");
  return out;
}

}  // namespace nestgrad
