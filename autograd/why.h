// Why a value has no derivative with respect to another: where the paths between them are cut, and what can
// be done.
//
//   const Disconnection d = why_disconnected(loss, w);
//   if (!d.connected) std::puts(d.str().c_str());
#pragma once

#include "engine/core/graph.h"

namespace nestgrad {

struct Disconnection {
  // A node that derivatives from x reach and do not pass, and that y is made of.
  struct Cut {
    NodeId node;  // of the graph, or of the body that it is in
    std::string op;
    Spec spec;
    int level;
    Loc loc;
    bool in_scan;
    std::string why, advice;
  };
  std::string y, x;        // what was asked about
  bool connected = false;  // a derivative passes, whatever is cut besides
  bool meets = false;      // y is made of x, whether or not a derivative passes
  // In the order of the graph. What lies behind a cut is not looked at: a
  // path may be cut again there. Some ops cut on purpose (softmax, the shift
  // that its value does not depend on): then y is connected all the same.
  std::vector<Cut> cuts;
  std::string str() const;  // sentences
};

// y and x are tensors of one graph (GraphError otherwise). Scans in it are looked into.
Disconnection why_disconnected(Tensor y, Tensor x);

// The same from node x of y's graph, in words for an error message.
std::string where_cut(Tensor y, NodeId x);

}  // namespace nestgrad
