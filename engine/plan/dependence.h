// Dependence: which values are made of which, and which of them a derivative reaches.
#pragma once

#include <string_view>

#include "engine/core/body.h"

namespace nestgrad {

// Why no derivative passes from this input through this node; empty where one passes. (Scans and what reads
// them have derivatives that no row knows: ask of OpKind::value.)
std::string_view why_no_derivative(const GraphNode& node, std::size_t input, const GraphNode& source);

inline bool passes(const GraphNode& node, std::size_t input, const GraphNode& source) {
  return why_no_derivative(node, input, source).empty();
}

// What leads from a marked value to what is made of it.
enum class Follow : std::uint8_t {
  derivatives,  // only where one passes
  values,       // every use
  cuts,         // every use; the mark is kCut where one of the ways has a use on it that no derivative passes
};
constexpr char kCut = 2;

// Which nodes depend on the marked ones. A scan is marked if any of its operands is. marked[i], given and
// returned, is of node first + i; nodes before `first` are not looked at and count as not marked.
std::vector<char> dependents(const std::deque<GraphNode>& nodes, std::vector<char> marked,
                             Follow follow = Follow::derivatives, NodeId first = 0);

// The same of the body of a scan, over all steps: nexts[k] is what a step makes of carries[k], which the next step reads.
std::vector<char> dependents_over_steps(const std::deque<GraphNode>& nodes, std::vector<char> marked,
                                        const std::vector<NodeId>& carries, const std::vector<NodeId>& nexts,
                                        Follow follow = Follow::derivatives);

// Inside a scan body: which of its nodes depend on marked inputs (of the scan), over all steps.
std::vector<char> active_in_body(const GraphBody& body, const std::vector<char>& marked_inputs,
                                 Follow follow = Follow::derivatives);
std::vector<char> marked_inputs(const GraphNode& scan, const std::vector<char>& marked);

}  // namespace nestgrad
