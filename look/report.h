// Results for people: pictures as SVG (images as PNG) and a one-file HTML page of views made of them. Everything is
// inline (no network), and light or dark follows the reader's system. All text is escaped; bytes that are not UTF-8, as
// a byte-level model may write them, show as U+FFFD.
//
// A value or an error bar that is NaN or infinite, or that a log axis cannot show, is never
// left out in silence: the picture says how many there are. (A reference line that cannot be drawn is left out.) Labels carry
// the unit: "loss (nats per byte)". Sizes that do not fit throw ValueError.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/array.h"
#include "ttt/claim.h"

namespace nestgrad {

// One line of a chart. A missing value breaks the line there; a point that is alone between two breaks is
// drawn as a dot. As many x as y.
struct Series {
  std::string name;
  std::vector<double> x, y;
  std::vector<double> low = {}, high = {};  // ends of an error bar at each y; none, or as many as y
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series = {};
  // Dotted horizontal lines at a y value: name and value, both written beside the line. A value that cannot
  // be drawn is left out.
  std::vector<std::pair<std::string, double>> reference_lines = {};
  bool log_x = false, log_y = false;
  double too_much = std::numeric_limits<double>::quiet_NaN();  // above it the background is red; NaN: nowhere
};

// A matrix as colours, row 0 at the top. More than 128 rows or columns are drawn as means of blocks.
struct Heatmap {
  std::string title, x_label, y_label, value_label;
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values = {};  // [rows, columns]
  bool diverging = false;           // colours symmetric around 0
  bool log = false;                 // colours by the logarithm; 0 has a colour of its own. Not with diverging
  std::vector<std::string> row_names = {}, column_names = {};  // one each, or none: 0, 1, ..
  // The ends of the colour scale, so that maps can be compared; NaN: of the values.
  double low = std::numeric_limits<double>::quiet_NaN(), high = std::numeric_limits<double>::quiet_NaN();
};

// For each name one bar of each group, side by side or stacked. Not stacked and log_y together.
struct Bars {
  struct Group {
    std::string name;
    std::vector<double> values;  // one for each name
  };
  std::string title, y_label;
  std::vector<std::string> names = {};
  std::vector<Group> groups = {};
  bool stacked = false, log_y = false;
};

// Scattered points; every group has its own colour and shape. As many x as y.
struct Points {
  struct Group {
    std::string name;
    std::vector<double> x, y;
  };
  std::string title, x_label, y_label;
  std::vector<Group> groups = {};
  bool log_x = false, log_y = false;
  bool diagonal = false;  // draws the line y = x
};

// An estimate and its error bar in each row, below each other (a forest plot). A row without an interval has low and
// high equal to its estimate.
struct Intervals {
  struct Row {
    std::string name;
    double estimate, low, high;
    double reference =
        std::numeric_limits<double>::quiet_NaN();  // what another has found: a cross; NaN: nothing
  };
  std::string title, x_label;
  std::vector<Row> rows = {};
  double line = std::numeric_limits<double>::quiet_NaN();  // a dotted vertical line, as at 0; NaN: none
  std::string reference_name = {};                         // of the crosses, for the legend
};

// What depends on what, and which way gradients flow. Boxes are laid out in layers from top to bottom along
// forward arrows (further arrows as far as they close no cycle); an arrow that closes one points upwards.
struct Diagram {
  struct Box {
    std::string label, detail = {};  // detail in small print below the label
    int level = -1;                  // of nesting: its colour; -1: none
  };
  struct Arrow {
    enum class Kind { forward, inner_gradient, meta_gradient };
    int from, to;  // indices of boxes; equal: a loop at the box
    Kind kind = Kind::forward;
    bool cut = false;  // where the gradient is stopped: dashed, with a cross
    std::string label = {};
  };
  std::string title;
  std::vector<Box> boxes = {};
  std::vector<Arrow> arrows = {};
};

// Columns of which every cell is a number, as format_number writes it, are aligned at the right.
struct Table {
  std::string title;
  std::vector<std::string> columns = {};  // headers carry the units
  std::vector<std::vector<std::string>> rows = {};
};

// Nested parts that fold and unfold. The outermost label stands for the title.
struct Tree {
  std::string label, detail = {};
  int level = -1;  // colour, as in Diagram
  std::vector<Tree> children = {};
};

// Images side by side, each enlarged so that its pixels are seen; they wrap where there is no room. On a page alone. A
// tile is f32 [height, width, 1 or 3], values 0 to 1; ones that are not finite are drawn as 0, and the page says how
// many.
struct Images {
  struct Tile {
    Array image;
    std::string caption = {};
    std::string marked = {};  // "", "good" (a frame and a tick) or "bad" (another frame and a cross)
  };
  std::string title;
  std::vector<Tile> tiles = {};
  int columns = 0;  // beside each other where there is room; 0: as many as there is room for
  int scale = 0;    // pixels of the screen for one of an image; 0: such that the widest tile is about 96 wide
  // Of rows of `columns` tiles each, as "input", "prediction", "truth"; the last may be shorter. None: no rows.
  std::vector<std::string> row_names = {};
};

using Picture = std::variant<Chart, Heatmap, Bars, Points, Intervals, Diagram, Table, Tree, Images>;

// One foldable part of a page.
struct ReportView {
  std::string id;  // its anchor: letters, digits, '-', '_' and '.'; unique in the page
  std::string title;
  std::string question = {};       // what it answers, in a sentence
  std::string reading = {};        // how to read it: plain text, a blank line starts a new paragraph
  std::vector<Claim> claims = {};  // about the numbers shown
  std::vector<Picture> pictures = {};
  std::string preformatted = {};  // shown last, in a fixed-width font with its line breaks
  bool open = true;               // when the page is opened
};

// A complete HTML page: facts by name, a list of the views with whether their claims hold, with the numbers,
// then the views.
std::string html_report(std::string_view title, std::string_view subtitle,
                        const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<ReportView>& views);

// A complete <svg> element, as a file by itself.
std::string svg(const Chart& chart);
std::string svg(const Heatmap& map);
std::string svg(const Bars& bars);
std::string svg(const Points& points);
std::string svg(const Intervals& intervals);
std::string svg(const Diagram& diagram);

// A number to three significant digits: 0.123, 12.3, 1234, 1.23e-16, NaN.
std::string format_number(double value);

// Text for XML or HTML, as content or inside double quotes.
std::string escape_xml(std::string_view text);

}  // namespace nestgrad
