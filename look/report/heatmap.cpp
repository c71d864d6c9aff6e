// Matrices as colours. The cells of one shade are one path of horizontal strokes, in units of cells, one
// stroke for a run of neighbours: a few bytes for each cell.
#include <algorithm>
#include <array>
#include <tuple>

#include "engine/core/error.h"
#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

constexpr std::int64_t kMostRows = 128, kMostColumns = 128;
constexpr std::int64_t kMostTitled = 576;  // cells that show their value to a pointer
constexpr double kLargestCell = 40, kLowestCell = 13;

struct Grid {
  std::int64_t rows, columns;
  std::vector<double> values;
  std::int64_t block_rows = 1, block_columns = 1;  // cells of the map in a cell of this

  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
  bool whole() const { return block_rows == 1 && block_columns == 1; }
};

bool usable(const Heatmap& map, double value) { return drawable(value) && (!map.log || value >= 0); }

void check_sizes(const Heatmap& map) {
  const auto size = static_cast<std::int64_t>(map.values.size());
  const bool fits = map.rows > 0 && map.columns > 0 ? size % map.rows == 0 && size / map.rows == map.columns
                                                    : map.rows >= 0 && map.columns >= 0 && size == 0;
  if (!fits)
    throw ValueError(fmt::format("[svg] heat map '{}' has {} values for {} x {} cells", map.title,
                                 map.values.size(), map.rows, map.columns));
  for (const auto& [names, cells, what] :
       {std::tuple{&map.row_names, map.rows, "rows"}, std::tuple{&map.column_names, map.columns, "columns"}})
    if (!names->empty() && names->size() != static_cast<std::size_t>(cells))
      throw ValueError(
          fmt::format("[svg] heat map '{}' has {} names for {} {}", map.title, names->size(), cells, what));
  if (map.log && map.diverging)
    throw ValueError(fmt::format(
        "[svg] heat map '{}' is diverging and logarithmic; a logarithm has no middle at 0", map.title));
}

// Means of the usable values of each block; NaN where there is none.
Grid reduced(const Heatmap& map) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  Grid grid{.block_rows = std::max<std::int64_t>(1, ceil_div(map.rows, kMostRows)),
            .block_columns = std::max<std::int64_t>(1, ceil_div(map.columns, kMostColumns))};
  grid.rows = ceil_div(map.rows, grid.block_rows), grid.columns = ceil_div(map.columns, grid.block_columns);
  const auto cells = static_cast<std::size_t>(grid.rows * grid.columns);
  std::vector<double> count(cells);
  grid.values.resize(cells);
  for (std::int64_t row = 0; row < map.rows; ++row)
    for (std::int64_t column = 0; column < map.columns; ++column) {
      const double value = map.values[static_cast<std::size_t>(row * map.columns + column)];
      if (!usable(map, value)) continue;
      const auto cell =
          static_cast<std::size_t>(row / grid.block_rows * grid.columns + column / grid.block_columns);
      count[cell] += 1;
      grid.values[cell] += (value - grid.values[cell]) / count[cell];
    }
  for (std::size_t i = 0; i < cells; ++i)
    if (count[i] == 0) grid.values[i] = NAN;
  return grid;
}

// Which shade a value has.
struct Scale {
  bool diverging, log;
  Axis axis;  // of the colour bar
  bool zero = false, missing = false;
  std::size_t beyond = 0;  // values past its ends

  static constexpr int kMissing = -1, kZero = -2;

