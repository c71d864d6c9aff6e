#include "cuda/cluster_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/ceil_of.h"
#include "cuda/cluster_arguments.h"
#include "engine/core/index.h"
#include "engine/plan/cluster_layout.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kTogether = 4;     // elements side by side that a thread loads and stores as one
constexpr std::int64_t kAtOnce = 4;       // elements that lie apart: what a thread loads before it stores any
constexpr std::int64_t kMostInLane = 32;  // of a kernel of its own
constexpr std::int64_t kMostRowsOfWarp = 4;
constexpr std::int64_t kMostIndex = std::int64_t{1} << 31;  // an int counts no further

class Writer {
 public:
  Writer(const ClusterCall& call, const ClusterUse& use) : call_(call), use_(use), layout_(call) {}

  std::string run() const {
    for (const ClusterOp& op : call_.ops)
      if (op.reduce && op.op != &sum_op && op.op != &max_over_op) return {};
    if (goes_together()) return together();
    if (!layout_.has_narrow()) return one_by_one();
    return ceil_of(layout_.row(), kLanes) > use_.most_in_lane ? "" : rows();
  }

  // Do threads take kTogether elements that lie side by side?
  bool goes_together() const {
    const std::int64_t n = layout_.rows() * layout_.row();
    if (layout_.has_narrow()) return false;
    if (n % kTogether != 0 || (use_.threads > 0 && n < 2 * use_.threads)) return false;
    for (std::size_t i = 0; i < call_.in.size(); ++i)
      if (is_array(i) && !layout_.is_whole(i) && layout_.row() % kTogether != 0) return false;
    return true;
  }

  // Where they do: is this an input of which they load four at once?
  bool is_loaded_together(std::size_t i) const { return is_array(i) && !layout_.is_one_a_row(i); }

 private:
  bool is_known(std::size_t i) const { return !use_.numbers[i].empty(); }
  bool is_one(std::size_t i) const { return call_.in[i].size() == 1; }
  bool is_array(std::size_t i) const { return !is_known(i) && !is_one(i); }

  // Of the element at hand: `in_input` of inputs, `in_value` of what ops have made; `b` is one for all.
  struct Index {
    std::string in_input, in_value;
  };
  std::string operand(int o, const Index& index) const {
    if (o < 0) return fmt::format("v{}{}", ~o, call_.ops[uz(~o)].narrow ? "" : index.in_value);
    const std::size_t i = uz(o);
    if (is_known(i)) return use_.numbers[i];
    const bool single = is_one(i) || (layout_.is_one_a_row(i) && (layout_.has_narrow() || goes_together()));
    return single ? fmt::format("b{}", i) : fmt::format("a{}{}", i, index.in_input);
  }
  std::string formula(const ClusterOp& op, const Index& index) const {
    std::string out = fmt::format("formula::{}::of<T>(", op.op->name);
    for (std::size_t k = 0; k < op.operands.size(); ++k)
      out += (k ? ", " : "") + operand(op.operands[k], index);
    return out + ")";
  }

  // Inputs of one element.
  std::string ones() const {
    std::string out;
    for (std::size_t i = 0; i < call_.in.size(); ++i)
      if (!is_known(i) && is_one(i)) out += fmt::format("      const T b{} = *x{};\n", i, i);
    return out;
  }
  std::string row_and_column(const std::string& element) const {
    return fmt::format("[[maybe_unused]] const Index r = {0} / {1}, c = {0} % {1};\n", element,
                       layout_.row());
  }
  bool has_rows() const {
    for (std::size_t i = 0; i < call_.in.size(); ++i)
      if (is_array(i) && !layout_.is_whole(i)) return true;
    return false;
  }

  // The head of a loop: `each` elements or rows at a time by each of so many workers, this one has the number `worker`. How often a
  // worker comes to it, the compiler is to know, where the text does. unroll: what is said of it.
  std::string loop_over(const std::string& index, const std::string& worker, const std::string& workers,
                        std::int64_t each, std::int64_t all, std::int64_t number, const char* unroll) const {
    if (number == 0)
      return fmt::format("      for (Index {0} = {1} * ({2}); {0} < {3}; {0} += {1} * ({4})) {{\n", index,
                         each, worker, use_.count, workers);
    return fmt::format(
        "      {}\n      for (int turn = 0; turn < {}; ++turn) {{\n"
        "        const Index {} = {} * ({} + turn * {});\n{}",
        unroll, ceil_of(all, each * number), index, each, worker, number,
        all % (each * number) == 0 ? "" : fmt::format("        if ({} >= {}) break;\n", index, all));
  }

