#include "engine/plan/body_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/threads.h"
#include "engine/plan/body_order.h"
#include "engine/plan/cluster_source.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kMostCopied = 1 << 16;  // elements of a matrix that is copied to be multiplied
constexpr std::int64_t kBlockRows = 16;        // of a matrix that several steps add to
constexpr std::size_t kPart = 64;              // instructions of a function: compilers take n log n for more

class Writer {
 public:
  explicit Writer(const Program& body) : body_(body) {}

  std::string run() {
    if (body_.code.size() > kMostInstructions) return {};
    std::vector<std::string> parts;
    std::size_t groups = 0;
    const std::vector<BodyGroup> order = body_order(body_);
    for (std::size_t g = 0; g < order.size(); ++g) {
      if (groups++ % kPart == 0) parts.emplace_back();
      std::vector<BodyProducts> same{with_transposed(order[g])};
      while (!same.empty() && g + same.size() < order.size()) {
        std::vector<BodyProducts> next = with_transposed(order[g + same.size()]);
        if (next.empty() || !multiply_same(same[0], next[0])) break;
        const auto may_alternate_with_next = [&](const BodyGroup& group) {
          return may_alternate(body_, group.alone, order[g + same.size()].alone);
        };
        if (!std::ranges::all_of(std::span(order).subspan(g, same.size()), may_alternate_with_next)) break;
        same.push_back(std::move(next[0]));
      }
      if (same.size() > 1) parts.back() += multiplications(same);
      else parts.back() += order[g].alone >= 0 ? instruction(uz(order[g].alone)) : over_matrix(order[g]);
      g += std::max<std::size_t>(same.size(), 1) - 1;
    }
    if (!has_text_) return {};
    std::string out = functions_, calls;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      out += fmt::format("static void part{}({}) {{\n{}}}\n", p, kParameters, parts[p]);
      calls += fmt::format("  part{}(arena, external, literals, call, context);\n", p);
    }
    return fmt::format(
        "namespace $_parts {{\n{}}}\nextern \"C\" void $({}) {{\n  using namespace $_parts;\n{}}}\n", out,
        kParameters, calls);
  }

 private:
  static constexpr std::string_view kParameters =
      "std::byte* arena, std::byte* const* external, const std::byte* const* literals, "
      "void (*call)(void*, int), void* context";

  const GraphNode& node(NodeId id) const { return body_.graph->node(id); }

  std::string instruction(std::size_t i) {
    const Instruction& ins = body_.code[i];
    if (const auto products = products_of(body_, ins); products && is_possible(products->of))
      return multiplications({*products});
    const std::string statement = statement_of(ins);
    if (statement.empty()) return fmt::format("  call(context, {});\n", i);
    has_text_ = true;
    std::string out = fmt::format("  {{  // {}\n    const std::byte* const in[] = {{", ops_of(body_, ins));
    for (const Place& p : ins.in) out += text_of(p) + ", ";
    out += "};\n    std::byte* const out[] = {";
    if (ins.outs.empty()) out += text_of(ins.out);
    for (const Place& p : ins.outs) out += text_of(p) + ", ";
    return out + "};\n    " + statement + "  }\n";
  }

  static std::string text_of(const Place& place) {
    switch (place.kind) {
      case Place::Kind::arena:
        return fmt::format("arena + {}", place.at);
      case Place::Kind::external:
        return fmt::format("external[{}]", place.at);
      case Place::Kind::literal:
        return fmt::format("literals[{}]", place.at);
      case Place::Kind::none:
        break;
    }
    return "nullptr";
  }

  // In terms of in and out. Empty: there is no text.
  std::string statement_of(const Instruction& ins) {
    if (ins.scan) return {};
    if (ins.call) return loops(*ins.call);
    if (!ins.op) return fmt::format("__builtin_memcpy(out[0], in[0], {});\n", ins.bytes);
    if (!ins.with.empty()) return {};
    const NodeCall call(body_.graph->nodes(), node(ins.node));
    const std::string text = loops(alone(call));
    return text.empty() ? column_sums(call) : text;
  }

  // ---- products ----

  static std::string_view type_of(DType dtype) { return dtype == DType::f32 ? "float" : "double"; }
  static std::string elements(DType dtype, const std::string& address, const std::string& from) {
    return fmt::format("elements<{}>({}) + {}", type_of(dtype), address, from);
  }

  // Where batch member i begins, in elements. A table that this takes is written to `tables`.
  static std::string begin_of(const std::vector<std::int64_t>& offsets, std::string& tables) {
    const std::int64_t step = offsets.size() > 1 ? offsets[1] - offsets[0] : 0;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      if (offsets[i] == static_cast<std::int64_t>(i) * step) continue;
      const std::string name = fmt::format("at{}", tables.size());
      tables += fmt::format("static const std::int64_t {}[] = {{{}}};\n    ", name, fmt::join(offsets, ", "));
      return name + "[i]";
    }
    return fmt::format("i * {}", step);
  }

  static bool is_possible(const OpProducts& of) {
    const bool copies = of.transpose_b && of.m > 1 && of.n > 1;
    return of.m > 0 && of.n > 0 && of.k > 0 && of.count() > 0 && (!copies || of.n * of.k <= kMostCopied);
  }

  std::string address_of(const BodyProducts& p, const Place& place, const std::string& from) const {
    return place.kind == Place::Kind::none ? "nullptr" : elements(p.dtype, text_of(place), from);
  }

  // The products of a group that is one instruction with a transposed right operand that is copied; else none.
  std::vector<BodyProducts> with_transposed(const BodyGroup& group) const {
    if (group.alone < 0) return {};
    const auto p = products_of(body_, body_.code[uz(group.alone)]);
    if (!p || !p->of.transpose_b || p->of.m < 2 || p->of.n < 2 || !is_possible(p->of)) return {};
    return {*p};
  }
  static bool multiply_same(const BodyProducts& p, const BodyProducts& q) {
    return p.b == q.b && p.of.b == q.of.b && p.of.n == q.of.n && p.of.k == q.of.k && p.dtype == q.dtype;
  }

  // Is it cheaper to transpose what is small of each product (is_turned() of ops/kernels/fixed_product.h) than to
  // transpose the right operand of all of them once? Registers have 16 lanes at most.
  static bool are_turned(const std::vector<BodyProducts>& all) {
    std::int64_t copied = 0;
    for (const BodyProducts& p : all) {
      if (p.of.m % 16 != 0 || p.of.n % 16 != 0) return false;
      copied += p.of.m * (p.of.k + p.of.n);
    }
    return copied < all[0].of.n * all[0].of.k;
  }

  // One, or several whose right operand is the same, which is then transposed once.
  std::string multiplications(const std::vector<BodyProducts>& all) {
    has_text_ = true;
    const BodyProducts& first = all[0];
    const OpProducts& of = first.of;
    std::string tables, calls;
    std::string b = address_of(first, first.b, begin_of(of.b, tables));
    const bool shared = all.size() > 1 && !are_turned(all);
    if (shared) {
      calls +=
          fmt::format("      const Transposed<{}, {}, {}> b({});\n", type_of(first.dtype), of.n, of.k, b);
      b = "b";
    }
    for (const BodyProducts& p : all) {
      const std::string c = fmt::format("i * {}", p.of.m * p.of.n), a = begin_of(p.of.a, tables);
      calls += fmt::format("      fixed_product<{}, {}, {}, {}, {}, {}>({}, {}, {}, {});\n", type_of(p.dtype),
                           p.of.m, p.of.n, p.of.k, p.of.transpose_a, p.of.transpose_b, address_of(p, p.a, a),
                           b, address_of(p, p.d, c), address_of(p, p.c, c));
    }
    return fmt::format("  {{  // {}\n    {}for (std::int64_t i = 0; i < {}; ++i) {{\n{}    }}\n  }}\n",
                       shared ? "with one matrix" : "matmul", tables, of.count(), calls);
  }

  BodyProducts products(int i) const { return *products_of(body_, body_.code[uz(i)]); }

  std::string over_matrix(const BodyGroup& group) {
    has_text_ = true;
    const auto is_thin = [&](int i) { return products(i).of.k == 1; };
    return std::ranges::all_of(group.steps, is_thin) ? walk(group) : steps_by_blocks(group);
  }

  // Each block of rows gets what all steps add before the next.
  std::string steps_by_blocks(const BodyGroup& group) {
    const BodyProducts first = products(group.steps[0]);
    const std::string_view type = type_of(first.dtype);
    const std::int64_t rows = first.of.m, columns = first.of.n;
    const std::string of_matrix = fmt::format("i * {}", rows * columns);
    const std::string to = address_of(first, products(group.steps.back()).c, of_matrix);
    std::string from = address_of(first, first.d, of_matrix), tables;
    std::vector<std::string> calls;  // but for the number of rows, and where they begin
    for (int i : group.steps) {
      const BodyProducts p = products(i);
      calls.push_back(fmt::format("product_rows<{}, {}, {}, {}, {}, {{}}>({}, {}, {}, {}, {{}});", type, rows,
                                  columns, p.of.k, p.of.transpose_a,
                                  address_of(p, p.a, begin_of(p.of.a, tables)),
                                  address_of(p, p.b, begin_of(p.of.b, tables)), from, to));
      from = to;
    }
    const auto block = [&](const std::string& indent, std::int64_t count, const std::string& row) {
      std::string out;
      for (const std::string& call : calls)
        out += indent + fmt::format(fmt::runtime(call), count, row) + "\n";
      return out;
    };
    const std::int64_t whole = rows / kBlockRows * kBlockRows;
    std::string body;
    if (whole > 0)
      body += fmt::format("      for (Size row = 0; row < {}; row += {}) {{\n{}      }}\n", whole, kBlockRows,
                          block("        ", kBlockRows, "row"));
    if (whole < rows) body += block("      ", rows - whole, std::to_string(whole));
    return fmt::format(
        "  {{  // into one matrix\n    {}for (std::int64_t i = 0; i < {}; ++i) {{\n{}    }}\n  }}\n", tables,
        first.of.count(), body);
  }

  std::string walk(const BodyGroup& group) {
    const BodyProducts first = products(group.reads.empty() ? group.steps[0] : group.reads[0]);
    const std::string_view type = type_of(first.dtype);
    const std::int64_t rows = group.reads.empty() ? first.of.m : first.of.k, columns = first.of.n;
    std::string tables, a, d, c, x, y;
    const auto add = [&](std::string& list, const Place& place, const std::string& from) {
      list += (list.empty() ? "" : ", ") + address_of(first, place, from);
    };
    const std::string of_matrix = fmt::format("i * {}", rows * columns),
                      of_row = fmt::format("i * {}", columns);
    for (int i : group.reads) {
      const BodyProducts p = products(i);
      add(a, p.a, begin_of(p.of.a, tables));
      add(d, p.d, of_row);
      add(c, p.c, of_row);
    }
    for (int i : group.steps) {
      const BodyProducts p = products(i);
      add(x, p.a, begin_of(p.of.a, tables));
      add(y, p.b, begin_of(p.of.b, tables));
    }
    const std::string matrix = group.reads.empty() ? address_of(first, first.d, of_matrix)
                                                   : address_of(first, first.b, begin_of(first.of.b, tables));
    const std::string to =
        group.steps.empty() ? "nullptr" : address_of(first, products(group.steps.back()).c, of_matrix);
    const auto list = [&](std::string_view kind, const char* name, const std::string& items) {
      return fmt::format("      {} {}[] = {{{}}};\n", kind, name, items.empty() ? "nullptr" : items);
    };
    const std::string in = fmt::format("const {}* const", type);
    return fmt::format("  {{  // over one matrix\n    {}for (std::int64_t i = 0; i < {}; ++i) {{\n", tables,
                       first.of.count()) +
           list(in, "a", a) + list(in, "d", d) + list(fmt::format("{}* const", type), "c", c) +
           list(in, "x", x) + list(in, "y", y) +
           fmt::format("      walk<{}, {}, {}, {}, {}>({}, {}, a, d, c, x, y);\n    }}\n  }}\n", type, rows,
                       columns, group.reads.size(), group.steps.size(), matrix, to);
  }

  // ---- loops ----

  // An op by itself, as a cluster of one; without ops if it can be none.
  static ClusterCall alone(const OpCall& c) {
    const auto has_type = [&](const Spec& in) { return in.dtype == c.out.dtype; };
    if (c.out.size() == 0 || c.out.rank() > static_cast<int>(kMostClusterRank) ||
        c.in.size() > kMostClusterInputs || !std::ranges::all_of(c.in, has_type))
      return {};
    ClusterOp op{.op = &c.op, .operands = {}, .output = 0};
    ClusterCall out{.in = {c.in.begin(), c.in.end()}, .shape = c.out};
    if (!c.op.element_loop) {
      if (c.op.row_reduction) op.reduce = c.op.row_reduction(c);
      if (!op.reduce || c.in[0].shape.back() > kMostClusterRow || c.out != narrow_spec(c.in[0])) return {};
      op.narrow = true;
      out.shape = c.in[0];
    }
    for (std::size_t i = 0; i < c.in.size(); ++i) op.operands.push_back(static_cast<int>(i));
    out.ops.push_back(std::move(op));
    return out;
  }

  std::string loops(const ClusterCall& call) {
    if (call.ops.empty() || call.shape.size() >= 2 * kGrain) return {};
    ClusterSource source = cluster_source(call);
    if (source.text.empty()) return {};
    auto& name = functions_of_[source.text];
    if (name.empty()) {
      name = fmt::format("loop{}", functions_of_.size() - 1);
      std::string& text = source.text;
      constexpr std::string_view kBegin = "extern \"C\" void $";
      functions_ += text.replace(0, kBegin.size(), "static void " + name);
    }
    return fmt::format("{}(in, out, 0, {});\n", name, source.units);
  }

  // A sum over axes that lie beside each other, and not the last ones: rows are added up column by column.
  static std::string column_sums(const OpCall& c) {
    if (c.op.name != "sum" || !is_float(c.out.dtype) || c.in[0].size() >= 2 * kGrain) return {};
    std::int64_t outer = 1, rows = 1, columns = 1;
    for (int axis = c.in[0].rank(); axis-- > 0;) {
      const std::int64_t extent = c.in[0].shape[uz(axis)];
      if (extent == 1) continue;
      const bool is_summed = c.op.axes(c, 0, axis) < 0;
      if (is_summed && outer > 1) return {};
      if (is_summed) rows *= extent;
      else (rows > 1 ? outer : columns) *= extent;
    }
    if (rows == 1 || columns == 1 || c.in[0].size() == 0) return {};
    return fmt::format(
        "for (std::int64_t i = 0; i < {0}; ++i) column_sum<{1}, {2}, {3}>(elements<{1}>(in[0]) + i * {4}, "
        "elements<{1}>(out[0]) + i * {3});\n",
        outer, type_of(c.out.dtype), rows, columns, rows * columns);
  }

  const Program& body_;
  std::string functions_;
  std::map<std::string, std::string> functions_of_;  // text of a cluster -> its function's name
  bool has_text_ = false;
};

}  // namespace

std::string body_source(const Program& body) { return Writer(body).run(); }

}  // namespace nestgrad
