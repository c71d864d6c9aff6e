// Boxes and arrows.
#include <array>
#include <set>

#include "engine/core/error.h"
#include "look/report/drawing.h"
#include "look/report/layered_layout.h"

namespace nestgrad::drawing {

namespace {

using Arrow = Diagram::Arrow;

constexpr double kLine = 17, kPadding = 9, kNarrowest = 64, kLoop = 30;
constexpr std::size_t kLabel = 24, kDetail = 30, kArrowLabel = 22;  // characters in a line
constexpr std::array<std::string_view, 3> kKinds{"forward", "inner gradient", "meta gradient"};

std::size_t kind(const Arrow& arrow) { return static_cast<std::size_t>(arrow.kind); }

void check_arrows(const Diagram& diagram) {
  const auto boxes = static_cast<int>(diagram.boxes.size());
  for (const Arrow& arrow : diagram.arrows)
    if (arrow.from < 0 || arrow.from >= boxes || arrow.to < 0 || arrow.to >= boxes ||
        kind(arrow) >= kKinds.size())
      throw ValueError(
          fmt::format("[svg] an arrow of diagram '{}' goes from box {} to box {}; there are {} boxes",
                      diagram.title, arrow.from, arrow.to, boxes));
}

struct BoxText {
  std::vector<std::string> label, detail;
  double width, height;

