// Scattered points.
#include <set>

#include "engine/core/error.h"
#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

// A shape for each group, so that colour is not all that tells them apart. The first two are strokes without
// length, which their caps make a disc and a square.
struct Shape {
  std::string_view style, path;
};
constexpr Shape kShapes[] = {{"dot", "h0"},
                             {"square", "h0"},
                             {"mark", "m-4 3.5h8l-4-7z"},
                             {"mark", "m-4-4l8 8m0-8l-8 8"},
                             {"mark", "m-4.5 0h9m-4.5-4.5v9"}};

const Shape& shape(std::size_t group) { return kShapes[group % std::size(kShapes)]; }

void draw_group(Drawing& drawing, const Points::Group& group, std::size_t index, const Axis& x,
                const Axis& y) {
  std::string path;
  std::set<std::pair<int, int>> seen;  // points that cover each other are drawn once
  for (std::size_t i = 0; i < group.x.size(); ++i) {
    if (!x.shows(group.x[i]) || !y.shows(group.y[i])) continue;
    const double px = x.place(group.x[i]), py = y.place(group.y[i]);
    if (seen.emplace(std::lround(5 * px), std::lround(5 * py)).second)
      fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}{}", px, py, shape(index).path);
  }
  drawing.add(R"(<path class="{} c{}" d="{}"><title>{}</title></path>)", shape(index).style, index % kColours,
              path, escape_xml(group.name));
}

std::vector<LegendEntry> legend_of(const Points& points) {
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < points.groups.size(); ++i)
    legend.push_back({points.groups[i].name, [i](Drawing& to, double at_x, double at_y) {
                        to.add(R"(<path class="{} c{}" d="M{:.1f} {:.1f}{}"/>)", shape(i).style, i % kColours,
                               at_x + 13, at_y, shape(i).path);
                      }});
  return legend;
}

}  // namespace

Drawn draw(const Points& points, const Canvas& canvas) {
  Axis x{.log = points.log_x, .about = static_cast<int>(canvas.x_ticks), .snap = true};
  Axis y{.log = points.log_y, .about = 5, .snap = true};
  std::size_t total = 0, missing = 0;
  for (const Points::Group& group : points.groups) {
    if (group.x.size() != group.y.size())
      throw ValueError(fmt::format("[svg] group '{}' has {} x and {} y values; need as many of each",
                                   group.name, group.x.size(), group.y.size()));
    total += group.x.size();
    for (std::size_t i = 0; i < group.x.size(); ++i) {
      if (!x.shows(group.x[i]) || !y.shows(group.y[i])) {
        ++missing;
        continue;
      }
      x.include(group.x[i]);
      y.include(group.y[i]);
    }
  }
  if (points.diagonal && points.log_x != points.log_y)
    throw ValueError(fmt::format("[svg] the diagonal of '{}' needs two axes of one kind; {} is logarithmic",
                                 points.title, points.log_x ? "only x" : "only y"));
  const bool empty = missing == total;
  if (points.diagonal && !empty) {
    x.low = y.low = std::min(x.low, y.low);
    x.high = y.high = std::max(x.high, y.high);
  }
  x.finish();
  y.finish();

  Drawn drawn{.kind = "scatter plot", .title = points.title, .width = canvas.width};
  Drawing drawing;
  const double below_legend = draw_legend(drawing, canvas, legend_of(points), 0);
  drawing.text("label", "start", 0, below_legend + 14, points.y_label);
  y.start = below_legend + 30 + canvas.plot_height, y.length = -canvas.plot_height;
  x.start = 8 + tick_width(canvas, y),
  x.length = canvas.width - x.start - std::max(16.0, tick_width(canvas, x) / 2);
  if (empty) x.ticks = y.ticks = {};
  draw_axes(drawing, x, y, points.x_label);
  if (points.diagonal && !empty) {
    const double from = std::max(x.low, y.low), to = std::min(x.high, y.high);
    const auto at = [](const Axis& axis, double scaled) {
      return axis.start + (scaled - axis.low) / (axis.high - axis.low) * axis.length;
    };
    drawing.add(R"(<path class="reference" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"><title>x = y</title></path>)",
                at(x, from), at(y, from), at(x, to), at(y, to));
  }
  for (std::size_t i = 0; i < points.groups.size(); ++i) draw_group(drawing, points.groups[i], i, x, y);
  if (empty)
    drawing.text("name", "middle", x.start + x.length / 2, y.start - canvas.plot_height / 2 - 8,
                 "no data to show");
  drawn.height = y.start + (points.x_label.empty() ? 28 : 50);
  drawn.elements = drawing.take();
  note_missing(drawn, missing, total, "points", points.log_x || points.log_y);
  return drawn;
}

}  // namespace nestgrad::drawing
