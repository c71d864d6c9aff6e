// What becomes of a graph before it is compiled for a GPU, where an op is a launch that goes through all of the memory that it reads
// and writes. Each pass makes of a graph another one with equal values; none needs a GPU. See CudaBackend::suited().
#pragma once

#include <functional>
#include <optional>

#include "engine/core/rewrite.h"

namespace nestgrad::cuda {

// Of a scan of this graph: is it ..?
using ScanTest = std::function<bool(const Lowered&, NodeId scan)>;

// Scans of one step, but for those that stay: their ops become ops of the graph around them, so that these are fused, and arrays
// permuted, across where the scan began and ended. stays: is this scan to be kept as it is? What a scan was to compute again for its
// derivative (checkpoint_every, or what the scan says) is a checkpoint region afterwards, which the caller has computed again as the
// last of all, so that no choice of it changes a bit.
Lowered inline_single_steps(const Lowered& from, const ScanTest& stays, std::optional<int> checkpoint_every);

// What a scan of elementwise steps makes for others and not for its own next steps, sums of each step say, is computed after it, for all
// steps at once, where that needs no array that is not kept anyway: the scan is then one kernel (cuda/elements_source.h), and the
// sums one launch instead of one for each step. Example: of m' = a m + x, the derivative in a, which is sum(dm' m) at each step.
Lowered compute_after_steps(const Lowered& from);

// Permutes of batch axes move behind the ops that do not care in which order these axes are, and many of them to where they undo another
// one: elementwise ops, products of matrices, sums. Products then read [batch, heads, chunks, time, dim] where it lies, so that all chunks
// that have one right operand are rows of one product, and a sum over chunks of A' B is one product. The graph stays as it is
// where this would leave more bytes to be permuted. is_sliced: does it read and write permuted steps where they lie?
Lowered permute_late(const Lowered& from, const ScanTest& is_sliced);

// A sum over rows and other axes of what elementwise ops make is one over rows, which these ops' kernel does in passing
// (engine/plan/cluster.h), and one of what is left.
Lowered reduce_rows_first(const Lowered& from);

}  // namespace nestgrad::cuda
