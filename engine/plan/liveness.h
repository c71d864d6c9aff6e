// Liveness: what of a program somebody reads, bodies of scans looked into. A value of a step that only an
// unread stack or carry needs is dead.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "engine/core/body.h"

namespace nestgrad {

struct Live {
  struct Scan {
    std::shared_ptr<const Live> body;
    std::vector<char> carries;   // which are passed on from step to step, or read at the end
    std::vector<NodeId> stacks;  // body nodes whose values of every step are read
  };
  std::vector<char> nodes;
  std::map<NodeId, Scan> scans;  // of the live scans
};

Live liveness(const std::deque<GraphNode>& nodes, std::span<const NodeId> wanted);

// What a scan has to compute in its body if these carries (a mark for each) are read after the last step, and these
// stacks.
Live::Scan live_in_body(const GraphBody& body, std::vector<char> carries, std::vector<NodeId> stacks);

// The body node whose value a final or stack shows.
NodeId shown_by(const GraphNode& projection);

}  // namespace nestgrad
