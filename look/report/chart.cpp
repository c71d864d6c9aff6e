// Line charts.
#include <algorithm>

#include "engine/core/error.h"
#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

// Of points that fall on one spot of the page, the extremes and the last draw the same line as all.
class Path {
 public:
  void move(double x, double y) { close(), put('M', x, y); }
  void line(double x, double y) {
    if (std::floor(x / kSpot) != spot_ || open_ == 0) {
      close();
      spot_ = std::floor(x / kSpot), open_ = 0;
    }
    if (open_++ == 0) low_ = high_ = {x, y};
    if (y < low_.second) low_ = {x, y};
    if (y > high_.second) high_ = {x, y};
    last_ = {x, y};
  }
  // Alone: a dot, as a ring too small for a hole.
  void dot() { path_ += "m-1.4 0a1.4 1.4 0 1 0 2.8 0a1.4 1.4 0 1 0 -2.8 0"; }
  std::string take() { return close(), std::move(path_); }

 private:
  static constexpr double kSpot = 0.5;
  using Point = std::pair<double, double>;

  void put(char command, double x, double y) {
    fmt::format_to(std::back_inserter(path_), "{}{:.1f} {:.1f}", command, x, y);
  }
  void close() {
    if (open_ > 0) {
      std::vector<Point> points{low_, high_, last_};
      if (low_.first > high_.first) std::swap(points[0], points[1]);
      points.erase(std::unique(points.begin(), points.end()), points.end());
      for (const auto& [x, y] : points) put('L', x, y);
    }
    open_ = 0;
  }

  std::string path_;
  double spot_ = 0;
  int open_ = 0;  // points of this spot that are not in the path yet
  Point low_, high_, last_;
};

void draw_series(Drawing& drawing, const Series& series, std::size_t index, const Axis& x, const Axis& y) {
  const auto shown = [&](std::size_t i) {
    return i < series.x.size() && x.shows(series.x[i]) && y.shows(series.y[i]);
  };
  Path path;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!shown(i)) continue;
    const double px = x.place(series.x[i]), py = y.place(series.y[i]);
    if (i > 0 && shown(i - 1)) {
      path.line(px, py);
    } else {
      path.move(px, py);
      if (!shown(i + 1)) path.dot();
    }
  }
  drawing.add(R"(<path {} d="{}"><title>{}</title></path>)", line_style(index), path.take(),
              escape_xml(series.name));
}

bool has_bar(const Series& series, std::size_t i, const Axis& x, const Axis& y) {
  return x.shows(series.x[i]) && y.shows(series.low[i]) && y.shows(series.high[i]);
}

// A bar from low to high at each point, with its ends, in the colour of the line.
void draw_error_bars(Drawing& drawing, const Series& series, std::size_t index, const Axis& x,
                     const Axis& y) {
  std::string path;
  for (std::size_t i = 0; i < series.low.size(); ++i) {
    if (!has_bar(series, i, x, y)) continue;
    fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}m-3 0h6m-3 0V{:.1f}m-3 0h6", x.place(series.x[i]),
                   y.place(series.low[i]), y.place(series.high[i]));
  }
  if (!path.empty())
    drawing.add(R"(<path class="mark c{}" d="{}"><title>{}: interval</title></path>)", index % kColours, path,
                escape_xml(series.name));
}

struct Reference {
  double value, label_y;
  std::string label, whole;
};

std::vector<Reference> shown_references(const Chart& chart, const Axis& y, const Canvas& canvas) {
  std::vector<Reference> references;
  for (const auto& [name, value] : chart.reference_lines)
    if (y.shows(value)) {
      const std::string number = tick_number(value, std::abs(value), 4);
      references.push_back(
          {value, 0, shortened(name, canvas.longest_reference) + " " + number, name + " " + number});
    }
  std::ranges::sort(references, std::greater{}, &Reference::value);
  return references;
}

