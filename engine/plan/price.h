// Prices, in bytes that go through the memory: what it costs to keep a value for its derivatives, and what to compute
// it again. While a byte goes by, the processor does 8 flops of elementwise ops.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/body.h"

namespace nestgrad {

using Bytes = std::int64_t;

// A kept value is written and read.
inline Bytes price_of_keeping(const Spec& spec) { return 2 * static_cast<Bytes>(spec.bytes()); }
inline Bytes price_of_reading(const Spec& spec) { return static_cast<Bytes>(spec.bytes()); }

// Of a run of a node that has a value of its own; 0 of any other, as of scans, whose steps have theirs.
double flops_of(const std::deque<GraphNode>& nodes, const GraphNode& n);

// Of one of the nodes that is no input, once its inputs are there. nullopt: it cannot be had in this way.
std::optional<Bytes> price_of_computing(const std::deque<GraphNode>& nodes, const GraphNode& n);
// The same, ops with a kernel of their own included; of these, products do four times as many flops a byte.
std::optional<Bytes> price_of_running(const std::deque<GraphNode>& nodes, const GraphNode& n);

}  // namespace nestgrad