  Scale(const Heatmap& map, const Grid& grid) : diverging(map.diverging), log(map.log) {
    axis = {.log = log, .about = 4, .snap = false};
    double low = INFINITY, high = -INFINITY;
    for (double value : grid.values) {
      if (std::isnan(value)) missing = true;
      else if (log && value < 1e-300) zero = true;
      else low = std::min(low, value), high = std::max(high, value);
    }
    if (axis.shows(map.low)) low = map.low;
    if (axis.shows(map.high)) high = map.high;
    if (!(low <= high)) low = high = drawable(low) ? low : drawable(high) ? high : log ? 1 : 0;
    if (diverging) {
      high = std::max(std::abs(low), std::abs(high));
      low = -high;
    }
    axis.include(low);
    axis.include(high);
    for (double value : grid.values)
      if (axis.shows(value) && (axis.scaled(value) < axis.low || axis.scaled(value) > axis.high)) ++beyond;
    axis.finish();
    if (log && axis.ticks.size() > 5)  // only powers of ten
      std::erase_if(axis.ticks, [](const Tick& tick) {
        const double power = std::log10(tick.value);
        return std::abs(power - std::round(power)) > 1e-6;
      });
  }

  int shade(double value) const {
    if (std::isnan(value)) return kMissing;
    if (log && value < 1e-300) return kZero;
    const double t = (axis.scaled(value) - axis.low) / (axis.high - axis.low);
    return std::clamp(static_cast<int>(std::floor(t * kShades)), 0, kShades - 1);
  }
  std::string style(int of_shade) const {
    if (of_shade == kMissing) return "missing";
    if (of_shade == kZero) return "nothing";
    return fmt::format("{}{}", diverging ? 'd' : 'q', of_shade);
  }
};

void draw_cells(Drawing& drawing, const Heatmap& map, const Grid& grid, const Scale& scale) {
  const auto name = [](const std::vector<std::string>& names, std::int64_t i) {
    return names.empty() ? std::to_string(i) : names[static_cast<std::size_t>(i)];
  };
  std::array<std::string, kShades + 2> paths;
  const bool titled = grid.whole() && grid.rows * grid.columns <= kMostTitled;
  for (std::int64_t row = 0; row < grid.rows; ++row)
    for (std::int64_t column = 0; column < grid.columns;) {
      const int shade = scale.shade(grid.at(row, column));
      std::int64_t end = column + 1;
      while (!titled && end < grid.columns && scale.shade(grid.at(row, end)) == shade) ++end;
      const std::string stroke = fmt::format("M{} {}.5h{}", column, row, end - column);
      if (titled)
        drawing.add(R"(<path class="{}" d="{}"><title>{} {}, {} {}: {}</title></path>)", scale.style(shade),
                    stroke, escape_xml(map.y_label), escape_xml(name(map.row_names, row)),
                    escape_xml(map.x_label), escape_xml(name(map.column_names, column)),
                    shade == Scale::kMissing ? "missing" : format_number(grid.at(row, column)));
      else paths[static_cast<std::size_t>(shade + 2)] += stroke;
      column = end;
    }
  for (int shade = -2; shade < kShades; ++shade)
    if (const std::string& path = paths[static_cast<std::size_t>(shade + 2)]; !path.empty())
      drawing.add(R"(<path class="{}" d="{}"/>)", scale.style(shade), path);
}

// Lines between large cells, and a stroke through each missing one.
void draw_marks(Drawing& drawing, const Grid& grid, double left, double top, double width, double height) {
  std::string gaps, crosses;
  if (std::min(width, height) >= 9) {
    for (std::int64_t column = 1; column < grid.columns; ++column)
      fmt::format_to(std::back_inserter(gaps), "M{:.1f} {:.1f}v{:.1f}",
                     left + width * static_cast<double>(column), top,
                     height * static_cast<double>(grid.rows));
    for (std::int64_t row = 1; row < grid.rows; ++row)
      fmt::format_to(std::back_inserter(gaps), "M{:.1f} {:.1f}h{:.1f}", left,
                     top + height * static_cast<double>(row), width * static_cast<double>(grid.columns));
  }
  if (std::min(width, height) >= 4)
    for (std::int64_t row = 0; row < grid.rows; ++row)
      for (std::int64_t column = 0; column < grid.columns; ++column)
        if (std::isnan(grid.at(row, column)))
          fmt::format_to(std::back_inserter(crosses), "M{:.1f} {:.1f}l{:.1f} {:.1f}",
                         left + width * static_cast<double>(column), top + height * static_cast<double>(row),
                         width, height);
  if (!gaps.empty()) drawing.add(R"(<path class="gap" d="{}"/>)", gaps);
  if (!crosses.empty()) drawing.add(R"(<path class="cross" d="{}"/>)", crosses);
}