  // Each element by itself; a thread takes four that lie side by side.
  std::string together() const {
    std::string loads, work, stores;
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      if (!is_array(i)) continue;
      if (!is_loaded_together(i))
        loads += fmt::format("        const T b{} = x{}[{}];\n", i, i, layout_.row_of(i));
      else
        loads += fmt::format("        const Four<T> a{0} = load_four<{1}>(x{0} + {2});\n", i,
                             bool{use_.in_whole[i]}, layout_.is_whole(i) ? "e" : layout_.row_of(i) + " + c");
    }
    std::string arrays;
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      work += fmt::format("          const T v{} = {};\n", i, formula(call_.ops[i], {".x[u]", ""}));
      if (call_.ops[i].output < 0) continue;
      arrays += fmt::format("        Four<T> w{};\n", i);
      work += fmt::format("          w{0}.x[u] = v{0};\n", i);
      stores += fmt::format("        store_four<{1}>(w{0}, y{0} + e);\n", i, bool{use_.out_whole[i]});
    }
    return ones() +
           loop_over("e", "thread", "threads", kTogether, layout_.rows() * layout_.row(), use_.threads,
                     "NESTGRAD_UNROLL") +
           (has_rows() ? "        " + row_and_column("e") : "") + loads + arrays +
           fmt::format(
               "        NESTGRAD_UNROLL_WHOLE\n        for (int u = 0; u < {}; ++u) {{\n{}        }}\n{}"
               "      }}\n",
               kTogether, work, stores);
  }

  // Each element by itself; a thread takes elements that lie apart, and loads several before it stores any.
  std::string one_by_one() const {
    const std::int64_t n = layout_.rows() * layout_.row(),
                       at_once = use_.threads > 0
                                     ? std::clamp<std::int64_t>(ceil_of(n, use_.threads), 1, kAtOnce)
                                     : 1;
    std::string arrays, loads, work;
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      if (!is_array(i)) continue;
      std::string index = "e";
      if (!layout_.is_whole(i)) index = layout_.row_of(i) + (layout_.is_one_a_row(i) ? "" : " + c");
      arrays += fmt::format("        T a{}[{}];\n", i, at_once);
      loads += fmt::format("          a{}[u] = x{}[{}];\n", i, i, index);
    }
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      work += fmt::format("          const T v{} = {};\n", i, formula(call_.ops[i], {"[u]", ""}));
      if (call_.ops[i].output >= 0) work += fmt::format("          y{}[e] = v{};\n", i, i);
    }
    const bool even = use_.threads > 0 && n % (use_.threads * at_once) == 0;
    const std::string each = fmt::format(
        "        NESTGRAD_UNROLL\n        for (int u = 0; u < {}; ++u) {{\n"
        "          const Index e = begin + threads * u;\n{}",
        at_once, even ? "" : fmt::format("          if (e >= {}) continue;\n", use_.count));
    return ones() + loop_over("begin", "thread", "threads", 1, n, use_.threads * at_once, "NESTGRAD_UNROLL") +
           arrays +
           (loads.empty()
                ? ""
                : each + (has_rows() ? "          " + row_and_column("e") : "") + loads + "        }\n") +
           each + work + "        }\n      }\n";
  }

  // How many rows a warp takes side by side: of few rows that threads would take by turns, several.
  std::int64_t rows_of_warp() const {
    std::int64_t out = 1;
    const auto in_lane = [&](std::int64_t rows) { return ceil_of(layout_.row(), kLanes) * rows; };
    while (out < kMostRowsOfWarp && layout_.rows() % (2 * out) == 0 &&
           layout_.rows() * kLanes > use_.threads * out && in_lane(2 * out) <= use_.most_in_lane)
      out *= 2;
    return out;
  }

  // A row for the lanes of a warp, or of a half or a quarter of it, who keep it in registers. A lane that stands for several of a
  // whole warp's lanes sums up what each of them would, and then adds as they would, so that all have the same bits.
  std::string rows() const {
    const std::int64_t row = layout_.row(), beside = use_.threads > 0 ? rows_of_warp() : 1,
                       lanes = kLanes / beside, count = ceil_of(row, kLanes) * beside;
    const bool ragged = row % kLanes != 0;
    const std::string each =
        fmt::format("        NESTGRAD_UNROLL_WHOLE\n        for (int j = 0; j < {}; ++j) ", count);
    const std::string inside = ragged ? fmt::format("if (at + {} * j < {}) ", lanes, row) : "";
    const std::string column = fmt::format("at + {} * j", lanes);
    std::string out = fmt::format("      [[maybe_unused]] const int at = lane % {};\n", lanes) +
                      loop_over("r", fmt::format("thread / {}", lanes), fmt::format("threads / {}", lanes), 1,
                                layout_.rows(), use_.threads / lanes, "NESTGRAD_UNROLL_ONCE");
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      if (is_known(i)) continue;
      if (is_one(i)) out += fmt::format("        const T b{} = *x{};\n", i, i);
      else if (layout_.is_one_a_row(i))
        out += fmt::format("        const T b{} = x{}[{}];\n", i, i, layout_.row_of(i));
      else
        out += fmt::format("        T a{}[{}]{};\n{}{}a{}[j] = x{}[{} + {}];\n", i, count,
                           ragged ? " = {}" : "", each, inside, i, i, layout_.row_of(i), column);
    }
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      const ClusterOp& op = call_.ops[i];
      if (op.reduce) {
        const std::string term = operand(op.operands[0], {"[j]", "[j]"}),
                          first = operand(op.operands[0], {"[0]", "[0]"});
        out +=
            op.op == &sum_op
                ? fmt::format("        Sum<T> s{}[{}];\n", i, beside)
                : fmt::format(
                      "        const T f{0} = first_lane<{1}>({2});\n        Max<T> s{0}[{3}] = {{{4}}};\n",
                      i, lanes, first, beside,
                      fmt::join(std::vector(uz(beside), fmt::format("Max<T>(f{})", i)), ", "));
        out += fmt::format("{}{}s{}[j % {}].add({});\n", each, inside, i, beside, term);
        out += fmt::format("        const T v{} = first_lane<{}>(over_lanes(s{}).value());\n", i, lanes, i);
      } else if (op.narrow) {
        out += fmt::format("        const T v{} = {};\n", i, formula(op, {}));
      } else {
        out += fmt::format("        T v{}[{}];\n{}v{}[j] = {};\n", i, count, each, i,
                           formula(op, {"[j]", "[j]"}));
      }
      if (op.output < 0) continue;
      // Its memory may be that of an array with a number a row, which all lanes have read.
      if (op.narrow)
        out += fmt::format("        __syncwarp();\n        if (at == 0) y{}[{}] = v{};\n", i,
                           layout_.row_of(layout_.narrow_walk()), i);
      else
        out += fmt::format("{}{}y{}[{} + {}] = v{}[j];\n", each, inside, i,
                           layout_.row_of(layout_.wide_walk()), column, i);
    }
    return out + "      }\n";
  }

  const ClusterCall& call_;
  const ClusterUse& use_;
  const ClusterLayout layout_;
};

}  // namespace

