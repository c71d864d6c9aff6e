#include "engine/plan/cluster_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/index.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kShortestRow =
    8;  // shorter ones do not fill registers: no gain but for a few elements
constexpr std::int64_t kFew = 64;

class Writer {
 public:
  explicit Writer(const ClusterCall& call) : call_(call) {
    for (const ClusterOp& op : call.ops) has_narrow_ = has_narrow_ || op.narrow;
  }

  ClusterSource run() {
    if (!is_float(call_.shape.dtype) || call_.shape.rank() == 0 || !knows_all_ops()) return {};
    lay_out_axes();
    if (row_ < kShortestRow && row_ * rows_ > kFew) return {};
    find_phases();
    ClusterSource out;
    const bool by_element = rows_ == 1 && !has_narrow_;
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

  // ---- where things lie ----

  // Strides of an array along the axes of the cluster's shape, 0 where it repeats.
  Shape strides_in(const Shape& shape) const {
    const Shape dense = strides_of(shape);
    Shape out(call_.shape.shape.size(), 0);
    const std::size_t lead = out.size() - shape.size();
    for (std::size_t a = 0; a < shape.size(); ++a)
      if (shape[a] != 1) out[lead + a] = dense[a];
    return out;
  }

  // Axes that every array walks along alike become one; the innermost is the row.
  void lay_out_axes() {
    const Shape& shape = call_.shape.shape;
    std::vector<Shape> strides;  // of the inputs, of wide outputs, of narrow ones
    for (const Spec& in : call_.in) strides.push_back(strides_in(in.shape));
    strides.push_back(strides_in(shape));
    strides.push_back(strides_in(narrow_spec(call_.shape).shape));
    by_size_.resize(strides.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (shape[axis] == 1 && !(has_narrow_ && axis + 1 == shape.size())) continue;
      bool joins = !sizes_.empty() && !(has_narrow_ && sizes_.size() == 1);
      for (std::size_t w = 0; joins && w < strides.size() - (has_narrow_ ? 0 : 1); ++w)
        joins = strides[w][axis] == by_size_[w].back() * sizes_.back();
      if (joins) {
        sizes_.back() *= shape[axis];
        continue;
      }
      sizes_.push_back(shape[axis]);
      for (std::size_t w = 0; w < strides.size(); ++w) by_size_[w].push_back(strides[w][axis]);
    }
    if (sizes_.empty()) {  // one element
      sizes_.push_back(1);
      for (std::vector<std::int64_t>& walk : by_size_) walk.push_back(0);
    }
    row_ = sizes_[0];
    for (std::size_t d = 1; d < sizes_.size(); ++d) rows_ *= sizes_[d];
  }
  std::size_t wide_walk() const { return call_.in.size(); }
  std::size_t narrow_walk() const { return call_.in.size() + 1; }

  // Where row r of an array begins.
  std::string row_of(std::size_t walk) const {
    std::string out;
    std::int64_t inside = 1;
    for (std::size_t d = 1; d < sizes_.size(); inside *= sizes_[d++]) {
      const std::int64_t stride = by_size_[walk][d];
      if (stride == 0) continue;
      std::string index = "r";
      if (inside != 1) index = fmt::format("{} / {}", index, inside);
      if (d + 1 < sizes_.size()) index = fmt::format("{} % {}", index, sizes_[d]);
      out += fmt::format("{}({}) * {}", out.empty() ? "" : " + ", index, stride);
    }
    return out.empty() ? "0" : out;
  }
  bool is_one_a_row(std::size_t input) const { return by_size_[input][0] == 0; }

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
                         row_of(i));
      if (is_one_a_row(i)) out += fmt::format("{}const P b{} = P::load_repeated(x{});\n", indent, i, i);
    }
    for (std::size_t i = 0; i < call_.ops.size(); ++i) {
      const ClusterOp& op = call_.ops[i];
      if (op.output >= 0)
        out += fmt::format("{}T* const y{} = reinterpret_cast<T*>(out[{}]) + ({});\n", indent, i, op.output,
                           row_of(op.narrow ? narrow_walk() : wide_walk()));
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
        if (o >= 0 && !is_one_a_row(uz(o))) need(fmt::format("a{}", o), fmt::format("x{}", o));
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
    return fmt::format("{}{}", is_one_a_row(uz(o)) ? "b" : "a", o);
  }
  std::string formula(const ClusterOp& op) const {
    std::string out = fmt::format("formula::{}::of<P>(", op.op->name);
    for (std::size_t k = 0; k < op.operands.size(); ++k) out += (k ? ", " : "") + operand(op.operands[k]);
    return out + ")";
  }

  const ClusterCall& call_;
  bool has_narrow_ = false;
  std::vector<std::int64_t> sizes_;                 // joined axes, innermost first
  std::vector<std::vector<std::int64_t>> by_size_;  // by walk, then as sizes_: its strides
  std::int64_t row_ = 0, rows_ = 1;
  std::vector<int> phase_, ready_;
  int phases_ = 1;
};

}  // namespace

ClusterSource cluster_source(const ClusterCall& call) { return Writer(call).run(); }

}  // namespace nestgrad
