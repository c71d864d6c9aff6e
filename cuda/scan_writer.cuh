// From a scan of a plan to its text in the memory of the device.
#pragma once

#include <algorithm>
#include <utility>

#include "cuda/backend.h"
#include "cuda/batch.h"
#include "cuda/moves.h"
#include "cuda/reductions.cuh"
#include "cuda/scan_text.h"
#include "engine/program.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::cuda {

struct Unsuited {};  // for the kernel: never leaves fuse_scan

inline std::int64_t signed_size(std::size_t n) { return static_cast<std::int64_t>(n); }

// The text of one scan, in the memory of the device.
template <class T>
class ScanWriter {
 public:
  ScanWriter(const ScanStep& step, const Program& parent, CudaBackend& backend,
             std::vector<DeviceTable>& tables)
      : step_(step), parent_(parent), body_(step.workers[0].body), backend_(backend), tables_(tables) {
    text_.reverse = step.reverse, text_.slices = step.slices;
    write_values();
    for (const Instruction& ins : body_.code) write(ins);
    text_.op = upload(ops_);
    text_.ops = static_cast<int>(ops_.size());
    text_.scratch_at = signed_size((step.memory_bytes + 15) / 16 * 16);
    text_.memory_bytes = (text_.scratch_at + scratch_bytes_ + 63) / 64 * 64;
  }

  // What writes the text of an op that is neither elementwise nor a view; null: nothing does.
  using Write = void (ScanWriter::*)(const Call&, BlockOp);
  static Write written(const Op& op) {
    static constexpr std::pair<const Op*, Write> kOps[] = {
        {&matmul_op, &ScanWriter::write_product},
        {&sum_op, &ScanWriter::template write_reduction<BlockCode::sum>},
        {&max_over_op, &ScanWriter::template write_reduction<BlockCode::largest>},
        {&pad_op, &ScanWriter::write_pad},
        {&concat_op, &ScanWriter::write_concat},
        {&tril_op, &ScanWriter::write_tril},
        {&iota_op, &ScanWriter::template write_line<BlockCode::iota>},
        {&cumsum_op, &ScanWriter::template write_line<BlockCode::cumsum>}};
    const auto* at = std::ranges::find(kOps, &op, [](const auto& row) { return row.first; });
    return at == std::end(kOps) ? nullptr : at->second;
  }

  const ScanText& text() const { return text_; }
  const std::vector<Place>& bases() const { return bases_; }
  const std::vector<CarryText>& carries() const { return carries_; }

 private:
  template <class V>
  const V* upload(const std::vector<V>& values) {
    tables_.emplace_back(backend_, values.data(), values.size() * sizeof(V));
    return tables_.back().template as<V>();
  }
  template <class V>
  const V* upload_one(const V& value) {
    return upload(std::vector<V>{value});
  }

  int base(const Place& place) {
    if (place.kind == Place::Kind::none) throw Unsuited();
    const auto same = [&](const Place& p) { return p.kind == place.kind && p.at == place.at; };
    const auto known = std::ranges::find_if(bases_, same);
    if (known != bases_.end()) return static_cast<int>(known - bases_.begin());
    if (bases_.size() == kMostBases) throw Unsuited();
    bases_.push_back(place);
    return static_cast<int>(bases_.size()) - 1;
  }
  PartText part(const SliceOf& p, const std::vector<std::size_t>& at) {
    return {upload(std::vector<std::int64_t>(at.begin(), at.end())), upload(p.owner), signed_size(p.bytes)};
  }

  void write_values() {
    for (const ScanStep::Carry& c : step_.carries) {
      CarryText t{.part = part(c.part, c.part.at),
                  .init = base(c.init),
                  .stack = c.stack,
                  .partial = c.part.partial,
                  .ping = signed_size(c.ping),
                  .pong = signed_size(c.pong)};
      if (c.final_value.kind != Place::Kind::none) t.final_value = base(c.final_value);
      if (c.part.partial && t.final_value >= 0) t.terms = base({Place::Kind::arena, c.terms});
      if (step_.copies) t.copies = base({Place::Kind::arena, c.checkpoints});
      carries_.push_back(t);
    }
    std::vector<StepsText> xs, consts, stacks;
    int every = step_.every;
    for (const ScanStep::PerStep& x : step_.xs) {
      if (x.producer >= 0) {
        const ScanStep& other = *parent_.code[static_cast<std::size_t>(x.producer)].scan;
        if (every != 0 && every != other.every) throw Unsuited();  // segments that do not meet
        every = other.every;
        xs.push_back(lazy(other, other.stacks[x.stack]));
        continue;
      }
      xs.push_back({{upload(std::vector<std::int64_t>(x.where.at.begin(), x.where.at.end()))},
                    base(x.source),
                    signed_size(x.where.stride)});
    }
    for (const ScanStep::Const& c : step_.consts) consts.push_back({part(c.part, c.part.at), base(c.source)});
    for (const ScanStep::Stack& s : step_.stacks) {
      StepsText t = s.lazy ? lazy(step_, s) : StepsText{.part = part(s.part, s.where.at)};
      if (!s.lazy) {
        t.base = base(s.stored);
        t.stride = signed_size(s.where.stride), t.buffer = signed_size(s.buffer);
      }
      t.of_carry = s.of_carry;
      stacks.push_back(t);
    }
    text_.carries = static_cast<int>(carries_.size()), text_.xs = static_cast<int>(xs.size());
    text_.consts = static_cast<int>(consts.size()), text_.stacks = static_cast<int>(stacks.size());
    if (2 * text_.carries + text_.xs + text_.consts + text_.stacks > kMostExternals) throw Unsuited();
    text_.carry = upload(carries_), text_.x = upload(xs), text_.constant = upload(consts),
    text_.stack = upload(stacks);
  }

