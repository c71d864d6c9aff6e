#include "cuda/scan_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/ceil_of.h"
#include "cuda/cluster_source.h"
#include "cuda/moves.h"
#include "cuda/product_shape.h"
#include "cuda/reduction.h"
#include "cuda/scan_text.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/cluster_layout.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

constexpr std::size_t kMostInstructions = 400;  // of a body; a compiler takes seconds for so many
constexpr std::int64_t kMostInLane = 8;         // elements of a row that a lane keeps
constexpr std::int64_t kThreads = kScanThreads, kLanes = 32, kWarps = kThreads / kLanes, kWhole = 16;

// Where element `index` of a walk lies, with the walk's sizes as constants.
std::string at_text(const Strided& walk, const std::string& index) {
  std::string out;
  std::int64_t inside = 1;
  for (int d = walk.rank; d-- > 0; inside *= walk.size[d]) {
    if (walk.stride[d] == 0) continue;
    std::string axis = index;
    if (inside != 1) axis = fmt::format("{} / {}", axis, inside);
    if (d > 0) axis = fmt::format("{} % {}", axis, walk.size[d]);
    out += fmt::format("{}({}) * {}", out.empty() ? "" : " + ", axis, walk.stride[d]);
  }
  return out.empty() ? "0" : out;
}

class Writer {
 public:
  // spread: parts of sums of products by different threads, which takes scratch memory.
  Writer(const ScanStep& scan, Precision precision, bool spread)
      : scan_(scan),
        precision_(precision),
        spread_(spread),
        body_(scan.workers[0].body),
        dtype_(body_.graph->node(0).spec.dtype),
        scratch_at_(ceil_of(static_cast<std::int64_t>(scan.memory_bytes()), kWhole) * kWhole) {}