// Labels stand in the right margin, each at its line or pushed down by the one above.
void draw_references(Drawing& drawing, std::vector<Reference> references, const Axis& x, const Axis& y) {
  constexpr double kApart = 17;
  double free_from = -INFINITY;
  for (Reference& reference : references) {
    const double at = y.place(reference.value);
    reference.label_y = std::max(at + 4.5, free_from);
    free_from = reference.label_y + kApart;
    drawing.add(R"(<path class="reference" d="M{:.1f} {:.1f}H{:.1f}"><title>{}</title></path>)", x.start, at,
                x.end(), escape_xml(reference.whole));
    drawing.text("name", "start", x.end() + 8, reference.label_y, reference.label);
  }
}

}  // namespace

Drawn draw(const Chart& chart, const Canvas& canvas) {
  Axis x{.log = chart.log_x, .about = static_cast<int>(canvas.x_ticks), .snap = false};
  Axis y{.log = chart.log_y, .about = 5, .snap = true};
  std::size_t total = 0, missing = 0, bars = 0, missing_bars = 0;
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size())
      throw ValueError(fmt::format("[svg] series '{}' has {} x and {} y values; need as many of each",
                                   series.name, series.x.size(), series.y.size()));
    if (series.low.size() != series.high.size() ||
        (!series.low.empty() && series.low.size() != series.y.size()))
      throw ValueError(fmt::format(
          "[svg] series '{}' has {} low and {} high ends of error bars for {} values; give as many, or none",
          series.name, series.low.size(), series.high.size(), series.y.size()));
    for (std::size_t i = 0; i < series.low.size(); ++i)
      if (has_bar(series, i, x, y)) y.include(series.low[i]), y.include(series.high[i]);
      else ++missing_bars;
    bars += series.low.size();
    total += series.x.size();
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!x.shows(series.x[i]) || !y.shows(series.y[i])) {
        ++missing;
        continue;
      }
      x.include(series.x[i]);
      y.include(series.y[i]);
    }
  }
  const bool empty = missing == total;
  const std::vector<Reference> references = shown_references(chart, y, canvas);
  for (const Reference& reference : references) y.include(reference.value);
  const bool warns = y.shows(chart.too_much);
  if (warns) y.include(chart.too_much);
  x.finish();
  y.finish();

  double right = std::max(16.0, tick_width(canvas, x) / 2);
  for (const Reference& reference : references)
    right = std::max(right, 13 + text_width(canvas, reference.label));

  Drawn drawn{.kind = "line chart", .title = chart.title, .width = canvas.width};
  Drawing drawing;
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < chart.series.size(); ++i)
    legend.push_back({chart.series[i].name, [i](Drawing& to, double at_x, double at_y) {
                        to.add(R"(<path {} d="M{:.1f} {:.1f}h22"/>)", line_style(i), at_x, at_y);
                      }});
  const double below_legend = draw_legend(drawing, canvas, legend, 0);
  drawing.text("label", "start", 0, below_legend + 14, chart.y_label);
  y.start = below_legend + 30 + canvas.plot_height, y.length = -canvas.plot_height;
  x.start = 8 + tick_width(canvas, y), x.length = canvas.width - x.start - right;
  if (empty && references.empty()) x.ticks = y.ticks = {};  // their numbers would mean nothing
  if (warns) {
    const double top = y.end(), height = y.place(chart.too_much) - top;
    drawing.add(R"(<path class="danger" d="M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z"/>)", x.start, top, x.length,
                height, -x.length);
  }
  draw_axes(drawing, x, y, chart.x_label);
  draw_references(drawing, references, x, y);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    draw_error_bars(drawing, chart.series[i], i, x, y);
    draw_series(drawing, chart.series[i], i, x, y);
  }
  if (empty)
    drawing.text("name", "middle", x.start + x.length / 2, y.start - canvas.plot_height / 2 - 8,
                 "no data to show");
  drawn.height = y.start + (chart.x_label.empty() ? 28 : 50);
  drawn.elements = drawing.take();
  note_missing(drawn, missing, total, "points", chart.log_x || chart.log_y);
  note_missing(drawn, missing_bars, bars, "error bars", chart.log_x || chart.log_y);
  return drawn;
}

}  // namespace nestgrad::drawing