// Which of the names there is room for, each with the middle of its cell in units of cells.
std::vector<std::pair<double, std::string>> labels(const std::vector<std::string>& names, std::int64_t cells,
                                                   std::int64_t block, double cell, double room, int about,
                                                   std::size_t longest) {
  std::vector<std::pair<double, std::string>> out;
  if (names.empty()) {
    Axis axis{.log = false,
              .about = about,
              .snap = false,
              .whole = true,
              .low = 0,
              .high = static_cast<double>(std::max<std::int64_t>(cells - 1, 1))};
    axis.finish();
    for (const Tick& tick : axis.ticks)
      if (tick.value < static_cast<double>(cells))
        out.emplace_back((tick.value + 0.5) / static_cast<double>(block), tick.label);
    return out;
  }
  const auto every = static_cast<std::int64_t>(std::ceil(room / (cell / static_cast<double>(block))));
  for (std::int64_t i = 0; i < cells; i += std::max<std::int64_t>(every, 1))
    out.emplace_back((static_cast<double>(i) + 0.5) / static_cast<double>(block),
                     shortened(names[static_cast<std::size_t>(i)], longest));
  return out;
}

// The colour bar with its label, and a swatch for what is not on it. Returns where the picture ends.
double draw_scale(Drawing& drawing, const Canvas& canvas, const Heatmap& map, Scale& scale, double top) {
  constexpr double kBar = 11, kSwatch = 16;
  const double width = std::min(240.0, canvas.width / 2);
  const double left = std::max(8.0, tick_width(canvas, scale.axis) / 2);  // room for half of the first number
  drawing.text("name", "start", 0, top + 12, map.value_label);
  drawing.add(R"svg(<g class="cells" transform="translate({:.1f} {:.1f}) scale({:.4f} {})">)svg", left,
              top + 22, width / kShades, kBar);
  for (int i = 0; i < kShades; ++i) drawing.add(R"(<path class="{}" d="M{} .5h1"/>)", scale.style(i), i);
  drawing.add("</g>");
  scale.axis.start = left, scale.axis.length = width;
  for (const Tick& tick : scale.axis.ticks) {
    const double at = scale.axis.place(tick.value);
    drawing.line("axis", at, top + 22 + kBar, at, top + 22 + kBar + 4);
    drawing.text("tick", "middle", at, top + 22 + kBar + 18, tick.label);
  }
  double x = left + width + 26;
  const auto swatch = [&](std::string_view style, std::string_view name, bool crossed) {
    drawing.add(R"(<path class="{}" stroke-width="{}" d="M{:.1f} {:.1f}h{}"/>)", style, kBar, x,
                top + 22 + kBar / 2, kSwatch);
    drawing.add(R"(<path class="{}" d="M{:.1f} {:.1f}l{} {}"/>)", crossed ? "cross" : "thin", x, top + 22,
                kSwatch, kBar);
    drawing.add(R"(<path class="frame" d="M{:.1f} {:.1f}h{}v{}h-{}z"/>)", x, top + 22, kSwatch, kBar,
                kSwatch);
    drawing.text("name", "start", x + kSwatch + 6, top + 22 + kBar - 1, name);
    x += kSwatch + 6 + text_width(canvas, name) + 18;
  };
  if (scale.zero) swatch("nothing", "0", false);
  if (scale.missing) swatch("missing", "missing", true);
  return top + 22 + kBar + 24;
}

