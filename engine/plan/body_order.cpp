#include "engine/plan/body_order.h"

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/node_call.h"

namespace nestgrad {

namespace {

// Some bytes of the body's memory.
struct Range {
  Place place;
  std::size_t bytes = 0;

  bool overlaps(const Range& other) const {
    if (place.kind != other.place.kind || place.kind == Place::Kind::literal) return false;
    if (place.kind == Place::Kind::external) return place.at == other.place.at;
    return place.at < other.place.at + other.bytes && other.place.at < place.at + bytes;
  }
};

// What an instruction reads and writes. Of a scan that is not known: it stays where it is.
struct Access {
  std::vector<Range> reads, writes;
  bool stays = false;
};

Access access_of(const Program& body, const Instruction& ins) {
  const auto spec = [&](NodeId id) -> const Spec& { return body.graph->node(id).spec; };
  Access out;
  if (ins.scan) {
    out.stays = true;
  } else if (ins.call) {
    for (std::size_t i = 0; i < ins.in.size(); ++i) out.reads.push_back({ins.in[i], ins.call->in[i].bytes()});
    for (const Place& place : ins.outs) out.writes.push_back({place, ins.call->shape.bytes()});
  } else {
    std::vector<NodeId> inputs = body.graph->node(ins.node).inputs;
    if (!ins.op) inputs = {ins.node};
    if (!ins.with.empty()) {  // a product and what it is added to, which has the sum's shape
      inputs = body.graph->node(ins.with[0]).inputs;
      inputs.push_back(ins.node);
    }
    out.stays = inputs.size() != ins.in.size();
    for (std::size_t i = 0; i < std::min(inputs.size(), ins.in.size()); ++i)
      out.reads.push_back({ins.in[i], spec(inputs[i]).bytes()});
    out.writes.push_back({ins.out, spec(ins.node).bytes()});
  }
  return out;
}

bool any_overlap(const std::vector<Range>& some, const std::vector<Range>& others) {
  return std::ranges::any_of(some, [&](const Range& a) {
    return std::ranges::any_of(others, [&](const Range& b) { return a.overlaps(b); });
  });
}

// May they not change places?
bool depend(const Access& a, const Access& b) {
  return a.stays || b.stays || any_overlap(a.writes, b.reads) || any_overlap(a.writes, b.writes) ||
         any_overlap(a.reads, b.writes);
}

class Order {
 public:
  explicit Order(const Program& body) : body_(body) {
    for (const Instruction& ins : body.code) {
      accesses_.push_back(access_of(body, ins));
      products_.push_back(products_of(body, ins));
    }
  }

  std::vector<BodyGroup> run() {
    for (std::size_t i = 0; i < body_.code.size(); ++i) {
      const auto number = static_cast<int>(i);
      if ((is_read(i) || is_step(i)) && joins(number)) continue;
      if (is_step(i) && is_thin(number)) groups_.push_back({.steps = {number}});
      else groups_.push_back({.alone = number});
    }
    return std::move(groups_);
  }

 private:
  static constexpr std::size_t kMostMembers = 4;  // of a group: what they add up is in registers

  bool is_read(std::size_t i) const {
    const auto& p = products_[i];
    return p && p->of.m == 1 && p->of.n > 1 && p->of.k > 1 && !p->of.transpose_b;
  }
  bool is_step(std::size_t i) const {
    const auto& p = products_[i];
    return p && p->of.m > 1 && p->of.n > 1 && p->of.k > 0 && (p->of.k == 1 || !p->of.transpose_b) &&
           p->d.kind != Place::Kind::none;
  }
  bool is_thin(int step) const { return products_[uz(step)]->of.k == 1; }

  // Extents of the matrix, and where it is before the instruction.
  struct Matrix {
    Place place;
    std::int64_t rows, columns;
    std::vector<std::int64_t> at;  // of each batch member
    DType dtype;
    bool operator==(const Matrix&) const = default;
  };
  Matrix matrix_of(int i) const {
    const BodyProducts& p = *products_[uz(i)];
    if (is_read(uz(i))) return {p.b, p.of.k, p.of.n, p.of.b, p.dtype};
    Matrix out{p.d, p.of.m, p.of.n, {}, p.dtype};
    for (std::int64_t k = 0; k < p.of.count(); ++k) out.at.push_back(k * p.of.m * p.of.n);
    return out;
  }
  Matrix made_by(int step) const {
    Matrix out = matrix_of(step);
    out.place = products_[uz(step)]->c;
    return out;
  }

  static std::vector<int> members(const BodyGroup& g) {
    std::vector<int> out = g.reads;
    out.insert(out.end(), g.steps.begin(), g.steps.end());
    if (g.alone >= 0) out.push_back(g.alone);
    return out;
  }
  bool depends(int i, const BodyGroup& g) const {
    return std::ranges::any_of(members(g), [&](int m) { return depend(accesses_[uz(i)], accesses_[uz(m)]); });
  }