std::string number_text(const Array& literal) {
  if (literal.size() != 1) return {};
  const double value = literal.to(Device::cpu()).at(0);
  return std::isfinite(value) ? fmt::format("T({:a})", value) : "";
}

std::string cluster_text(const ClusterCall& call, const ClusterUse& use) { return Writer(call, use).run(); }

ClusterKernelText cluster_kernel_text(const ClusterCall& call) {
  if (!is_float(call.shape.dtype)) return {};
  const ClusterUse use{.numbers = std::vector<std::string>(call.in.size()),
                       .in_whole = std::vector<bool>(call.in.size(), true),
                       .out_whole = std::vector<bool>(call.ops.size(), true),
                       .count = "count",
                       .most_in_lane = kMostInLane};
  const Writer writer(call, use);
  const std::string text = writer.run();
  if (text.empty()) return {};
  const ClusterLayout layout(call);
  const std::int64_t elements = layout.rows() * layout.row();
  ClusterKernelText out{.count = layout.count(), .out_whole = writer.goes_together()};
  for (std::size_t i = 0; i < call.in.size(); ++i)
    out.in_whole.push_back(out.out_whole && writer.is_loaded_together(i));
  out.threads = layout.has_narrow() ? layout.rows() * kLanes
                : out.out_whole     ? elements / kTogether
                                    : elements;
  std::string pointers;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    pointers += fmt::format("  const T* const x{0} = reinterpret_cast<const T*>(pointers.in[{0}]);\n", i);
  for (std::size_t i = 0; i < call.ops.size(); ++i)
    if (call.ops[i].output >= 0)
      pointers +=
          fmt::format("  T* const y{} = reinterpret_cast<T*>(pointers.out[{}]);\n", i, call.ops[i].output);
  // What it counts: elements or threads, to which a loop adds all of the grid before it compares.
  const bool large = 2 * std::max(elements, out.threads) >= kMostIndex - kTogether * kClusterThreads;
  out.text = fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({0}) {1}(nestgrad::cuda::Pointers pointers, std::int64_t "
      "number) {{\n"
      "  using namespace nestgrad;\n  using namespace nestgrad::cuda;\n  using T = {2};\n  using Index = {3};\n"
      "  const Index thread = static_cast<Index>(blockIdx.x) * {0} + static_cast<Index>(threadIdx.x),\n"
      "              threads = static_cast<Index>(gridDim.x) * {0}, count = static_cast<Index>(number);\n"
      "  [[maybe_unused]] const int lane = static_cast<int>(threadIdx.x) % {4};\n{5}{6}}}\n",
      kClusterThreads, kClusterFunction, call.shape.dtype == DType::f32 ? "float" : "double",
      large ? "std::int64_t" : "int", kLanes, pointers, text);
  return out;
}

}  // namespace nestgrad::cuda
