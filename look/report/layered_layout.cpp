#include "look/report/layered_layout.h"

#include <algorithm>
#include <utility>

namespace nestgrad::drawing {

namespace {

constexpr double kGap = 20;      // between neighbours in a layer
constexpr double kBetween = 30;  // from layer to layer, without labels
constexpr double kPassing = 12;  // width of an edge that passes a layer
constexpr int kSweeps = 12;

// Nodes stand in even rows; in odd rows, and in even ones
// that it only passes, an edge has a vertex of its own.
struct Vertex {
  std::size_t row;
  double left, right;  // room at either side of its middle
  double x = 0, weight = 1;
  std::vector<std::size_t> up = {}, down = {};
};

class Layering {
 public:
  Layering(const std::vector<Node>& nodes, const std::vector<Edge>& edges)
      : nodes_(nodes), edges_(edges), below_(nodes.size()), upwards_(edges.size()) {
    for (const bool first : {true, false})
      for (std::size_t e = 0; e < edges.size(); ++e)
        if (edges[e].first == first && edges[e].from != edges[e].to) direct(e);
    assign_rows();
    make_vertices();
    order();
    for (int sweep = 0; sweep < 2 * kSweeps; ++sweep) place_rows(sweep % 2 == 0);
  }

  Layout layout() const;

 private:
  bool reaches(std::size_t from, std::size_t to) const {
    std::vector<std::size_t> open{from};
    std::vector<bool> seen(nodes_.size());
    while (!open.empty()) {
      const std::size_t node = open.back();
      open.pop_back();
      if (node == to) return true;
      if (seen[node]) continue;
      seen[node] = true;
      open.insert(open.end(), below_[node].begin(), below_[node].end());
    }
    return false;
  }

  void direct(std::size_t e) {
    upwards_[e] = reaches(edges_[e].to, edges_[e].from);
    below_[top(e)].push_back(bottom(e));
  }
  std::size_t top(std::size_t e) const { return upwards_[e] ? edges_[e].to : edges_[e].from; }
  std::size_t bottom(std::size_t e) const { return upwards_[e] ? edges_[e].from : edges_[e].to; }

  // The longest path from above; what has nothing above it stands just over what is below it.
  void assign_rows() {
    std::vector<std::size_t> above(nodes_.size()), sorted;
    for (const auto& targets : below_)
      for (std::size_t to : targets) ++above[to];
    const std::vector<std::size_t> degree = above;
    layer_.assign(nodes_.size(), 0);
    for (std::size_t n = 0; n < nodes_.size(); ++n)
      if (above[n] == 0) sorted.push_back(n);
    for (std::size_t i = 0; i < sorted.size(); ++i)
      for (std::size_t to : below_[sorted[i]]) {
        layer_[to] = std::max(layer_[to], layer_[sorted[i]] + 1);
        if (--above[to] == 0) sorted.push_back(to);
      }
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (degree[n] > 0 || below_[n].empty()) continue;
      std::size_t nearest = layer_[below_[n].front()];
      for (std::size_t to : below_[n]) nearest = std::min(nearest, layer_[to]);
      layer_[n] = nearest - 1;
    }
  }