  ScanSource run() {
    if (body_.code.size() > kMostInstructions) return {};
    std::string steps;
    for (const Instruction& ins : body_.code) {
      const std::string text = instruction(ins);
      if (text.empty()) return {};
      steps += fmt::format("    {{  // {}\n{}    }}\n    __syncthreads();\n", ops_of(body_, ins), text);
    }
    ScanSource out;
    out.memory_bytes = uz(scratch_at_ + scratch_bytes_);
    out.text = fmt::format(
        "extern \"C\" __global__ void __launch_bounds__({}, 1) {}(const nestgrad::StepTableView* table, "
        "nestgrad::cuda::Bases bases, nestgrad::Stretch steps, const std::byte* const* literals) {{\n"
        "  using namespace nestgrad;\n  using namespace nestgrad::cuda;\n  using T = {};\n"
        "  using Index = int;\n  constexpr Index threads = {};\n"
        "  const Index thread = static_cast<Index>(threadIdx.x), lane = thread % {}, warp = thread / {};\n"
        "  run_steps<T>(*table, bases, steps, [&](std::byte* memory, std::byte* const* external) {{\n{}  }});\n}}\n",
        kThreads, kScanFunction, dtype_ == DType::f32 ? "float" : "double", kThreads, kLanes, kLanes, steps);
    return out;
  }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(dtype_)); }

  // ---- addresses ----

  std::string address(const Place& p) const {
    if (p.kind == Place::Kind::arena) return fmt::format("memory + {}", scan_.body_arena + p.at);
    return fmt::format("{}[{}]", p.kind == Place::Kind::external ? "external" : "literals", p.at);
  }
  std::string input(const std::string& name, const Place& p) const {
    return fmt::format("      const T* const {} = reinterpret_cast<const T*>({});\n", name, address(p));
  }
  std::string output(const std::string& name, const Place& p) const {
    return fmt::format("      T* const {} = reinterpret_cast<T*>({});\n", name, address(p));
  }

  // Does a value begin at a multiple of kWhole bytes, at every step and of every slice?
  template <class Value>  // StepPart, StepValue
  bool is_whole(const Value& v) const {
    return cuda::is_whole(scan_.table, v);
  }
  bool is_whole(const StepCarry& c) const {
    return is_whole(c.part) && c.part.bytes % kWhole == 0 && c.even % kWhole == 0 && c.odd % kWhole == 0 &&
           (c.stack < 0 || is_whole(scan_.table.stacks[uz(c.stack)]));
  }
  bool is_whole(const Place& p) const {
    if (p.kind == Place::Kind::arena) return (scan_.body_arena + p.at) % uz(kWhole) == 0;
    if (p.kind == Place::Kind::literal) return true;
    const StepTable& t = scan_.table;
    std::size_t k = p.at;
    for (int ways = 0; ways < 2; ++ways) {  // as operands of the step, then as its results
      if (k < t.carries.size()) return is_whole(t.carries[k]);
      k -= t.carries.size();
      if (ways > 0) break;
      if (k < t.xs.size()) return is_whole(t.xs[k]);
      k -= t.xs.size();
      if (k < t.constants.size()) return is_whole(t.constants[k]);
      k -= t.constants.size();
    }
    for (const StepValue& stack : t.stacks)
      if (!stack.of_carry && k-- == 0) return is_whole(stack);
    return false;
  }

  // Is it a value that the step is given: a carry, an x, a constant?
  bool is_operand(const Place& p) const {
    const StepTable& t = scan_.table;
    return p.kind == Place::Kind::external && p.at < t.carries.size() + t.xs.size() + t.constants.size();
  }

  // ---- instructions ----

  // Empty: there is no text.
  std::string instruction(const Instruction& ins) {
    if (ins.scan) return {};
    if (ins.call) return cluster(*ins.call, ins.in, ins.outs);
    if (!ins.op) {
      const std::int64_t n = static_cast<std::int64_t>(ins.bytes) / element();
      return move(ins, move_over({n}, {1}, {1}));
    }
    const NodeCall use(body_.graph->nodes(), body_.graph->node(ins.node));
    const OpCall& call = use;
    if (ins.op->element_loop) return cluster(single(call), ins.in, {ins.out});
    if (ins.op->view) return move(ins, move_of_view(call));
    if (ins.op == &matmul_op) return product(ins, call);
    if (ins.op == &sum_op) return reduction(ins, call, "Sum");
    if (ins.op == &max_over_op) return reduction(ins, call, "Max");
    if (ins.op == &pad_op)
      return "      {\n" + for_each(call.out.size(), output("to", ins.out), "to[e] = T(0);") +
             "      }\n      __syncthreads();\n" + move(ins, move_of_pad(call));
    if (ins.op == &concat_op) {
      std::string out;
      const std::vector<Move> moves = moves_of_concat(call);
      for (std::size_t i = 0; i < moves.size(); ++i)
        out += "      {\n" + move_between(ins.in[i], ins.out, moves[i]) + "      }\n";
      return out;
    }
    if (ins.op == &tril_op) {
      const Shape& shape = call.out.shape;
      return for_each(call.out.size(), input("from", ins.in[0]) + output("to", ins.out),
                      fmt::format("to[e] = e % {0} <= e / {0} % {1} + {2} ? from[e] : T(0);", shape.back(),
                                  shape[shape.size() - 2], call.attrs.as<TrilAttrs>().diagonal));
    }
    if (ins.op == &iota_op) {
      const auto axis = uz(call.attrs.as<IotaAttrs>().axis);
      return for_each(call.out.size(), output("to", ins.out),
                      fmt::format("to[e] = static_cast<T>(e / {} % {});", strides_of(call.out.shape)[axis],
                                  call.out.shape[axis]));
    }
    if (ins.op == &cumsum_op) {
      const auto& sum = call.attrs.as<CumsumAttrs>();
      const std::int64_t extent = call.out.shape[uz(sum.axis)];
      return for_each(extent == 0 ? 0 : call.out.size() / extent,
                      input("from", ins.in[0]) + output("to", ins.out),
                      fmt::format("sum_along(from, to, e, {}, {}, {});", extent,
                                  strides_of(call.out.shape)[uz(sum.axis)], sum.reverse));
    }
    return {};
  }

  // `statement` for each e = 0 .. count.
  static std::string for_each(std::int64_t count, const std::string& pointers, const std::string& statement) {
    return pointers + fmt::format("      for_each_element<{}>([&](int e) {{ {} }});\n", count, statement);
  }

  std::string move(const Instruction& ins, const Move& m) const {
    return move_between(ins.in[0], ins.out, m);
  }
  std::string move_between(const Place& in, const Place& out, const Move& m) const {
    return for_each(m.size, input("from", in) + output("to", out),
                    fmt::format("to[{} + {}] = from[{} + {}];", m.target_offset, at_text(m.to, "e"),
                                m.source_offset, at_text(m.from, "e")));
  }
  std::string reduction(const Instruction& ins, const OpCall& call, std::string_view kind) const {
    const Reduction r = reduction_of(call);
    if (r.terms == 0) return for_each(r.outputs, output("to", ins.out), "to[e] = T(0);");
    const std::string pointers = input("from", ins.in[0]) + output("to", ins.out);
    if (sums_by_threads(r.outputs, r.terms))
      return pointers + fmt::format(
                            "      for (int o = thread; o < {}; o += threads) {{\n"
                            "        const auto at = [](std::int64_t k) {{ return {}; }};\n"
                            "        to[o] = reduce_at<{}>(at, from + {}, 0, {}, 1).value();\n      }}\n",
                            r.outputs, at_text(r.reduced, "k"), kind, at_text(r.kept, "o"), r.terms);
    return pointers +
           fmt::format(
               "      for (int o = warp; o < {}; o += {}) {{\n"
               "        const auto at = [](std::int64_t k) {{ return {}; }};\n"
               "        const T total = over_warp(reduce_at<{}>(at, from + {}, lane, {}, {})).value();\n"
               "        if (lane == 0) to[o] = total;\n      }}\n",
               r.outputs, kWarps, at_text(r.reduced, "k"), kind, at_text(r.kept, "o"), r.terms, kLanes);
  }

  std::string product(const Instruction& ins, const OpCall& call) {
    const Product p = product_of(call);
    const std::int64_t m = p.m, n = p.n, k = p.k, count = p.count;
    std::int64_t b_row = p.b_row;
    if (call.out.size() == 0) return "      // nothing\n";
    if (k == 0) return for_each(call.out.size(), output("to", ins.out), "to[e] = T(0);");
    const auto whole = [&](const Place& place, const Strided& walk, std::int64_t row) {
      bool all = is_whole(place) && row * element() % kWhole == 0;
      for (int d = 0; d < walk.rank; ++d) all = all && walk.stride[d] * element() % kWhole == 0;
      return all;
    };
    const bool a_whole = whole(ins.in[0], p.a, std::max(p.a_row, p.a_column)),
               c_whole = is_whole(ins.out) && n * element() % kWhole == 0;
    if (dtype_ == DType::f32 && precision_ != Precision::f32 && fits_tensor_cores(m, n, k)) {
      const std::int64_t parts = spread_ ? tensor_core_parts(m, n, k, p.a_row == 1) : 1,
                         bytes = (parts - 1) * m * n * element();
      if (bytes > 0) turned_ = "";
      return product_text(
          ins, p, {.at = scratch_at_, .bytes = bytes}, "", "b + " + at_text(p.b, "i"),
          fmt::format(
              "product_in<TensorCoreProduct<Operands::{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>>",
              name(precision_), m, n, k, p.a_row, p.a_column, b_row, p.b_column, a_whole,
              whole(ins.in[1], p.b, std::max(b_row, p.b_column)), c_whole, parts));
    }
    const bool transposes = transposes_b(n, b_row, p.b_column),
               b_whole = transposes || whole(ins.in[1], p.b, b_row);
    std::string from_b = fmt::format("b + {}", at_text(p.b, "i")), before;
    Scratch parts{.at = scratch_at_, .bytes = spread_ ? parts_scratch(m, n, k) * element() : 0};
    if (transposes) {
      b_row = padded_row(n);
      before = fmt::format("        T* const turned = reinterpret_cast<T*>(memory + {});\n", scratch_at_);
      parts.at += ceil_of(k * b_row * element(), kWhole) * kWhole;
      // What a step is given, it does not change: the product before may have turned the same.
      const std::string turned = fmt::format("{} {} {} {}", ins.in[1].at, n, k, from_b);
      const bool stays = count == 1 && is_operand(ins.in[1]);
      if (!stays || turned != turned_)
        before += fmt::format("        transpose<T, {}, {}>({}, turned);\n        __syncthreads();\n", n, k,
                              from_b);
      turned_ = stays ? turned : "";
      from_b = "turned";
    } else if (parts.bytes > 0) {
      turned_ = "";
    }
    return product_text(ins, p, parts, before, from_b,
                        fmt::format("product<ProductShape<{}, {}, {}, {}, {}, {}, {}, {}, {}>, {}>", m, n, k,
                                    p.a_row, p.a_column, b_row, a_whole, b_whole, c_whole, spread_));
  }

  // Memory of the block that an instruction uses for itself.
  struct Scratch {
    std::int64_t at, bytes;
  };
  // All products of a batch by a function of cuda/scan_parts.cuh or cuda/tensor_core.cuh.
  std::string product_text(const Instruction& ins, const Product& p, const Scratch& scratch,
                           const std::string& before, const std::string& from_b,
                           const std::string& function) {
    scratch_bytes_ = std::max(scratch_bytes_, scratch.at + scratch.bytes - scratch_at_);
    // The next product writes over what the threads of this one read there.
    const bool waits = p.count > 1 && (scratch.bytes > 0 || !before.empty());
    return input("a", ins.in[0]) + input("b", ins.in[1]) + output("c", ins.out) +
           fmt::format(
               "      for (int i = 0; i < {}; ++i) {{\n{}        {}(a + {}, {}, c + i * {}, reinterpret_cast<T*>(memory + {}));\n{}      }}\n",
               p.count, before, function, at_text(p.a, "i"), from_b, p.m * p.n, scratch.at,
               waits ? "        __syncthreads();\n" : "");
  }

  // ---- groups of elementwise ops ----

  std::string cluster(const ClusterCall& call, const std::vector<Place>& in, const std::vector<Place>& out) {
    if (call.shape.size() == 0) return "      // nothing\n";
    ClusterUse use{.out_whole = std::vector<bool>(call.ops.size()),
                   .threads = kThreads,
                   .count = std::to_string(ClusterLayout(call).count()),
                   .most_in_lane = kMostInLane};
    std::string pointers;
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      use.numbers.push_back(number(call, in, i));
      use.in_whole.push_back(is_whole(in[i]));
      if (use.numbers.back().empty()) pointers += input(fmt::format("x{}", i), in[i]);
    }
    for (std::size_t i = 0; i < call.ops.size(); ++i) {
      if (call.ops[i].output < 0) continue;
      const Place& to = out[uz(call.ops[i].output)];
      use.out_whole[i] = is_whole(to);
      pointers += output(fmt::format("y{}", i), to);
    }
    const std::string text = cluster_text(call, use);
    return text.empty() ? "" : pointers + text;
  }

  // The text of an input that is a number known now; else empty.
  std::string number(const ClusterCall& call, const std::vector<Place>& in, std::size_t i) const {
    if (in[i].kind != Place::Kind::literal || call.in[i].size() != 1) return {};
    return number_text(body_.literals[in[i].at]);
  }

  const ScanStep& scan_;
  Precision precision_;
  bool spread_;
  const Program& body_;
  DType dtype_;
  std::int64_t scratch_at_, scratch_bytes_ = 0;
  std::string
      turned_;  // which operand lies transposed in the scratch memory; empty: nobody may read it again
};

}  // namespace

ScanSource scan_source(const ScanStep& scan, Precision precision, std::size_t most_bytes) {
  ScanSource out = Writer(scan, precision, true).run();
  return out.memory_bytes <= most_bytes ? out : Writer(scan, precision, false).run();
}

}  // namespace nestgrad::cuda
