// Estimates with error bars, one row each.
#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

constexpr double kRowHeight = 26;

bool shown(const Axis& x, const Intervals::Row& row) {
  return x.shows(row.estimate) && x.shows(row.low) && x.shows(row.high);
}

void draw_row(Drawing& drawing, const Intervals::Row& row, const Axis& x, double at) {
  const std::string words = fmt::format("{}: {}, {} to {}", row.name, format_number(row.estimate),
                                        format_number(row.low), format_number(row.high));
  if (row.low < row.high)
    drawing.add(R"(<path class="mark c0" d="M{:.1f} {:.1f}v8m0-4H{:.1f}m0-4v8"><title>{}</title></path>)",
                x.place(row.low), at - 4, x.place(row.high), escape_xml(words));
  drawing.add(R"(<path class="dot c0" d="M{:.1f} {:.1f}h0"><title>{}</title></path>)", x.place(row.estimate),
              at, escape_xml(words));
}

void draw_reference(Drawing& drawing, double x, double y, const std::string& words) {
  drawing.add(R"(<path class="mark c1" d="M{:.1f} {:.1f}m-4-4l8 8m0-8l-8 8"><title>{}</title></path>)", x, y,
              escape_xml(words));
}

}  // namespace

Drawn draw(const Intervals& intervals, const Canvas& canvas) {
  Axis x{.log = false, .about = static_cast<int>(canvas.x_ticks), .snap = true};
  std::size_t missing = 0;
  bool references = false;
  double widest = 0;
  const auto name = [&](const Intervals::Row& row) {
    return fitting(canvas, row.name, canvas.longest_reference + 12, canvas.width / 2 - 14);
  };
  for (const Intervals::Row& row : intervals.rows) {
    widest = std::max(widest, text_width(canvas, name(row)));
    if (x.shows(row.reference)) x.include(row.reference), references = true;
    if (!shown(x, row)) {
      ++missing;
      continue;
    }
    x.include(row.low), x.include(row.high);
  }
  if (x.shows(intervals.line)) x.include(intervals.line);
  x.finish();

  Drawn drawn{.kind = "interval plot", .title = intervals.title, .width = canvas.width};
  Drawing drawing;
  std::vector<LegendEntry> legend;
  if (references)
    legend.push_back({intervals.reference_name, [&](Drawing& to, double at_x, double at_y) {
                        draw_reference(to, at_x + 13, at_y, intervals.reference_name);
                      }});
  const double top = draw_legend(drawing, canvas, legend, 0) + 8;
  const double height = kRowHeight * static_cast<double>(std::max<std::size_t>(1, intervals.rows.size()));
  x.start = std::min(widest + 14, canvas.width / 2);
  x.length = canvas.width - x.start - std::max(16.0, tick_width(canvas, x) / 2);
  if (missing == intervals.rows.size() && !references) x.ticks = {};
  for (const Tick& tick : x.ticks) {
    const double at = x.place(tick.value);
    drawing.line("grid", at, top, at, top + height);
    drawing.text("tick", "middle", at, top + height + 20, tick.label);
  }
  drawing.line("axis", x.start, top + height, x.end(), top + height);
  drawing.text("label", "middle", x.start + x.length / 2, top + height + 42, intervals.x_label);
  if (x.shows(intervals.line))
    drawing.add(R"(<path class="reference" d="M{:.1f} {:.1f}V{:.1f}"><title>{}</title></path>)",
                x.place(intervals.line), top, top + height, format_number(intervals.line));
  for (std::size_t i = 0; i < intervals.rows.size(); ++i) {
    const Intervals::Row& row = intervals.rows[i];
    const double at = top + kRowHeight * (static_cast<double>(i) + 0.5);
    drawing.text("name", "end", x.start - 10, at + 4.5, name(row));
    if (shown(x, row)) draw_row(drawing, row, x, at);
    if (x.shows(row.reference))
      draw_reference(drawing, x.place(row.reference), at,
                     fmt::format("{}: {}", intervals.reference_name, format_number(row.reference)));
  }
  if (intervals.rows.empty())
    drawing.text("name", "middle", x.start + x.length / 2, top + height / 2 + 4, "no data to show");
  drawn.height = top + height + (intervals.x_label.empty() ? 28 : 50);
  drawn.elements = drawing.take();
  note_missing(drawn, missing, intervals.rows.size(), "rows", false);
  return drawn;
}

}  // namespace nestgrad::drawing
