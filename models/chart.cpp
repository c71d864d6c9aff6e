// svg(): axes with round ticks, a legend, and the lines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/error.h"
#include "models/report.h"

namespace nestgrad {

namespace {

// Lengths are in units of the viewBox: pixels at full width.
constexpr double kWidth = 760, kPlotHeight = 300, kMargin = 18, kRow = 21, kCharacter = 7.3;
constexpr std::size_t kColours = 8;  // further series repeat them with a dashed line
constexpr std::size_t kLongestName = 90, kLongestReference = 28;  // characters

// Plain classes and no CSS variables, which SVG viewers and converters outside browsers do not know.
constexpr std::string_view kStyle = R"(
.chart{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:13px}
.chart .back{fill:#fcfcfb}.chart text{fill:#5c5b57}.chart .title{fill:#1c1c1a;font-size:16px;font-weight:600}
.chart .name{fill:#1c1c1a}.chart .grid{stroke:#e4e3df}.chart .axis{stroke:#a9a8a2}
.chart .reference{stroke:#6f6e69;stroke-width:1.5;stroke-dasharray:2 4}
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.c0{stroke:#2a78d6}.c1{stroke:#d9571f}.c2{stroke:#128a62}.c3{stroke:#b87a00}
.c4{stroke:#4a3aa7}.c5{stroke:#d9366f}.c6{stroke:#4d7c0f}.c7{stroke:#7c5a46}
@media(prefers-color-scheme:dark){
.chart .back{fill:#1a1a19}.chart text{fill:#b5b4ad}.chart .title,.chart .name{fill:#f2f1ed}
.chart .grid{stroke:#32322f}.chart .axis{stroke:#6b6a65}.chart .reference{stroke:#a3a29b}
.c0{stroke:#5a9df0}.c1{stroke:#f0834f}.c2{stroke:#3cc093}.c3{stroke:#e0a526}
.c4{stroke:#a59cf2}.c5{stroke:#f2799f}.c6{stroke:#a3c94a}.c7{stroke:#c9a48d}}
)";

bool starts_character(char c) { return (c & 0xc0) != 0x80; }  // in UTF-8

// Width on paper, roughly: one average letter per character.
double text_width(std::string_view text) {
  return kCharacter * static_cast<double>(std::ranges::count_if(text, starts_character));
}

std::string shortened(std::string_view text, std::size_t characters) {
  std::size_t seen = 0, cut = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (starts_character(text[i])) {
      if (++seen == characters) cut = i;
      if (seen > characters) return std::string(text.substr(0, cut)) + "\xe2\x80\xa6";
    }
  return std::string(text);
}

// 0.25, 1500, 20k, 3e-5: `scale` decides on k, M and G, so that one axis can keep to one of them.
std::string number(double value, double scale, int digits = 6) {
  if (value != 0 && (std::abs(value) < 1e-4 || scale >= 1e12)) {
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    return fmt::format("{:.4g}e{}", value / std::pow(10.0, exponent), exponent);
  }
  if (scale >= 1e9) return fmt::format("{:.{}g}G", value / 1e9, digits);
  if (scale >= 1e6) return fmt::format("{:.{}g}M", value / 1e6, digits);
  if (scale >= 1e4) return fmt::format("{:.{}g}k", value / 1e3, digits);
  return fmt::format("{:.{}g}", value, digits);
}

struct Tick {
  double value;
  std::string label;
};

// One axis: what it can show, where that falls on the page, and its ticks.
struct Axis {
  bool log;
  int about;                                // how many ticks are wanted
  bool snap;                                // whether the range ends on ticks
  double low = INFINITY, high = -INFINITY;  // log10 of the values when log
  double start = 0, length = 0;             // on the page
  std::vector<Tick> ticks = {};

  bool shows(double value) const { return std::abs(value) < 1e300 && (!log || value > 1e-300); }
  double scaled(double value) const { return log ? std::log10(value) : value; }
  double place(double value) const { return start + (scaled(value) - low) / (high - low) * length; }
  void include(double value) {
    low = std::min(low, scaled(value));
    high = std::max(high, scaled(value));
  }

  // After the last include(): fixes range and ticks.
  void finish() {
    if (low > high) low = 0, high = 1;
    if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high)) || high == low) {
      const double pad = log ? 0.5 : low == 0 ? 1 : std::abs(low) / 2;
      low -= pad, high += pad;
    }
    if (!log) return linear_ticks();
    if (high - low >= 0.7) return log_ticks();
    // Less than 1 to 5: round linear ticks, at their logarithmic places.
    if (snap) low -= 0.03, high += 0.03;
    Axis values{
        .log = false, .about = about, .snap = false, .low = std::pow(10, low), .high = std::pow(10, high)};
    values.linear_ticks();
    ticks = std::move(values.ticks);
  }

  void linear_ticks() {
    const double rough = (high - low) / about, power = std::pow(10, std::floor(std::log10(rough)));
    const double m = rough / power;
    const double step = power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 2.5 ? 2.5 : m <= 5 ? 5 : 10);
    const double first = snap ? std::floor(low / step + 1e-6) : std::ceil(low / step - 1e-6);
    const double last = snap ? std::ceil(high / step - 1e-6) : std::floor(high / step + 1e-6);
    if (snap) low = first * step, high = last * step;
    const double scale = std::max(std::abs(low), std::abs(high));
    const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(scale / step))) + 2, 6, 15);
    for (double i = first; i <= last; ++i) {
      const double value = i == 0 ? 0 : i * step;  // never -0
      ticks.push_back({value, value == 0 ? "0" : number(value, scale, digits)});
    }
  }

  // Powers of ten; every second, third ... when there are many, with 2 and 5 between them when there are few.
  void log_ticks() {
    const bool few = high - low < 2.5;
    const double stride = std::max(1.0, std::ceil((high - low) / about));
    for (double power = std::floor(low); power <= std::ceil(high); power += stride)
      for (double mantissa : {1.0, 2.0, 5.0})
        if (const double value = mantissa * std::pow(10, power); mantissa == 1 || few)
          ticks.push_back({value, number(value, value)});
    const auto below = [&](const Tick& tick) { return scaled(tick.value) < low - 1e-6; };
    const auto above = [&](const Tick& tick) { return scaled(tick.value) > high + 1e-6; };
    if (snap) {  // reach out to the nearest tick beyond either end
      while (ticks.size() > 1 && below(ticks[1])) ticks.erase(ticks.begin());
      while (ticks.size() > 1 && above(ticks[ticks.size() - 2])) ticks.pop_back();
      const double first = ticks.front().value, last = ticks.back().value;
      include(first);
      include(last);
    }
    std::erase_if(ticks, [&](const Tick& tick) { return below(tick) || above(tick); });
  }
};

// Collects the elements of the picture.
class Drawing {
 public:
  void line(std::string_view style, double x1, double y1, double x2, double y2) {
    add(R"(<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", style, x1, y1, x2, y2);
  }
  // anchor: start, middle or end, the part of the text that lies at x.
  void text(std::string_view style, std::string_view anchor, double x, double y, std::string_view words) {
    add(R"(<text class="{}" text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>)", style, anchor, x, y,
        escape_xml(words));
  }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(elements_), format, std::forward<Args>(args)...);
    elements_ += '\n';
  }
  const std::string& elements() const { return elements_; }

 private:
  std::string elements_;
};

std::string line_style(std::size_t index) {
  return fmt::format(R"(class="line c{}"{})", index % kColours,
                     index < kColours ? "" : R"( stroke-dasharray="7 5")");
}

// Returns where the next row below the legend begins.
double draw_legend(Drawing& drawing, const std::vector<Series>& series, double top) {
  constexpr double kSwatch = 22, kGap = 24;
  double x = kMargin, y = top;
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) continue;
    const std::string name = shortened(series[i].name, kLongestName);
    const double width = kSwatch + 7 + text_width(name);
    if (x > kMargin && x + width > kWidth - kMargin) x = kMargin, y += kRow;
    drawing.add(R"(<path {} d="M{:.1f} {:.1f}h{}"/>)", line_style(i), x, y + 10, kSwatch);
    drawing.text("name", "start", x + kSwatch + 7, y + 14.5, name);
    x += width + kGap;
  }
  return x > kMargin ? y + kRow + 4 : y;
}