  BoxText(const Diagram::Box& box, const Canvas& canvas)
      : label(wrapped(box.label, kLabel)), detail(wrapped(box.detail, kDetail)) {
    double widest = 0;
    for (const std::string& line : label) widest = std::max(widest, 1.05 * text_width(canvas, line));
    for (const std::string& line : detail) widest = std::max(widest, 0.92 * text_width(canvas, line));
    const double stripes = box.level < 0 ? 0 : 6 + 5 * std::min(box.level + 1, kLevels);
    width = std::max(kNarrowest, widest + 2 * kPadding + 2 * stripes);
    height =
        kLine * static_cast<double>(std::max<std::size_t>(label.size() + detail.size(), 1)) + 2 * kPadding;
  }
};

// Level 0 has one stripe, level 1 two: not by colour alone.
void draw_stripes(Drawing& drawing, int level, double x, double y, double height) {
  if (level < 0) return;
  for (int i = 0; i <= std::min(level, kLevels - 1); ++i)
    drawing.add(R"(<rect class="l{}" x="{:.1f}" y="{:.1f}" width="3" height="{:.1f}" rx="1.5"/>)",
                level % kLevels, x + 5 * i, y, height);
}

void draw_box(Drawing& drawing, const Diagram::Box& box, const BoxText& text, const Place& middle) {
  const double left = middle.x - text.width / 2, top = middle.y - text.height / 2;
  drawing.add(
      R"(<g><title>{}{}</title><rect class="box" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="6"/>)",
      escape_xml(box.label), box.level < 0 ? "" : fmt::format(", level {}", box.level), left, top, text.width,
      text.height);
  draw_stripes(drawing, box.level, left + 6, top + 6, text.height - 12);
  double y = top + kPadding + 12.5;
  for (const std::string& line : text.label)
    drawing.text("name strong", "middle", middle.x, y, line), y += kLine;
  for (const std::string& line : text.detail) drawing.text("small", "middle", middle.x, y, line), y += kLine;
  drawing.add("</g>");
}

// Heads differ in form: open, filled, and double for gradients
// of gradients. The tip is at (0, 0) and points down.
void draw_head(Drawing& drawing, const Arrow& arrow, double x, double y, int degrees) {
  static constexpr std::array<std::string_view, 3> kHeads{"M-4 -7L0 -.5L4 -7", "M-4.5 -8.5H4.5L0 0Z",
                                                          "M-4.5 -8.5H4.5L0 0ZM-4.5 -15.5H4.5L0 -7Z"};
  drawing.add(R"svg(<path class="{}" transform="translate({:.1f} {:.1f}) rotate({})" d="{}"/>)svg",
              kind(arrow) == 0 ? "arrow forward a0" : fmt::format("h{}", kind(arrow)), x, y, degrees,
              kHeads[kind(arrow)]);
}

std::string arrow_style(const Arrow& arrow) {
  return fmt::format("arrow{}{} a{}", kind(arrow) == 0 ? " forward" : "", arrow.cut ? " cut" : "",
                     kind(arrow));
}

void draw_cross(Drawing& drawing, const Arrow& arrow, double x, double y) {
  const std::string path = fmt::format("M{:.1f} {:.1f}m-5-5l10 10m0-10l-10 10", x, y);
  drawing.add(
      R"(<path class="arrow halo" style="stroke-width:6" d="{}"/><path class="arrow a{}" style="stroke-width:2.4" d="{}"/>)",
      path, kind(arrow), path);
}

// Below each other at (x, y), above the lines.
void draw_label(Drawing& drawing, const std::vector<std::string>& lines, std::string_view anchor, double x,
                double y) {
  y -= kLine * (static_cast<double>(lines.size()) - 1) / 2 - 4.5;
  for (const std::string& line : lines) drawing.text("name small halo", anchor, x, y, line), y += kLine;
}

std::string describe(const Diagram& diagram, const Arrow& arrow) {
  const auto label = [&](int box) { return diagram.boxes[static_cast<std::size_t>(box)].label; };
  return escape_xml(fmt::format("{} \xe2\x86\x92 {}: {}{}{}{}", label(arrow.from), label(arrow.to),
                                kKinds[kind(arrow)], arrow.cut ? ", cut" : "",
                                arrow.label.empty() ? "" : ", ", arrow.label));
}

void draw_arrow(Drawing& drawing, const Diagram& diagram, const Arrow& arrow, const Route& route) {
  std::string path = fmt::format("M{:.1f} {:.1f}", route.places[0].x, route.places[0].y);
  for (std::size_t i = 1; i < route.places.size(); ++i) {
    const Place &from = route.places[i - 1], &to = route.places[i];
    const double bend = (to.y - from.y) / 2;
    fmt::format_to(std::back_inserter(path), "C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", from.x,
                   from.y + bend, to.x, to.y - bend, to.x, to.y);
  }
  drawing.add(R"(<path class="{}" d="{}"><title>{}</title></path>)", arrow_style(arrow), path,
              describe(diagram, arrow));
  draw_head(drawing, arrow, route.places.back().x, route.places.back().y, route.upwards ? 180 : 0);
}

void draw_loop(Drawing& drawing, const Diagram& diagram, const Arrow& arrow, double x, double y) {
  drawing.add(R"(<path class="{}" d="M{:.1f} {:.1f}c{} -6 {} 18 0 12"><title>{}</title></path>)",
              arrow_style(arrow), x, y - 6, kLoop, kLoop, describe(diagram, arrow));
  draw_head(drawing, arrow, x, y + 6, 90);
  if (arrow.cut) draw_cross(drawing, arrow, x + 0.75 * kLoop, y);
  draw_label(drawing, wrapped(arrow.label, kArrowLabel), "start", x + kLoop + (arrow.cut ? 4 : -2), y);
}

double label_width(const Canvas& canvas, const std::vector<std::string>& lines) {
  double widest = 0;
  for (const std::string& line : lines) widest = std::max(widest, 0.92 * text_width(canvas, line));
  return widest;
}

std::vector<LegendEntry> legend(const Diagram& diagram) {
  std::vector<LegendEntry> entries;
  std::set<std::size_t> kinds;
  std::set<int> levels;
  bool cut = false;
  for (const Arrow& arrow : diagram.arrows) kinds.insert(kind(arrow)), cut = cut || arrow.cut;
  for (const Diagram::Box& box : diagram.boxes)
    if (box.level >= 0) levels.insert(box.level);
  for (std::size_t k : kinds)
    entries.push_back({std::string(kKinds[k]), [k](Drawing& drawing, double x, double y) {
                         const Arrow arrow{0, 0, static_cast<Arrow::Kind>(k)};
                         drawing.add(R"(<path class="{}" d="M{:.1f} {:.1f}h20"/>)", arrow_style(arrow), x, y);
                         draw_head(drawing, arrow, x + 22, y, -90);
                       }});
  if (cut)
    entries.push_back({"cut: nothing flows", [](Drawing& drawing, double x, double y) {
                         const Arrow arrow{0, 0, Arrow::Kind::forward, true};
                         drawing.add(R"(<path class="{}" d="M{:.1f} {:.1f}h22"/>)", arrow_style(arrow), x, y);
                         draw_cross(drawing, arrow, x + 11, y);
                       }});
  for (int level : levels)
    entries.push_back({fmt::format("level {}", level), [level](Drawing& drawing, double x, double y) {
                         const double width = 5 * std::min(level + 1, kLevels) - 2;
                         draw_stripes(drawing, level, x + 22 - width, y - 7, 14);
                       }});
  return entries;
}

}  // namespace

Drawn draw(const Diagram& diagram, const Canvas& canvas) {
  check_arrows(diagram);
  Drawn drawn{.kind = "diagram", .title = diagram.title, .width = canvas.width};
  Drawing drawing;
  if (diagram.boxes.empty()) {
    drawing.text("name", "start", 0, 20, "no data to show");
    drawn.height = 36, drawn.elements = drawing.take();
    return drawn;
  }
  std::vector<BoxText> texts;
  std::vector<Node> nodes;
  for (const Diagram::Box& box : diagram.boxes) {
    texts.emplace_back(box, canvas);
    nodes.push_back({texts.back().width, texts.back().height});
  }
  std::vector<Edge> edges;
  for (const Arrow& arrow : diagram.arrows) {
    const auto from = static_cast<std::size_t>(arrow.from), to = static_cast<std::size_t>(arrow.to);
    const std::vector<std::string> lines = wrapped(arrow.label, kArrowLabel);
    const double width = label_width(canvas, lines);
    if (from == to) nodes[from].beside = std::max(nodes[from].beside, kLoop + width + 6);
    const double height = kLine * static_cast<double>(lines.size()) + (arrow.cut ? 16 : 0);
    edges.push_back(
        {from, to, std::max(width, arrow.cut ? 16.0 : 0.0), height, arrow.kind == Arrow::Kind::forward});
  }
  const Layout layout = layered_layout(nodes, edges);

  const double top = draw_legend(drawing, canvas, legend(diagram), 0) + 8;
  drawn.width = std::max(canvas.width, layout.width + 4);
  drawing.add(R"svg(<g transform="translate({:.1f} {:.1f})">)svg", (drawn.width - layout.width) / 2, top);
  for (std::size_t i = 0; i < edges.size(); ++i)
    if (edges[i].from != edges[i].to) draw_arrow(drawing, diagram, diagram.arrows[i], layout.routes[i]);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    draw_box(drawing, diagram.boxes[i], texts[i], layout.nodes[i]);
  std::vector<std::size_t> loops(nodes.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const Arrow& arrow = diagram.arrows[i];
    if (const std::size_t box = edges[i].from; box == edges[i].to) {
      const Place& middle = layout.nodes[box];
      draw_loop(drawing, diagram, arrow, middle.x + nodes[box].width / 2,
                middle.y + kRow * static_cast<double>(loops[box]++));
    } else if (const Route& route = layout.routes[i]; edges[i].label_width > 0) {
      const Place& at = route.places[route.label];
      const double shift = arrow.cut && !arrow.label.empty() ? 8 : 0;
      if (arrow.cut) draw_cross(drawing, arrow, at.x, at.y - shift);
      draw_label(drawing, wrapped(arrow.label, kArrowLabel), "middle", at.x, at.y + shift);
    }
  }
  drawing.add("</g>");
  drawn.height = top + layout.height + 4;
  drawn.elements = drawing.take();
  return drawn;
}

}  // namespace nestgrad::drawing
