// Places boxes and arrows of a directed graph in layers from top to bottom (Sugiyama, Tagawa and Toda 1981).
#pragma once

#include <cstddef>
#include <vector>

namespace nestgrad::drawing {

struct Node {
  double width, height;
  double beside = 0;  // further room at its right
};

struct Edge {
  std::size_t from, to;
  double label_width = 0, label_height = 0;  // of what stands on its middle; 0: nothing
  bool first = false;                        // decides on the layers before those that are not
};

struct Place {
  double x, y;
};

// A way from the edge of one box to that of another. It leaves and arrives vertically.
struct Route {
  std::vector<Place> places;
  std::size_t label = 0;  // of places, where the label has its room
  bool upwards = false;   // against the layers, since it closes a cycle
};

struct Layout {
  double width = 0, height = 0;
  std::vector<Place> nodes = {};   // middles
  std::vector<Route> routes = {};  // empty for an edge from a node to itself
};

Layout layered_layout(const std::vector<Node>& nodes, const std::vector<Edge>& edges);

}  // namespace nestgrad::drawing