void draw_axes(Drawing& drawing, const Axis& x, const Axis& y) {
  const double right = x.start + x.length;
  for (const Tick& tick : y.ticks) {
    const double at = y.place(tick.value);
    drawing.line("grid", x.start, at, right, at);
    drawing.text("tick", "end", x.start - 8, at + 4.5, tick.label);
  }
  for (const Tick& tick : x.ticks) {
    const double at = x.place(tick.value);
    drawing.line("axis", at, y.start, at, y.start + 5);
    drawing.text("tick", "middle", at, y.start + 20, tick.label);
  }
  drawing.line("axis", x.start, y.start, right, y.start);
}

void draw_series(Drawing& drawing, const Series& series, std::size_t index, const Axis& x, const Axis& y) {
  const auto shown = [&](std::size_t i) {
    return i < series.x.size() && x.shows(series.x[i]) && y.shows(series.y[i]);
  };
  std::string path;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!shown(i)) continue;
    const bool first = i == 0 || !shown(i - 1);
    const double px = x.place(series.x[i]), py = y.place(series.y[i]);
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", first ? 'M' : 'L', px, py);
    if (first && !shown(i + 1))  // alone: a dot, as a ring too small for a hole
      path += "m-1.4 0a1.4 1.4 0 1 0 2.8 0a1.4 1.4 0 1 0 -2.8 0";
  }
  drawing.add(R"(<path {} d="{}"><title>{}</title></path>)", line_style(index), path,
              escape_xml(series.name));
}

