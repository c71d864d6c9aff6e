// Results for people: line charts as SVG and a one-file HTML report. Everything is inline (no network, no
// scripts), and light or dark follows the reader's system. All text is escaped; bytes that are not UTF-8, as
// a byte-level model may write them, show as U+FFFD.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nestgrad {

// One line of a chart. A NaN or infinity (or, on a log axis, a value <= 0) breaks the line there; a point
// that is alone between two breaks is drawn as a dot.
struct Series {
  std::string name;
  std::vector<double> x, y;
};

struct Chart {
  std::string title, x_label, y_label;  // labels carry the unit: "loss (nats per byte)"
  std::vector<Series> series;
  // Dotted horizontal lines at a y value: name and value, both written beside the line. A value that cannot
  // be drawn is left out.
  std::vector<std::pair<std::string, double>> reference_lines = {};
  bool log_x = false, log_y = false;
};

// A complete <svg> element: a file by itself, or inline in a page.
// Throws ValueError when a series has unequal numbers of x and y.
std::string svg(const Chart& chart);

// Text for XML or HTML, as content or inside double quotes.
std::string escape_xml(std::string_view text);

struct ReportSection {
  std::string heading;
  std::string prose = {};  // plain text; a blank line starts a new paragraph
  std::vector<Chart> charts = {};
  std::string preformatted = {};  // shown in a fixed-width font with its line breaks
};

// A complete HTML page; facts is shown as a table of two columns. Throws as svg does.
std::string html_report(std::string_view title, std::string_view subtitle,
                        const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<ReportSection>& sections);

}  // namespace nestgrad