// What the picture does not show.
void add_notes(Drawn& drawn, const Heatmap& map, const Grid& grid, const Scale& scale) {
  if (!grid.whole())
    drawn.notes.push_back(fmt::format("Each cell is the mean of {} x {} values; the map has {} x {}.",
                                      grid.block_rows, grid.block_columns, map.rows, map.columns));
  const auto missing = std::ranges::count_if(map.values, [&](double value) { return !usable(map, value); });
  if (missing > 0)
    drawn.notes.push_back(fmt::format("{} of {} values {} missing: not a finite number{}.", missing,
                                      map.values.size(), missing == 1 ? "is" : "are",
                                      map.log ? ", or below 0" : ""));
  if (scale.beyond > 0)
    drawn.notes.push_back(
        fmt::format("{} of {} cells are beyond the ends of the scale.", scale.beyond, grid.values.size()));
}

}  // namespace

Drawn draw(const Heatmap& map, const Canvas& canvas) {
  check_sizes(map);
  const Grid grid = reduced(map);
  Scale scale(map, grid);
  Drawn drawn{.kind = "heat map", .title = map.title, .width = canvas.width, .shades = true};
  Drawing drawing;
  if (map.values.empty()) {
    drawing.text("name", "start", 0, 20, "no data to show");
    drawn.height = 36, drawn.elements = drawing.take();
    return drawn;
  }

  const auto rows = static_cast<double>(grid.rows), columns = static_cast<double>(grid.columns);
  double left = text_width(canvas, std::to_string(map.rows)) + 8, widest = 0;
  for (const std::string& name : map.row_names)
    left = std::max(left, 8 + text_width(canvas, shortened(name, 20)));
  for (const std::string& name : map.column_names)
    widest = std::max(widest, text_width(canvas, shortened(name, 16)));
  const double width = std::min(kLargestCell, (canvas.width - left - 10) / columns);
  const double tallest = canvas.plot_height * 1.5 / rows;
  const double height = std::min(tallest, std::clamp(width, std::min(kLowestCell, tallest), kLargestCell));
  const double top = map.y_label.empty() ? 2 : 26, bottom = top + height * rows;

  drawing.text("label", "start", 0, 14, map.y_label);
  drawing.add(R"svg(<g class="cells" transform="translate({:.1f} {:.1f}) scale({:.4f} {:.4f})">)svg", left,
              top, width, height);
  draw_cells(drawing, map, grid, scale);
  drawing.add("</g>");
  draw_marks(drawing, grid, left, top, width, height);
  drawing.add(R"(<path class="frame" d="M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z"/>)", left, top,
              width * columns, height * rows, width * columns);

  const int row_ticks = std::clamp(static_cast<int>(height * rows / 45), 2, 8);
  for (const auto& [at, label] : labels(map.row_names, map.rows, grid.block_rows, height, 14, row_ticks, 20))
    drawing.text("tick", "end", left - 6, top + height * at + 4.5, label);
  const int column_ticks =
      std::clamp(static_cast<int>(width * columns / 60), 1, static_cast<int>(canvas.x_ticks));
  const bool upright = widest + 4 > width && widest > 4 * canvas.character;
  for (const auto& [at, label] : labels(map.column_names, map.columns, grid.block_columns, width,
                                        upright ? 15 : widest + 4, column_ticks, 16)) {
    const double x = left + width * at;
    if (upright)
      drawing.add(
          R"svg(<text class="tick" text-anchor="end" transform="translate({:.1f} {:.1f}) rotate(-60)">{}</text>)svg",
          x + 5, bottom + 12, escape_xml(label));
    else drawing.text("tick", "middle", x, bottom + 16, label);
  }
  double y = bottom + (upright ? 12 + widest * 0.87 : 20);
  if (!map.x_label.empty()) {
    const double wide = text_width(canvas, map.x_label), middle = left + width * columns / 2;
    const bool fits = middle - wide / 2 > 0;
    drawing.text("label", fits ? "middle" : "start", fits ? middle : 0, y + 18, map.x_label);
    y += 24;
  }
  drawn.height = draw_scale(drawing, canvas, map, scale, y + 10);
  drawn.elements = drawing.take();
  add_notes(drawn, map, grid, scale);
  return drawn;
}

}  // namespace nestgrad::drawing