struct Reference {
  double value, label_y;
  std::string label;
};

std::vector<Reference> shown_references(const Chart& chart, const Axis& y) {
  std::vector<Reference> references;
  for (const auto& [name, value] : chart.reference_lines)
    if (y.shows(value))
      references.push_back(
          {value, 0,
           fmt::format("{} {}", shortened(name, kLongestReference), number(value, std::abs(value), 4))});
  std::ranges::sort(references, std::greater{}, &Reference::value);
  return references;
}

// Labels stand in the right margin, each at its line or pushed down by the one above.
void draw_references(Drawing& drawing, std::vector<Reference> references, const Axis& x, const Axis& y) {
  constexpr double kApart = 16;
  double free_from = -INFINITY;
  for (Reference& reference : references) {
    const double at = y.place(reference.value);
    reference.label_y = std::max(at + 4.5, free_from);
    free_from = reference.label_y + kApart;
    drawing.line("reference", x.start, at, x.start + x.length, at);
    drawing.text("name", "start", x.start + x.length + 8, reference.label_y, reference.label);
  }
}

}  // namespace

std::string svg(const Chart& chart) {
  Axis x{.log = chart.log_x, .about = 7, .snap = false}, y{.log = chart.log_y, .about = 5, .snap = true};
  bool empty = true;
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size())
      throw ValueError(fmt::format("[svg] series '{}' has {} x and {} y values; need as many of each",
                                   series.name, series.x.size(), series.y.size()));
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!x.shows(series.x[i]) || !y.shows(series.y[i])) continue;
      x.include(series.x[i]);
      y.include(series.y[i]);
      empty = false;
    }
  }
  const std::vector<Reference> references = shown_references(chart, y);
  for (const Reference& reference : references) y.include(reference.value);
  x.finish();
  y.finish();

  double left = kMargin, right = kMargin + 10;
  for (const Tick& tick : y.ticks) left = std::max(left, kMargin + 8 + text_width(tick.label));
  for (const Reference& reference : references)
    right = std::max(right, 8 + kMargin + text_width(reference.label));

  Drawing drawing;
  drawing.text("title", "start", kMargin, 30, chart.title);
  const double below_legend = draw_legend(drawing, chart.series, 44);
  drawing.text("label", "start", kMargin, below_legend + 14, chart.y_label);
  y.start = below_legend + 30 + kPlotHeight, y.length = -kPlotHeight;
  x.start = left, x.length = kWidth - left - right;
  if (empty && references.empty()) x.ticks = y.ticks = {};  // their numbers would mean nothing
  draw_axes(drawing, x, y);
  drawing.text("label", "middle", x.start + x.length / 2, y.start + 42, chart.x_label);
  draw_references(drawing, references, x, y);
  for (std::size_t i = 0; i < chart.series.size(); ++i) draw_series(drawing, chart.series[i], i, x, y);
  if (empty)
    drawing.text("name", "middle", x.start + x.length / 2, y.start - kPlotHeight / 2 - 8, "no data to show");

  const double height = y.start + 58;
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">
<style>{}</style>
<rect class="back" width="{}" height="{}" rx="8"/>
{}</svg>
)",
      escape_xml(chart.title), kWidth, height, kStyle, kWidth, height, drawing.elements());
}

}  // namespace nestgrad
