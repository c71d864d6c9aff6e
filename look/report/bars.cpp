// Bars, side by side or stacked.
#include <numbers>

#include "engine/core/error.h"
#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

constexpr double kWidestBar = 34;

void check_sizes(const Bars& bars) {
  if (bars.stacked && bars.log_y)
    throw ValueError(
        fmt::format("[svg] bars '{}' are stacked and logarithmic; "
                    "the lengths in a stack would mean nothing",
                    bars.title));
  for (const Bars::Group& group : bars.groups)
    if (group.values.size() != bars.names.size())
      throw ValueError(
          fmt::format("[svg] group '{}' of bars has {} values for {} names; need as many of each", group.name,
                      group.values.size(), bars.names.size()));
}

// From where to where the bar of each group goes, for one name.
std::vector<std::pair<double, double>> spans(const Bars& bars, std::size_t name, const Axis& y) {
  std::vector<std::pair<double, double>> out;
  double above = 0, below = 0;
  for (const Bars::Group& group : bars.groups) {
    const double value = group.values[name];
    if (!bars.stacked || !y.shows(value)) {
      out.emplace_back(0, value);
      continue;
    }
    double& end = value < 0 ? below : above;
    out.emplace_back(end, end + value);
    end += value;
  }
  return out;
}

// Names below the axis: level where they fit, else slanted; every second, third .. where they are dense.
struct Names {
  std::vector<std::string> texts = {};
  bool slanted = false;
  std::size_t every = 1;
  double height = 0, reach = 0;  // below the axis; to the left of a slanted name's end
  static constexpr double kSlope = 35 * std::numbers::pi / 180;

  Names(const std::vector<std::string>& names, const Canvas& canvas, double slot) {
    double widest = 0;
    for (const std::string& name : names) {
      texts.push_back(shortened(name, 20));
      widest = std::max(widest, text_width(canvas, texts.back()));
    }
    slanted = widest + 6 > slot;
    if (slanted) every = static_cast<std::size_t>(std::ceil(kRow / slot));
    height = slanted ? 26 + widest * std::sin(kSlope) : 26;
    reach = slanted ? 10 + widest * std::cos(kSlope) : widest / 2;
  }

  void draw(Drawing& drawing, std::size_t i, double x, double y) const {
    if (i % every != 0) return;
    if (slanted)
      drawing.add(
          R"svg(<text class="name" text-anchor="end" transform="translate({:.1f} {:.1f}) rotate(-35)">{}</text>)svg",
          x + 4, y + 15, escape_xml(texts[i]));
    else drawing.text("name", "middle", x, y + 19, texts[i]);
  }
};

std::vector<LegendEntry> legend_of(const Bars& bars) {
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < bars.groups.size(); ++i)
    legend.push_back({bars.groups[i].name, [i](Drawing& to, double at_x, double at_y) {
                        to.add(R"(<path {} d="M{:.1f} {:.1f}h14v12h-14z"/>)", fill_style(i), at_x + 4,
                               at_y - 6);
                      }});
  return legend;
}

// Makes the axis reach every end that it can show; -> how many it cannot.
std::size_t include_all(Axis& y, const Bars& bars) {
  std::size_t missing = 0;
  for (std::size_t name = 0; name < bars.names.size(); ++name)
    for (const auto& [from, to] : spans(bars, name, y)) {
      if (y.shows(to)) y.include(to);
      else ++missing;
    }
  return missing;
}

// Where one bar stands, and whether its number is written at its end.
struct Place {
  double x, width, from, to, base;
  bool labelled;
};