  void make_vertices() {
    std::size_t last = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      last = std::max(last, layer_[n]);
      vertices_.push_back({2 * layer_[n], nodes_[n].width / 2, nodes_[n].width / 2 + nodes_[n].beside});
    }
    rows_.resize(nodes_.empty() ? 0 : 2 * last + 1);
    chains_.resize(edges_.size());
    for (std::size_t e = 0; e < edges_.size(); ++e) {
      if (edges_[e].from == edges_[e].to) continue;
      const std::size_t from = 2 * layer_[top(e)], to = 2 * layer_[bottom(e)];
      const std::size_t middle = label_row(from, to);
      std::vector<std::size_t>& chain = chains_[e];
      chain.push_back(top(e));
      for (std::size_t row = from + 1; row < to; ++row) {
        const double width = row == middle ? std::max(kPassing, edges_[e].label_width) : kPassing;
        chain.push_back(vertices_.size());
        vertices_.push_back({row, width / 2, width / 2});
      }
      chain.push_back(bottom(e));
      for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
        vertices_[chain[i]].down.push_back(chain[i + 1]);
        vertices_[chain[i + 1]].up.push_back(chain[i]);
      }
    }
    for (std::size_t v = 0; v < vertices_.size(); ++v) rows_[vertices_[v].row].push_back(v);
  }
  // Between two layers, in the middle of the way.
  static std::size_t label_row(std::size_t from, std::size_t to) { return ((from + to) / 2) | 1; }

  std::size_t crossings() const {
    std::size_t count = 0;
    for (std::size_t row = 0; row + 1 < rows_.size(); ++row) {
      std::vector<std::pair<std::size_t, std::size_t>> lines;
      for (std::size_t v : rows_[row])
        for (std::size_t to : vertices_[v].down) lines.emplace_back(position_[v], position_[to]);
      for (std::size_t i = 0; i < lines.size(); ++i)
        for (std::size_t k = i + 1; k < lines.size(); ++k)
          count += (lines[i].first < lines[k].first && lines[i].second > lines[k].second) ||
                   (lines[i].first > lines[k].first && lines[i].second < lines[k].second);
    }
    return count;
  }

  void number(std::size_t row) {
    for (std::size_t i = 0; i < rows_[row].size(); ++i) position_[rows_[row][i]] = i;
  }

  // Barycentres, down and up in turn; the order with the fewest crossings wins.
  void order() {
    position_.assign(vertices_.size(), 0);
    for (std::size_t row = 0; row < rows_.size(); ++row) number(row);
    auto best = rows_;
    std::size_t fewest = crossings();
    for (int sweep = 0; sweep < kSweeps && fewest > 0; ++sweep) {
      for (std::size_t i = 1; i < rows_.size(); ++i) {
        const bool downwards = sweep % 2 == 0;
        const std::size_t row = downwards ? i : rows_.size() - 1 - i;
        std::vector<double> centre(vertices_.size());
        for (std::size_t v : rows_[row]) {
          const auto& neighbours = downwards ? vertices_[v].up : vertices_[v].down;
          double sum = 0;
          for (std::size_t n : neighbours) sum += static_cast<double>(position_[n]);
          centre[v] = neighbours.empty() ? static_cast<double>(position_[v])
                                         : sum / static_cast<double>(neighbours.size());
        }
        std::ranges::stable_sort(rows_[row], {}, [&](std::size_t v) { return centre[v]; });
        number(row);
      }
      if (const std::size_t now = crossings(); now < fewest) fewest = now, best = rows_;
    }
    rows_ = best;
    for (std::size_t row = 0; row < rows_.size(); ++row) number(row);
  }

  void place_rows(bool downwards) {
    for (std::size_t i = 0; i < rows_.size(); ++i) place_row(rows_[downwards ? i : rows_.size() - 1 - i]);
  }

  // Each vertex as near to the mean of its neighbours as order and room
  // allow: least squares under x[i + 1] - x[i] >= room, by pooling adjacent
  // violators. Edges count more than boxes, which keeps them straight.
  void place_row(const std::vector<std::size_t>& row) {
    struct Pool {
      double weight, sum;
      std::size_t count;
      double mean() const { return sum / weight; }
    };
    std::vector<Pool> pools;
    double offset = 0;
    std::vector<double> offsets;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Vertex& v = vertices_[row[i]];
      if (i > 0) offset += vertices_[row[i - 1]].right + kGap + v.left;
      offsets.push_back(offset);
      double sum = 0, count = 0;
      for (const auto* side : {&v.up, &v.down})
        for (std::size_t n : *side) {
          const double weight = n >= nodes_.size() && row[i] >= nodes_.size() ? 4 : 1;
          sum += weight * vertices_[n].x, count += weight;
        }
      const double wanted = count > 0 ? sum / count : v.x;
      pools.push_back({1 + count, (1 + count) * (wanted - offset), 1});
      while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
        Pool& into = pools[pools.size() - 2];
        into.weight += pools.back().weight, into.sum += pools.back().sum, into.count += pools.back().count;
        pools.pop_back();
      }
    }
    std::size_t i = 0;
    for (const Pool& pool : pools)
      for (std::size_t k = 0; k < pool.count; ++k, ++i) vertices_[row[i]].x = pool.mean() + offsets[i];
  }

  // Of each edge, x at its top and at its bottom end: edges meet a box side by side, in the order of where they
  // come from.
  std::vector<std::pair<double, double>> ports_of(const Layout& placed) const;

  const std::vector<Node>& nodes_;
  const std::vector<Edge>& edges_;
  std::vector<std::vector<std::size_t>> below_;          // of nodes, without cycles
  std::vector<bool> upwards_;                            // of edges
  std::vector<std::size_t> layer_, position_;            // of nodes; of vertices in their rows
  std::vector<Vertex> vertices_;                         // the nodes first
  std::vector<std::vector<std::size_t>> rows_, chains_;  // from top to bottom
};

