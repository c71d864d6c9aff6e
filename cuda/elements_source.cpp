#include "cuda/elements_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cuda/cluster_source.h"
#include "cuda/scan_text.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/cluster_layout.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

constexpr std::size_t kMostInstructions = 64;

class Writer {
 public:
  Writer(const ScanStep& scan, bool fours)
      : fours_(fours),
        table_(scan.table),
        body_(scan.workers[0].body),
        dtype_(body_.graph->node(0).spec.dtype),
        carries_(table_.carries.size()),
        xs_(table_.xs.size()),
        constants_(table_.constants.size()) {}

  ElementsSource run() {
    if (!is_float(dtype_) || carries_ == 0 || body_.code.size() > kMostInstructions) return {};
    elements_ = table_.carries[0].part.bytes / element();
    // A thread beyond the last has a number too.
    constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 4 * kElementsThreads;
    if (elements_ == 0 || elements_ >= kMost || !suits()) return {};
    each_ = fours_ && goes_by_fours() ? 4 : 1;
    std::string begin, loads, results, next;
    for (std::size_t k = 0; k < carries_; ++k) {
      begin += fmt::format("  V c{0} = first_of_carry<V, T>(addresses, t, t.carry[{0}], steps, e);\n", k);
      results += fmt::format("    V n{0} = c{0};\n", k);
      next += fmt::format(
          "    keep_carry<V, T>(addresses, t.carry[{0}], steps, i, time, e, n{0});\n    c{0} = n{0};\n", k);
    }
    for (std::size_t k = 0; k < xs_; ++k) {
      const std::string line = fmt::format("line{}", k), type = is_one(table_.xs[k].part) ? "T" : "V";
      begin += fmt::format("  const ValueLine {0} = line_of(addresses, t.x[{1}]);\n  {2} later{1} = {3};\n",
                           line, k, type, load(line + ".at(steps.first)", table_.xs[k].part));
      // Of the next step, asked for before this one stores anything.
      loads += fmt::format("    const {0} x{1} = later{1};\n    if (!last) later{1} = {2};\n", type, k,
                           load(line + ".at(time + ahead)", table_.xs[k].part));
    }
    for (std::size_t k = 0; k < constants_; ++k)
      begin += fmt::format("  const {} k{} = {};\n", is_one(table_.constants[k].part) ? "T" : "V", k,
                           load(fmt::format("addresses.at(t.constant[{}], 0)", k), table_.constants[k].part));
    std::string work;
    for (const Instruction& ins : body_.code) {
      const std::string text = instruction(ins);
      if (text.empty()) return {};
      work += text;
    }
    std::size_t number = 0;
    for (std::size_t k = 0; k < table_.stacks.size(); ++k) {
      if (table_.stacks[k].of_carry) continue;
      begin += fmt::format("  const bool stores{0} = addresses.is_stored(t.stack[{1}], steps);\n", number, k);
      results += fmt::format("    V y{}{{}};\n", number);
      next += fmt::format(
          "    if (stores{0}) store_elements<V, T>(y{0}, addresses.at(t.stack[{1}], time), e);\n", number, k);
      ++number;
    }
    for (const std::size_t at : memory_) results += fmt::format("    V m{}{{}};\n", at);
    return {
        .text = fmt::format(
            "extern \"C\" __global__ void __launch_bounds__({0}) {1}(const nestgrad::StepTableView* table, "
            "nestgrad::cuda::Bases bases, nestgrad::Stretch steps, const std::byte* const* literals, int blocks) {{\n"
            "  using namespace nestgrad;\n  using namespace nestgrad::cuda;\n  using T = {2};\n  using V = {3};\n"
            "  const StepTableView& t = *table;\n"
            "  const int slice = static_cast<int>(blockIdx.x) / blocks,\n"
            "            e = {4} * (static_cast<int>(blockIdx.x) % blocks * {0} + static_cast<int>(threadIdx.x)),\n"
            "            ahead = t.reverse ? -1 : 1;\n  if (e >= {5}) return;\n"
            "  const StepAddresses<BaseOf> addresses(t, slice, BaseOf{{nullptr, bases}});\n{6}"
            "  for (int i = 0; i < steps.count; ++i) {{\n"
            "    const int time = steps.first + ahead * i;\n    [[maybe_unused]] const bool last = i + 1 == steps.count;\n"
            "{7}{8}{9}{10}  }}\n}}\n",
            kElementsThreads, kElementsFunction, dtype_ == DType::f32 ? "float" : "double",
            each_ == 4 ? "Four<T>" : "T", each_, elements_, begin, loads, results, work, next),
        .threads = elements_ / each_,
        .each = each_};
  }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(dtype_)); }
  bool is_one(const StepPart& part) const { return part.bytes == element() && elements_ > 1; }
  bool is_whole(const StepPart& part) const { return part.bytes == elements_ * element(); }
  std::string load(const std::string& from, const StepPart& part) const {
    return is_one(part) ? fmt::format("load_elements<T, T>({}, 0)", from)
                        : fmt::format("load_elements<V, T>({}, e)", from);
  }

  // Does every value of a slice begin at a multiple of 16 bytes, at each step, and is there a multiple of four elements?
  bool goes_by_fours() const {
    const auto is_aligned = [&](const StepValue& v) { return is_one(v.part) || cuda::is_whole(table_, v); };
    return elements_ % 4 == 0 &&
           std::ranges::all_of(table_.carries,
                               [&](const StepCarry& c) { return cuda::is_whole(table_, c.part); }) &&
           std::ranges::all_of(table_.xs, is_aligned) && std::ranges::all_of(table_.constants, is_aligned) &&
           std::ranges::all_of(table_.stacks, is_aligned);
  }

  bool suits() const {
    const auto fits = [&](const StepValue& v) { return is_whole(v.part) || is_one(v.part); };
    return std::ranges::all_of(table_.carries,
                               [&](const StepCarry& c) { return is_whole(c.part) && !c.partial; }) &&
           std::ranges::all_of(table_.xs, fits) && std::ranges::all_of(table_.constants, fits) &&
           std::ranges::all_of(table_.stacks, [&](const StepValue& s) { return is_whole(s.part); });
  }

  // The variable of a value. Operands: carries, xs, constants; results: next carries, stacks.
  std::string read(const Place& p) {
    if (p.kind == Place::Kind::arena) return memory(p);
    if (p.kind == Place::Kind::literal) return literal(p);
    std::size_t k = p.at;
    if (k < carries_) return fmt::format("c{}", k);
    if ((k -= carries_) < xs_) return fmt::format("x{}", k);
    if ((k -= xs_) < constants_) return fmt::format("k{}", k);
    return written(p);
  }
  std::string written(const Place& p) {
    if (p.kind == Place::Kind::arena) return memory(p);
    const std::size_t k = p.at - carries_ - xs_ - constants_;
    return k < carries_ ? fmt::format("n{}", k) : fmt::format("y{}", k - carries_);
  }
  std::string memory(const Place& p) {
    memory_.insert(p.at);
    return fmt::format("m{}", p.at);
  }
  std::string literal(const Place& p) const {
    const Array& value = body_.literals[p.at];
    if (value.size() != 1)
      return fmt::format("reinterpret_cast<const V*>(literals[{}])[e / {}]", p.at, each_);
    const std::string number = number_text(value);
    return number.empty() ? fmt::format("*reinterpret_cast<const T*>(literals[{}])", p.at) : number;
  }

  // Empty: there is no text.
  std::string instruction(const Instruction& ins) {
    if (ins.scan) return {};
    if (!ins.op && !ins.call) return fmt::format("    {} = {};\n", written(ins.out), read(ins.in[0]));
    if (ins.call) return cluster(*ins.call, ins.in, ins.outs);
    const NodeCall use(body_.graph->nodes(), body_.graph->node(ins.node));
    return ins.op->element_loop ? cluster(single(use), ins.in, {ins.out}) : "";
  }

  std::string cluster(const ClusterCall& call, const std::vector<Place>& in, const std::vector<Place>& out) {
    const ClusterLayout layout(call);
    if (call.shape.size() != elements_ || layout.has_narrow()) return {};
    for (std::size_t i = 0; i < call.in.size(); ++i)
      if (call.in[i].size() != 1 && !layout.is_whole(i)) return {};
    // What it reads, before it writes over anything.
    const std::string part = each_ > 1 ? ".x[u]" : "";
    std::string text = each_ > 1
                           ? fmt::format("    NESTGRAD_UNROLL_WHOLE\n    for (int u = 0; u < {}; ++u) {{\n",
                                         each_)
                           : "    {\n",
                stores;
    for (std::size_t i = 0; i < call.in.size(); ++i)
      text += fmt::format("      const T a{} = {}{};\n", i, read(in[i]), is_number(in[i]) ? "" : part);
    for (std::size_t i = 0; i < call.ops.size(); ++i) {
      const ClusterOp& op = call.ops[i];
      if (op.reduce) return {};
      text += fmt::format("      const T v{} = formula::{}::of<T>(", i, op.op->name);
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        const int o = op.operands[k];
        text += fmt::format("{}{}{}", k ? ", " : "", o < 0 ? 'v' : 'a', o < 0 ? ~o : o);
      }
      text += ");\n";
      if (op.output >= 0) stores += fmt::format("      {}{} = v{};\n", written(out[uz(op.output)]), part, i);
    }
    return text + stores + "    }\n";
  }

  // Is it one number for all elements?
  bool is_number(const Place& p) const {
    if (p.kind == Place::Kind::arena) return false;
    if (p.kind == Place::Kind::literal) return body_.literals[p.at].size() == 1;
    std::size_t k = p.at;
    if (k < carries_) return false;
    if ((k -= carries_) < xs_) return is_one(table_.xs[k].part);
    return (k -= xs_) < constants_ && is_one(table_.constants[k].part);
  }

  const bool fours_;
  const StepTable& table_;
  const Program& body_;
  DType dtype_;
  std::size_t carries_, xs_, constants_;
  std::int64_t elements_ = 0, each_ = 1;  // of a slice; of a thread
  std::set<std::size_t> memory_;          // places between instructions
};

}  // namespace

bool is_elementwise(const Graph& body) {
  std::int64_t elements = 1;
  for (const GraphNode& n : body.nodes()) elements = std::max(elements, n.spec.size());
  return std::ranges::all_of(body.nodes(), [&](const GraphNode& n) {
    if (n.spec.size() != elements && n.spec.size() != 1) return false;
    return n.op->kind != OpKind::value || n.op->is_alias || n.op->element_loop;
  });
}

ElementsSource elements_source(const ScanStep& scan, bool fours) { return Writer(scan, fours).run(); }

}  // namespace nestgrad::cuda