void draw_bar(Drawing& drawing, const Bars& bars, std::size_t name, std::size_t group, const Place& at) {
  const double value = bars.groups[group].values[name], gap = at.width > 4 ? 1 : 0;
  drawing.add(R"(<path {} d="M{:.1f} {:.1f}h{:.1f}V{:.1f}h{:.1f}z"><title>{}{}{}: {}</title></path>)",
              fill_style(group), at.x + gap / 2, at.from, at.width - gap, at.to, gap - at.width,
              escape_xml(bars.names[name]), bars.groups[group].name.empty() ? "" : ", ",
              escape_xml(bars.groups[group].name), format_number(value));
  if (at.labelled)
    drawing.text("value small", "middle", at.x + at.width / 2, at.to + (at.to > at.base ? 14 : -5),
                 format_number(value));
}

}  // namespace

Drawn draw(const Bars& bars, const Canvas& canvas) {
  check_sizes(bars);
  Axis y{.log = bars.log_y, .about = 5, .snap = true};
  if (!bars.log_y) y.include(0);
  const std::size_t missing = include_all(y, bars);
  const std::size_t total = bars.names.size() * bars.groups.size();
  const bool empty = missing == total;
  y.finish();

  Drawn drawn{.kind = "bar chart", .title = bars.title, .width = canvas.width};
  Drawing drawing;
  const double below_legend = draw_legend(drawing, canvas, legend_of(bars), 0);
  drawing.text("label", "start", 0, below_legend + 14, bars.y_label);
  y.start = below_legend + 34 + canvas.plot_height, y.length = -canvas.plot_height;
  if (empty) y.ticks = {};

  const double names = static_cast<double>(std::max<std::size_t>(bars.names.size(), 1));
  double left = 8 + tick_width(canvas, y);
  const Names labels(bars.names, canvas, (canvas.width - left) / names);
  // The first name ends in the middle of the first slot, whose width depends on what is left of the bars.
  const double overhang = (labels.reach - canvas.width / names / 2) / (1 - 0.5 / names);
  left = std::min(std::max(left, overhang), canvas.width / 2);
  const double slot = (canvas.width - left) / names;
  const double side_by_side =
      bars.stacked ? 1 : static_cast<double>(std::max<std::size_t>(bars.groups.size(), 1));
  const double width = std::min(kWidestBar, slot * 0.78 / side_by_side);
  double widest = 0;  // number, to be written above its bar
  for (const Bars::Group& group : bars.groups)
    for (double value : group.values) widest = std::max(widest, text_width(canvas, format_number(value)));
  const bool labelled = !bars.stacked && widest + 3 <= (side_by_side == 1 ? slot : width);

  const double names_at = y.start + (labelled && y.low < 0 && !bars.log_y ? 12 : 0);

  draw_y_axis(drawing, left, canvas.width, y);
  const double base = bars.log_y ? y.start : y.place(0);
  for (std::size_t name = 0; name < bars.names.size(); ++name) {
    const double centre = left + slot * (static_cast<double>(name) + 0.5);
    labels.draw(drawing, name, centre, names_at);
    const auto ends = spans(bars, name, y);
    for (std::size_t group = 0; group < ends.size(); ++group) {
      const double x = centre + width * (bars.stacked ? -0.5 : static_cast<double>(group) - side_by_side / 2);
      const auto& [from, to] = ends[group];
      if (!y.shows(bars.groups[group].values[name]) || !y.shows(to))
        drawing.add(
            R"(<path class="missing mark" d="M{:.1f} {:.1f}m-4-4l8 8m0-8l-8 8"><title>{}: missing</title></path>)",
            x + width / 2, base - 7, escape_xml(bars.names[name]));
      else
        draw_bar(drawing, bars, name, group,
                 {x, width, bars.stacked ? y.place(from) : base, y.place(to), base, labelled});
    }
  }
  drawing.line("axis", left, base, canvas.width, base);
  if (empty)
    drawing.text("name", "middle", (left + canvas.width) / 2, y.start - canvas.plot_height / 2 - 8,
                 "no data to show");
  drawn.height = names_at + labels.height + 4;
  drawn.elements = drawing.take();
  note_missing(drawn, missing, total, "values", bars.log_y);
  return drawn;
}

}  // namespace nestgrad::drawing