std::vector<std::pair<double, double>> Layering::ports_of(const Layout& placed) const {
  std::vector<std::pair<double, double>> ports(edges_.size());
  for (std::size_t n = 0; n < nodes_.size(); ++n)
    for (const bool below : {false, true}) {
      std::vector<std::pair<std::size_t, std::size_t>> ends;  // position of the next vertex, edge
      for (std::size_t e = 0; e < edges_.size(); ++e) {
        const auto& chain = chains_[e];
        if (chain.empty() || (below ? chain.front() : chain.back()) != n) continue;
        ends.emplace_back(position_[below ? chain[1] : chain[chain.size() - 2]], e);
      }
      std::ranges::sort(ends);
      const double apart =
          std::min(26.0, 0.8 * nodes_[n].width / static_cast<double>(std::max<std::size_t>(ends.size(), 1)));
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const double x =
            placed.nodes[n].x + apart * (static_cast<double>(i) - (static_cast<double>(ends.size()) - 1) / 2);
        (below ? ports[ends[i].second].first : ports[ends[i].second].second) = x;
      }
    }
  return ports;
}

Layout Layering::layout() const {
  Layout out;
  double left = 0, right = 0;
  for (std::size_t v = 0; v < vertices_.size(); ++v) {
    left = v == 0 ? vertices_[v].x - vertices_[v].left : std::min(left, vertices_[v].x - vertices_[v].left);
    right =
        v == 0 ? vertices_[v].x + vertices_[v].right : std::max(right, vertices_[v].x + vertices_[v].right);
  }
  std::vector<double> height(rows_.size()), top(rows_.size());
  for (std::size_t n = 0; n < nodes_.size(); ++n)
    height[vertices_[n].row] = std::max(height[vertices_[n].row], nodes_[n].height);
  for (std::size_t row = 1; row < rows_.size(); row += 2) height[row] = kBetween;
  for (std::size_t e = 0; e < edges_.size(); ++e)
    if (!chains_[e].empty()) {
      double& between =
          height[label_row(vertices_[chains_[e].front()].row, vertices_[chains_[e].back()].row)];
      between = std::max(between, kBetween + edges_[e].label_height);
    }
  for (std::size_t row = 1; row < rows_.size(); ++row) top[row] = top[row - 1] + height[row - 1];
  out.width = right - left;
  out.height = rows_.empty() ? 0 : top.back() + height.back();
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const std::size_t row = vertices_[n].row;
    out.nodes.push_back({vertices_[n].x - left, top[row] + height[row] / 2});
  }

  const std::vector<std::pair<double, double>> ports = ports_of(out);
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    Route route{.upwards = upwards_[e]};
    const auto& chain = chains_[e];
    if (!chain.empty()) {
      const std::size_t first = chain.front(), last = chain.back();
      const std::size_t middle = label_row(vertices_[first].row, vertices_[last].row);
      route.places.push_back({ports[e].first, out.nodes[first].y + nodes_[first].height / 2});
      for (std::size_t i = 1; i + 1 < chain.size(); ++i) {
        const Vertex& v = vertices_[chain[i]];
        if (v.row == middle && edges_[e].label_width > 0) {
          route.label = route.places.size();
          route.places.push_back({v.x - left, top[v.row] + height[v.row] / 2});
        } else if (v.row % 2 == 0) {  // past the boxes of a layer, straight
          route.places.push_back({v.x - left, top[v.row]});
          route.places.push_back({v.x - left, top[v.row] + height[v.row]});
        }
      }
      route.places.push_back({ports[e].second, out.nodes[last].y - nodes_[last].height / 2});
      if (route.upwards) {
        std::ranges::reverse(route.places);
        route.label = route.places.size() - 1 - route.label;
      }
    }
    out.routes.push_back(std::move(route));
  }
  return out;
}

}  // namespace

Layout layered_layout(const std::vector<Node>& nodes, const std::vector<Edge>& edges) {
  return Layering(nodes, edges).layout();
}

}  // namespace nestgrad::drawing
