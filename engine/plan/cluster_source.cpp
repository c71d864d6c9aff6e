#include "engine/plan/cluster_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/index.h"
#include "engine/plan/cluster_layout.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kShortestRow =
    8;  // shorter ones do not fill registers: no gain but for a few elements
constexpr std::int64_t kFew = 64;

class Writer {
 public:
  explicit Writer(const ClusterCall& call) : call_(call), layout_(call) {}

  ClusterSource run() {
    if (!is_float(call_.shape.dtype) || call_.shape.rank() == 0 || !knows_all_ops()) return {};
    if (row_ < kShortestRow && row_ * rows_ > kFew) return {};
    find_phases();
    ClusterSource out;
    const bool by_element = rows_ == 1 && !layout_.has_narrow();
    out.units = by_element ? row_ : rows_;
    out.unit_elements = by_element ? 1 : row_;
    out.text = function(by_element);
    return out;
  }

 private:
  bool knows_all_ops() const {
    return std::ranges::all_of(call_.ops, [](const ClusterOp& op) {
      return op.reduce ? op.op->name == "sum" || op.op->name == "max_over" : op.op->element_loop != nullptr;
    });
  }

  // ---- in which loop over the row each op is computed ----

  // An operand's value is there from this phase on.
  int ready(int operand) const { return operand >= 0 ? 0 : ready_[uz(~operand)]; }

  // Phase p reads sums that phase p - 1 made. An output may write over an input that no later op reads, so it
  // is in no earlier phase than the ops before it.
  void find_phases() {
    int latest = 0;
    for (const ClusterOp& op : call_.ops) {
      int phase = 0;
      for (int o : op.operands) phase = std::max(phase, ready(o));
      if (op.output >= 0 && !op.narrow) phase = std::max(phase, latest);
      latest = std::max(latest, phase);
      phase_.push_back(phase);
      ready_.push_back(op.reduce ? phase + 1 : phase);
    }
    phases_ = 1 + *std::ranges::max_element(ready_);
  }
  bool is_in_loop(std::size_t i) const { return call_.ops[i].reduce || !call_.ops[i].narrow; }
  // Is wide value i read in a later loop than its own?
  bool is_kept(std::size_t i) const {
    if (call_.ops[i].narrow) return false;
    for (std::size_t k = i + 1; k < call_.ops.size(); ++k)
      if (is_in_loop(k) && phase_[k] > phase_[i])
        for (int o : call_.ops[k].operands)
          if (o < 0 && uz(~o) == i) return true;
    return false;
  }

  // ---- text ----

  std::string function(bool by_element) const {
    std::string out = fmt::format(
        "extern \"C\" void $(const std::byte* const* in, std::byte* const* out, std::int64_t begin, "
        "std::int64_t end) {{\n  using T = {};\n  using P = Pack<T>;\n",
        call_.shape.dtype == DType::f32 ? "float" : "double");
    if (by_element) {
      out += "  const std::int64_t r = 0;\n" + pointers("  ");
      return out + loop(0, "each_between<T>(begin, end, ", "  ") + "}\n";
    }
    out += "  for (std::int64_t r = begin; r < end; ++r) {\n" + pointers("    ");
    for (int phase = 0; phase < phases_; ++phase) out += phase_text(phase);
    return out + "  }\n}\n";
  }

  std::string pointers(const std::string& indent) const {
    std::string out;
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      out += fmt::format("{}const T* const x{} = reinterpret_cast<const T*>(in[{}]) + ({});\n", indent, i, i,
                         layout_.row_of(i));
      if (layout_.is_one_a_row(i))
        out += fmt::format("{}const P b{} = P::load_repeated(x{});\n", indent, i, i);
    }
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      const ClusterOp& op = call_.ops[i];
      if (op.output >= 0)
        out += fmt::format("{}T* const y{} = reinterpret_cast<T*>(out[{}]) + ({});\n", indent, i, op.output,
                           layout_.row_of(op.narrow ? layout_.narrow_walk() : layout_.wide_walk()));
      else if (is_kept(i)) out += fmt::format("{}T y{}[{}];\n", indent, i, row_);
    }
    return out;
  }

  // Values of one element a row, the loop, then what the loop added up.
  std::string phase_text(int phase) const {
    std::string out, sums, results;
    bool loops = false;
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      const ClusterOp& op = call_.ops[i];
      if (phase_[i] != phase) continue;
      loops = loops || is_in_loop(i);
      if (!is_in_loop(i)) {
        out += fmt::format("    const P v{} = {};\n", i, formula(op));
        if (op.output >= 0) out += fmt::format("    *y{} = v{}.raw[0];\n", i, i);
      }
      if (!op.reduce) continue;
      sums += op.op->name == "sum" ? fmt::format("    RowSum<T, {}> s{};\n", row_, i)
                                   : fmt::format("    RowMax<T> s{};\n", i);
      results += fmt::format("    const P v{} = s{}.result();\n", i, i);
      if (op.output >= 0) results += fmt::format("    *y{} = v{}.raw[0];\n", i, i);
    }
    out += sums;
    if (loops) out += loop(phase, fmt::format("each<T, {}>(", row_), "    ");
    return out + results;
  }

  std::string loop(int phase, const std::string& call, const std::string& indent) const {
    std::string out = indent + call + "[&](auto at) __attribute__((always_inline)) {\n";
    std::map<std::string, bool> there;
    const auto need = [&](const std::string& name, const std::string& from) {
      if (!there.emplace(name, true).second) return;
      out += fmt::format("{}  const P {} = at.load({});\n", indent, name, from);
    };
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      const ClusterOp& op = call_.ops[i];
      if (phase_[i] != phase || !is_in_loop(i)) continue;
      for (int o : op.operands) {
        if (o >= 0 && !layout_.is_one_a_row(uz(o))) need(fmt::format("a{}", o), fmt::format("x{}", o));
        if (o < 0 && !call_.ops[uz(~o)].narrow && phase_[uz(~o)] != phase)
          need(fmt::format("v{}", ~o), fmt::format("y{}", ~o));
      }
      if (op.reduce) {
        out += fmt::format("{}  s{}.add(at, {});\n", indent, i, operand(op.operands[0]));
        continue;
      }
      out += fmt::format("{}  const P v{} = {};\n", indent, i, formula(op));
      if (op.output >= 0 || is_kept(i)) out += fmt::format("{}  at.store(v{}, y{});\n", indent, i, i);
    }
    return out + indent + "});\n";
  }

  std::string operand(int o) const {
    if (o < 0) return fmt::format("v{}", ~o);
    return fmt::format("{}{}", layout_.is_one_a_row(uz(o)) ? "b" : "a", o);
  }
  std::string formula(const ClusterOp& op) const {
    std::string out = fmt::format("formula::{}::of<P>(", op.op->name);
    for (std::size_t k = 0; k < op.operands.size(); ++k) out += (k ? ", " : "") + operand(op.operands[k]);
    return out + ")";
  }

  const ClusterCall& call_;
  ClusterLayout layout_;
  std::int64_t row_ = layout_.row(), rows_ = layout_.rows();
  std::vector<int> phase_, ready_;
  int phases_ = 1;
};

}  // namespace

ClusterSource cluster_source(const ClusterCall& call) { return Writer(call).run(); }

}  // namespace nestgrad
