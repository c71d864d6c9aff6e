// From a scan of a plan to its text in the memory of the device.
#pragma once

#include <algorithm>
#include <utility>

#include "cuda/backend.h"
#include "cuda/loop_table.h"
#include "cuda/moves.h"
#include "cuda/product_shape.h"
#include "cuda/reductions.cuh"
#include "cuda/scan_steps.cuh"
#include "cuda/scan_text.h"
#include "engine/core/node_call.h"
#include "engine/plan/program.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::cuda {

inline std::int64_t signed_size(std::size_t n) { return static_cast<std::int64_t>(n); }

// The text of one scan, in the memory of the device.
template <class T>
class ScanWriter {
 public:
  ScanWriter(const ScanStep& step, const Program& parent, CudaBackend& backend,
             std::vector<DeviceTable>& tables)
      : step_(step), body_(step.workers[0].body), backend_(backend), tables_(tables) {
    suits_ = segments_meet(step, parent) && write_table() &&
             std::ranges::all_of(body_.code, [&](const Instruction& ins) { return write(ins); });
    if (!suits_) return;
    text_.op = upload(ops_);
    text_.ops = static_cast<int>(ops_.size());
    text_.scratch_at = signed_size((step.memory_bytes() + 15) / 16 * 16);
    text_.memory_bytes = (text_.scratch_at + scratch_bytes_ + 63) / 64 * 64;
  }

  // What writes the text of an op that is neither elementwise nor a view; null: nothing does.
  using Write = void (ScanWriter::*)(const OpCall&, BlockOp);
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

  // Can the kernel run the scan? If not, there is no text.
  bool suits() const { return suits_; }
  const ScanText& text() const { return text_; }

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

  bool write_table() {
    const StepTable& from = step_.table;
    StepTableView& to = text_.table = from.view();
    if (from.bases.size() > kMostBases) return false;
    if (most_externals(to) > kMostExternals) return false;
    upload_table(from, backend_, tables_, to);
    return true;
  }

  BlockPlace place(const Place& p) const {
    if (p.kind == Place::Kind::arena) return {BlockPlace::memory, signed_size(step_.body_arena + p.at)};
    if (p.kind == Place::Kind::external) return {BlockPlace::external, signed_size(p.at)};
    const std::byte* literal = body_.literals[p.at].data();
    return {BlockPlace::absolute, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(literal))};
  }

  bool write(const Instruction& ins) {
    BlockOp op;
    if (ins.in.size() > kMostClusterInputs || ins.scan) return false;
    for (const Place& p : ins.in) op.in[op.ins++] = place(p);
    if (ins.cluster) {
      for (const Place& p : ins.outs) op.out[op.outs++] = place(p);
      write_cluster(*ins.call, op);
      return true;
    }
    op.out[op.outs++] = place(ins.out);
    const GraphNode& node = body_.graph->node(ins.node);
    if (!ins.op) {
      const Shape flat{node.spec.size()};
      write_move(op, move_over(flat, {1}, {1}));
      return true;
    }
    const NodeCall call(body_.graph->nodes(), node);
    if (ins.op->element_loop) {
      write_cluster(single(call), op);
    } else if (ins.op->view) {
      write_move(op, move_of_view(call));
    } else {
      const Write writes = written(*ins.op);
      if (!writes) return false;
      (this->*writes)(call, op);
    }
    return true;
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

  void write_pad(const OpCall& call, BlockOp op) {
    write_zero(op, call.out.size());
    write_move(op, move_of_pad(call));
  }
  void write_concat(const OpCall& call, BlockOp op) {
    const std::vector<Move> moves = moves_of_concat(call);
    for (std::size_t i = 0; i < moves.size(); ++i) {
      BlockOp one = op;
      one.in[0] = op.in[i], one.ins = 1;
      write_move(one, moves[i]);
    }
  }
  template <BlockCode kCode>
  void write_reduction(const OpCall& call, BlockOp op) {
    op.code = kCode, op.details = upload_one(reduction_of(call));
    ops_.push_back(op);
  }
  void write_tril(const OpCall& call, BlockOp op) {
    const Shape& shape = call.out.shape;
    op.code = BlockCode::tril;
    op.details = upload_one(Triangle{call.out.size(), shape[shape.size() - 2], shape.back(),
                                     call.attrs.as<TrilAttrs>().diagonal});
    ops_.push_back(op);
  }
  template <BlockCode kCode>
  void write_line(const OpCall& call, BlockOp op) {
    const CumsumAttrs* sum = call.attrs.find<CumsumAttrs>();
    const auto axis = static_cast<std::size_t>(sum ? sum->axis : call.attrs.as<IotaAttrs>().axis);
    const std::int64_t extent = call.out.shape[axis];
    op.code = kCode;
    op.details = upload_one(Line{call.out.size(), call.out.size() / std::max<std::int64_t>(1, extent), extent,
                                 strides_of(call.out.shape)[axis], sum && sum->reverse});
    ops_.push_back(op);
  }

  void write_product(const OpCall& call, BlockOp op) {
    const Product p = product_of(call);
    if (p.k == 0) return write_zero(op, call.out.size());
    if (transposes_b(p.n, p.b_row, p.b_column))
      scratch_bytes_ = std::max(scratch_bytes_, p.k * padded_row(p.n) * signed_size(sizeof(T)));
    op.code = BlockCode::product, op.details = upload_one(p);
    ops_.push_back(op);
  }

  const ScanStep& step_;
  const Program& body_;
  CudaBackend& backend_;
  std::vector<DeviceTable>& tables_;
  ScanText text_;
  bool suits_ = false;
  std::vector<BlockOp> ops_;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace nestgrad::cuda
