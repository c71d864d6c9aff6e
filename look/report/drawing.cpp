#include "look/report/drawing.h"

#include <algorithm>

namespace nestgrad::drawing {

namespace {

constexpr std::size_t kLongestName = 90;  // characters
constexpr double kMargin = 18, kTitle = 44, kNote = 19;

}  // namespace

bool starts_character(char c) { return (c & 0xc0) != 0x80; }

double text_width(const Canvas& canvas, std::string_view text) {
  constexpr std::string_view kNarrow = "iljtfr.,;:'|!()[] ", kWide = "mMW@%+=<>~w";
  double letters = 0;
  for (const char c : text) {
    if (!starts_character(c)) continue;
    if (kNarrow.find(c) != std::string_view::npos) letters += 0.7;
    else if (kWide.find(c) != std::string_view::npos) letters += 1.6;
    else letters += (c >= 'a' && c <= 'z') || c == '_' ? 1.05 : 1.2;
  }
  return canvas.character * letters;
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

std::string fitting(const Canvas& canvas, std::string_view text, std::size_t characters, double room) {
  std::string out = shortened(text, characters);
  const double dots = 0.4 * canvas.character;  // by which "…" is wider than other letters
  while (characters > 4 && text_width(canvas, out) + (out == text ? 0 : dots) > room)
    out = shortened(text, --characters);
  return out;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t characters) {
  std::vector<std::string> lines;
  std::size_t in_line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = std::min(text.find_first_of(" \n", at), text.size());
    const std::string word = shortened(text.substr(at, space - at), characters);
    const auto length = static_cast<std::size_t>(std::ranges::count_if(word, starts_character));
    at = space + 1;
    if (word.empty()) continue;
    if (lines.empty() || in_line + 1 + length > characters) {
      lines.push_back(word);
      in_line = length;
    } else {
      lines.back() += " " + word;
      in_line += 1 + length;
    }
  }
  return lines;
}

void note_missing(Drawn& drawn, std::size_t missing, std::size_t total, std::string_view what,
                  bool positive) {
  if (missing == 0) return;
  drawn.notes.push_back(fmt::format("{} of {} {} {} missing: not a finite number{}.", missing, total, what,
                                    missing == 1 ? "is" : "are", positive ? ", or not above 0" : ""));
}

double draw_legend(Drawing& drawing, const Canvas& canvas, const std::vector<LegendEntry>& entries,
                   double top) {
  constexpr double kSwatch = 22, kSpace = 7, kGap = 22;
  const auto fits = static_cast<std::size_t>((canvas.width - kSwatch - kSpace) / canvas.character);
  double x = 0, y = top;
  for (const LegendEntry& entry : entries) {
    if (entry.name.empty()) continue;
    const std::string name = shortened(entry.name, std::min(kLongestName, fits));
    const double width = kSwatch + kSpace + text_width(canvas, name);
    if (x > 0 && x + width > canvas.width) x = 0, y += kRow;
    entry.swatch(drawing, x, y + 10);
    drawing.text("name", "start", x + kSwatch + kSpace, y + 14.5, name);
    x += width + kGap;
  }
  return x > 0 ? y + kRow + 4 : y;
}

// Neither colours nor dashes alone: from the fifth series on the lines are dashed, from the ninth dotted.
std::string line_style(std::size_t index) {
  return fmt::format(R"(class="line c{}"{})", index % kColours,
                     index < kColours / 2 ? ""
                     : index < kColours   ? R"( stroke-dasharray="8 5")"
                                          : R"( stroke-dasharray="2 5")");
}

std::string fill_style(std::size_t index) {
  return fmt::format(R"(class="f{}"{})", index % kColours, index < kColours ? "" : R"( fill-opacity=".5")");
}

std::string svg_file(const Drawn& drawn) {
  const double width = drawn.width + 2 * kMargin, below = kTitle + drawn.height;
  std::vector<std::string> notes;
  for (const std::string& note : drawn.notes)
    for (std::string& line : wrapped(note, static_cast<std::size_t>(drawn.width / kFile.character)))
      notes.push_back(std::move(line));
  const double height = below + kMargin + (notes.empty() ? 0 : 4 + kNote * static_cast<double>(notes.size()));

  Drawing drawing;
  drawing.text("title", "start", kMargin, 30, drawn.title);
  drawing.add(R"svg(<g transform="translate({} {})">)svg", kMargin, kTitle);
  drawing.add("{}</g>", drawn.elements);
  for (std::size_t i = 0; i < notes.size(); ++i)
    drawing.text("label", "start", kMargin, below + 4 + kNote * (static_cast<double>(i) + 0.75), notes[i]);
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" viewBox="0 0 {:.0f} {:.0f}">
<title>{}</title>
<style>{}</style>
<rect class="back" width="{:.0f}" height="{:.0f}" rx="8"/>
{}</svg>
)",
      width, height, escape_xml(drawn.title.empty() ? drawn.kind : drawn.title), picture_style(drawn.shades),
      width, height, drawing.take());
}

}  // namespace nestgrad::drawing

namespace nestgrad {

std::string svg(const Chart& chart) { return drawing::svg_file(drawing::draw(chart, drawing::kFile)); }
std::string svg(const Heatmap& map) { return drawing::svg_file(drawing::draw(map, drawing::kFile)); }
std::string svg(const Bars& bars) { return drawing::svg_file(drawing::draw(bars, drawing::kFile)); }
std::string svg(const Intervals& intervals) {
  return drawing::svg_file(drawing::draw(intervals, drawing::kFile));
}
std::string svg(const Points& points) { return drawing::svg_file(drawing::draw(points, drawing::kFile)); }
std::string svg(const Diagram& diagram) { return drawing::svg_file(drawing::draw(diagram, drawing::kFile)); }

}  // namespace nestgrad