  BlockPlace place(const Place& p) const {
    if (p.kind == Place::Kind::arena) return {BlockPlace::memory, signed_size(step_.body_arena + p.at)};
    if (p.kind == Place::Kind::external) return {BlockPlace::external, signed_size(p.at)};
    const std::byte* literal = body_.literals[p.at].data();
    return {BlockPlace::absolute, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(literal))};
  }

  void write(const Instruction& ins) {
    BlockOp op;
    if (ins.in.size() > kMostClusterInputs || ins.scan) throw Unsuited();
    for (const Place& p : ins.in) op.in[op.ins++] = place(p);
    if (ins.cluster) {
      for (const Place& p : ins.outs) op.out[op.outs++] = place(p);
      return write_cluster(*ins.call, op);
    }
    op.out[op.outs++] = place(ins.out);
    const Node& node = body_.graph->node(ins.node);
    if (!ins.op) {
      const Shape flat{node.spec.size()};
      return write_move(op, move_over(flat, {1}, {1}));
    }
    const NodeCall call(body_.graph->nodes(), node);
    if (ins.op->loop) return write_cluster(single(call), op);
    if (ins.op->view) return write_move(op, move_of_view(call));
    const Write writes = written(*ins.op);
    if (!writes) throw Unsuited();
    (this->*writes)(call, op);
  }

  void write_zero(BlockOp op, std::int64_t elements) {
    op.code = BlockCode::zero, op.elements = elements;
    ops_.push_back(op);
  }
  void write_move(BlockOp op, const Move& move) {
    op.code = BlockCode::move, op.details = upload_one(move);
    ops_.push_back(op);
  }

  void write_cluster(const ClusterCall& call, BlockOp op) {
    if (call.shape.size() == 0) return;
    const ClusterPlan<T> plan(call);
    op.code = BlockCode::cluster;
    op.details = upload_one(BlockCluster{plan.text, plan.sizes, upload(plan.walks)});
    scratch_bytes_ = std::max(scratch_bytes_, signed_size(plan.bytes()));
    ops_.push_back(op);
  }

  void write_pad(const Call& call, BlockOp op) {
    write_zero(op, call.out.size());
    write_move(op, move_of_pad(call));
  }
  void write_concat(const Call& call, BlockOp op) {
    const std::vector<Move> moves = moves_of_concat(call);
    for (std::size_t i = 0; i < moves.size(); ++i) {
      BlockOp one = op;
      one.in[0] = op.in[i], one.ins = 1;
      write_move(one, moves[i]);
    }
  }
  template <BlockCode kCode>
  void write_reduction(const Call& call, BlockOp op) {
    op.code = kCode, op.details = upload_one(reduction_of(call));
    ops_.push_back(op);
  }
  void write_tril(const Call& call, BlockOp op) {
    const Shape& shape = call.out.shape;
    op.code = BlockCode::tril;
    op.details = upload_one(Triangle{call.out.size(), shape[shape.size() - 2], shape.back(),
                                     call.attrs.as<TrilAttrs>().diagonal});
    ops_.push_back(op);
  }
  template <BlockCode kCode>
  void write_line(const Call& call, BlockOp op) {
    const CumsumAttrs* sum = call.attrs.find<CumsumAttrs>();
    const auto axis = static_cast<std::size_t>(sum ? sum->axis : call.attrs.as<IotaAttrs>().axis);
    const std::int64_t extent = call.out.shape[axis];
    op.code = kCode;
    op.details = upload_one(Line{call.out.size(), call.out.size() / std::max<std::int64_t>(1, extent), extent,
                                 strides_of(call.out.shape)[axis], sum && sum->reverse});
    ops_.push_back(op);
  }

  void write_product(const Call& call, BlockOp op) {
    const Shape &a = call.in[0].shape, &b = call.in[1].shape, &c = call.out.shape;
    const bool ta = call.attrs.as<MatmulAttrs>().a, tb = call.attrs.as<MatmulAttrs>().b;
    Product p{};
    p.m = c[c.size() - 2], p.n = c.back(), p.k = ta ? a[a.size() - 2] : a.back();
    p.a_row = ta ? 1 : a.back(), p.a_column = ta ? a.back() : 1;
    p.b_row = tb ? 1 : b.back(), p.b_column = tb ? b.back() : 1;
    const Batch batch = batch_of(call);
    p.a = batch.a, p.b = batch.b, p.count = batch.out.count();
    if (p.k == 0) return write_zero(op, call.out.size());
    op.code = BlockCode::product, op.details = upload_one(p);
    ops_.push_back(op);
  }

  // Slices one after the other, each with its last `every` times.
  StepsText lazy(const ScanStep& scan, const ScanStep::Stack& s) {
    std::vector<std::int64_t> at;
    for (int slice = 0; slice < scan.slices; ++slice)
      at.push_back(signed_size(s.part.bytes) * scan.every * slice);
    StepsText out{.part = {upload(at), upload(s.part.owner), signed_size(s.part.bytes)}};
    out.base = base({Place::Kind::arena, s.buffer});
    out.stride = signed_size(s.part.bytes), out.lazy = scan.every;
    return out;
  }

  const ScanStep& step_;
  const Program& parent_;
  const Program& body_;
  CudaBackend& backend_;
  std::vector<DeviceTable>& tables_;
  ScanText text_;
  std::vector<CarryText> carries_;
  std::vector<BlockOp> ops_;
  std::vector<Place> bases_;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace nestgrad::cuda
