// What all pictures of a report are made with: sizes, text,
// elements, legends. Not for use outside look/report.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "look/report.h"

namespace nestgrad::drawing {

// What a picture is drawn for. Lengths are in units of the viewBox.
struct Canvas {
  double width, plot_height;
  double character;  // width of an average letter
  std::size_t longest_reference, x_ticks;
};
inline constexpr Canvas kFile{724, 300, 7.3, 28, 7};
// About as wide as a phone can show, twice beside each other on a desk; its letters are larger on a phone.
inline constexpr Canvas kPage{480, 250, 8.8, 14, 5};
inline constexpr double kRow = 21;
inline constexpr std::size_t kColours = 8;
inline constexpr int kLevels = 6;   // colours of levels of nesting
inline constexpr int kShades = 33;  // of a colour scale; odd, so that one is in the middle

// A picture without title, notes and style, which differ between a file and a page.
struct Drawn {
  std::string kind, title;
  double width = 0, height = 0;
  std::string elements = {};
  std::vector<std::string> notes = {};  // a sentence each
  bool shades = false;                  // whether it needs the colours of a scale
};

Drawn draw(const Chart& chart, const Canvas& canvas);
Drawn draw(const Heatmap& map, const Canvas& canvas);
Drawn draw(const Bars& bars, const Canvas& canvas);
Drawn draw(const Points& points, const Canvas& canvas);
Drawn draw(const Intervals& intervals, const Canvas& canvas);
Drawn draw(const Diagram& diagram, const Canvas& canvas);

std::string svg_file(const Drawn& drawn);

// Images are no SVG: a <figure> of a page.
std::string figure(const Images& images);

// The style sheet of pictures. Plain classes and no CSS variables, which SVG viewers and converters outside
// browsers do not know. c0.. colour strokes, f0.. fills, l0.. levels; q0.. and d0.. are the shades of a
// sequential and of a diverging scale.
std::string picture_style(bool shades);

bool starts_character(char c);  // in UTF-8
double text_width(const Canvas& canvas, std::string_view text);
std::string shortened(std::string_view text, std::size_t characters);
// Shortened until it is at most so wide, but not below four characters.
std::string fitting(const Canvas& canvas, std::string_view text, std::size_t characters, double room);
std::vector<std::string> wrapped(std::string_view text, std::size_t characters);  // at spaces

// What a linear scale can show. Beyond that, differences overflow.
inline bool drawable(double value) { return std::abs(value) < 1e300; }

// "3 of 20 points are missing: .." or nothing when none are; positive: whether the scale is logarithmic.
void note_missing(Drawn& drawn, std::size_t missing, std::size_t total, std::string_view what, bool positive);

// Collects the elements of a picture.
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
  std::string take() { return std::move(elements_); }

 private:
  std::string elements_;
};

struct LegendEntry {
  std::string name;
  std::function<void(Drawing&, double x, double y)> swatch;  // 22 wide, around y
};

// Entries without a name are left out. Returns where the next row below the legend begins.
double draw_legend(Drawing& drawing, const Canvas& canvas, const std::vector<LegendEntry>& entries,
                   double top);

// class and dashes of the index-th series.
std::string line_style(std::size_t index);
std::string fill_style(std::size_t index);

}  // namespace nestgrad::drawing