  // The group with the instruction in it, if both are about one matrix. What the instruction does to the matrix
  // itself may depend on the others, nothing else.
  std::optional<BodyGroup> with(const BodyGroup& g, int i) const {
    BodyGroup out = g;
    if (g.alone >= 0) {
      if (is_read(uz(g.alone))) out = {.reads = {g.alone}};
      else if (is_step(uz(g.alone))) out = {.steps = {g.alone}};
      else return {};
    }
    const Matrix before = matrix_of(out.reads.empty() ? out.steps[0] : out.reads[0]);
    if (out.reads.size() + out.steps.size() == kMostMembers) return {};
    if (is_read(uz(i))) {
      const auto writes_over_it = [&](int step) { return products_[uz(step)]->c == before.place; };
      const auto is_thick = [&](int step) { return !is_thin(step); };
      if (matrix_of(i) != before || std::ranges::any_of(out.steps, writes_over_it) ||
          std::ranges::any_of(out.steps, is_thick))
        return {};
      out.reads.push_back(i);
    } else {
      if (!out.reads.empty() && !is_thin(i)) return {};
      const bool follows = !out.steps.empty();
      if (matrix_of(i) != (follows ? made_by(out.steps.back()) : before)) return {};
      // What the step before made is then never written.
      if (follows && !only_reads(i, products_[uz(out.steps.back())]->c, out.steps.back())) return {};
      out.steps.push_back(i);
    }
    for (int m : members(g))
      if (!go_together(parts_of(m), parts_of(i))) return {};
    return out;
  }

  // What a product has of the matrix, and the rest.
  struct Parts {
    Access vectors;
    std::vector<Range> matrices;  // read, then written
  };
  Parts parts_of(int i) const {
    Parts out{accesses_[uz(i)], {}};
    const std::ptrdiff_t matrix = is_read(uz(i)) ? 1 : 2;  // a, b, d
    out.matrices.push_back(out.vectors.reads[uz(matrix)]);
    out.vectors.reads.erase(out.vectors.reads.begin() + matrix);
    if (is_step(uz(i))) out.matrices.push_back(out.vectors.writes[0]), out.vectors.writes.clear();
    return out;
  }
  // Row by row: a row of the matrix may be read before it is written, but nothing else of one may be part of what the
  // other reads or writes.
  static bool go_together(const Parts& a, const Parts& b) {
    const auto meets = [](const Parts& x, const Parts& y) {
      const std::vector<Range> written(y.matrices.begin() + 1, y.matrices.end());
      return any_overlap(x.vectors.writes, y.matrices) || any_overlap(x.vectors.reads, written);
    };
    const bool shifted = std::ranges::any_of(a.matrices, [&](const Range& x) {
      return std::ranges::any_of(b.matrices,
                                 [&](const Range& y) { return x.overlaps(y) && x.place != y.place; });
    });
    return !depend(a.vectors, b.vectors) && !meets(a, b) && !meets(b, a) && !shifted;
  }

  // Is instruction `reader` the only one that reads what is written to this place of the arena by `writer`?
  bool only_reads(int reader, const Place& place, int writer) const {
    if (place.kind != Place::Kind::arena) return false;
    const Range written = accesses_[uz(writer)].writes[0];
    for (std::size_t i = uz(writer) + 1; i < accesses_.size(); ++i) {
      if (accesses_[i].stays) return false;
      if (static_cast<int>(i) == reader) {
        if (accesses_[i].writes[0].place == place) return true;  // in its place
        continue;
      }
      if (any_overlap(accesses_[i].reads, {written})) return false;
      if (static_cast<int>(i) > reader && any_overlap(accesses_[i].writes, {written}))
        return std::ranges::any_of(accesses_[i].writes, [&](const Range& w) {
          return w.overlaps(written) && w.bytes >= written.bytes && w.place == place;
        });
    }
    return true;
  }

  // Moves the instruction up to a group, or the group down to it.
  bool joins(int i) {
    bool may_move_up = true;
    for (std::size_t g = groups_.size(); g-- > 0 && groups_.size() - g <= kFarthestProduct;) {
      if (const auto joined = with(groups_[g], i)) {
        if (may_move_up) {
          groups_[g] = *joined;
          return true;
        }
        if (may_move_down(g)) {
          groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(g));
          groups_.push_back(*joined);
          return true;
        }
      }
      may_move_up = may_move_up && !depends(i, groups_[g]);
    }
    return false;
  }
  bool may_move_down(std::size_t g) const {
    const std::vector<int> moved = members(groups_[g]);
    for (std::size_t other = g + 1; other < groups_.size(); ++other)
      for (int m : moved)
        if (depends(m, groups_[other])) return false;
    return true;
  }

  const Program& body_;
  std::vector<Access> accesses_;
  std::vector<std::optional<BodyProducts>> products_;
  std::vector<BodyGroup> groups_;
};

}  // namespace

std::optional<BodyProducts> products_of(const Program& body, const Instruction& ins) {
  if (ins.scan || ins.call || !ins.op) return {};
  const bool adds = !ins.with.empty();
  const GraphNode& n = body.graph->node(adds ? ins.with[0] : ins.node);
  if (!n.op->products || ins.in.size() != (adds ? 3u : 2u)) return {};
  const NodeCall call(body.graph->nodes(), n);
  std::optional<OpProducts> of = n.op->products(call);
  if (!of) return {};
  return BodyProducts{std::move(*of), n.spec.dtype, ins.in[0], ins.in[1], adds ? ins.in[2] : Place{},
                      ins.out};
}

bool may_alternate(const Program& body, int first, int second) {
  const auto count = [&](int i) { return products_of(body, body.code[uz(i)])->of.count(); };
  if (count(first) == 1 && count(second) == 1) return true;
  const Access a = access_of(body, body.code[uz(first)]), b = access_of(body, body.code[uz(second)]);
  const auto any_external = [](const std::vector<Range>& ranges) {
    return std::ranges::any_of(ranges, [](const Range& r) { return r.place.kind == Place::Kind::external; });
  };
  // Two externals may be one array.
  const bool may_meet = (any_external(a.writes) && (any_external(b.reads) || any_external(b.writes))) ||
                        (any_external(b.writes) && any_external(a.reads));
  return !may_meet && !depend(a, b);
}

std::vector<BodyGroup> body_order(const Program& body) { return Order(body).run(); }

}  // namespace nestgrad
