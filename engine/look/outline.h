// Outline: a function's live graph in groups, for a picture that can be expanded: a group for each scope, and
// one for the body of each scan, inside of the group that the scan is in.
//
// A scan's operands are drawn to the inputs of its body, and what reads the
// scan (final, stack) from the node of the body that it shows; the scan
// itself has no edges. So there is one edge for each input of each live node.
//
// The kind of an edge is told by the level of the node that it leads to (GraphNode::level: a gradient's nodes are
// one above the highest that it differentiates): 0 is the program as written, 1 an inner gradient, and 2 or
// more a gradient of a program that contains one, hence a meta-gradient. Edges into a body count as those of
// the scan. A gradient whose path meets no other gradient is of level 1 whatever it is for: that of a network
// without an inner loop, or an outer one from which first-order cuts hide every inner one of a loop without
// scan (on the path through a scan all that its body contains counts).
//
// A cut edge is one through which no derivative passes (Op::why_no_derivative, Op::why_no_derivative_in) although a value that depends on an
// input of the function comes along it, and both ends are floating: a stop_gradient, by a first-order policy
// or by hand, a comparison, the mask of a select.
#pragma once

#include "engine/run/function.h"

namespace nestgrad {

enum class EdgeKind : std::uint8_t { forward, inner_gradient, meta_gradient };

struct Outline {
  struct Cut {
    std::size_t input;
    std::string why;
  };
  struct Node {
    NodeId id;         // in the graph or body that it is of
    std::string name;  // one of its own: n4, and n4_2 for node 2 in the body of scan n4
    std::string op, spec, attrs, line;
    int level;
    std::vector<NodeId> inputs;  // of the same graph or body
    std::vector<Cut> cuts;       // of its inputs
  };
  struct Group {
    std::string name;  // scope, "scan: 32 steps", "scan: 32 steps, reverse"; "function" for the outermost
    int parent = -1;   // the outermost group, number 0, has none
    int depth = 0;
    std::vector<int> children;
    std::vector<Node> nodes;                   // not those of children
    std::vector<std::int64_t> nodes_by_level;  // those of children too
    std::int64_t steps = 0;                    // of a scan's body
  };
  struct Edge {
    int from, to;  // groups; equal for what stays inside of one
    EdgeKind kind;
    std::int64_t count;
    bool cut;
    std::string why;  // of a cut edge
  };
  struct Link {
    std::string from, to;  // names of nodes
    EdgeKind kind;
    std::string why;  // not empty: cut
  };
  std::vector<Group> groups;
  std::vector<Edge> edges;  // links by groups, in the order of from, to, kind, why
  std::vector<Link> links;
  std::vector<std::pair<std::string, std::string>> next;  // what a step makes, and the carry that it becomes
  std::size_t nodes = 0;                                  // Function::live_nodes()
};

Outline outline(const Function& function);

}  // namespace nestgrad
