// The page. It is well-formed XML too, so that any XML reader can check it.
#include "look/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "look/report/drawing.h"
#include "look/report/page_style.h"

namespace nestgrad {

namespace {

using drawing::Drawn;

std::string paragraphs(std::string_view prose) {
  std::string out;
  while (!prose.empty()) {
    const std::size_t end = prose.find("\n\n");
    if (const std::string_view paragraph = prose.substr(0, end); !paragraph.empty())
      out += "<p>" + escape_xml(paragraph) + "</p>\n";
    prose.remove_prefix(end == std::string_view::npos ? prose.size() : end + 2);
  }
  return out;
}

// --- Pictures

std::string caption(std::string_view title) {
  return title.empty() ? "" : "<figcaption>" + escape_xml(title) + "</figcaption>\n";
}

std::string figure(const Drawn& drawn) {
  constexpr double kSmallestScale = 0.64;  // what is wider than that scrolls
  const bool wide = drawn.width > drawing::kPage.width;
  std::string out = fmt::format("<figure class=\"{}\">\n{}", wide ? "wide" : "plot", caption(drawn.title));
  if (wide)
    out += fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">",
                       escape_xml(drawn.title.empty() ? drawn.kind : drawn.title));
  out += fmt::format("<svg class=\"picture\" role=\"img\" viewBox=\"0 0 {:.0f} {:.0f}\"",
                     std::ceil(drawn.width), std::ceil(drawn.height));
  if (wide)
    out += fmt::format(" style=\"min-width:{:.0f}px;max-width:{:.0f}px\"", kSmallestScale * drawn.width,
                       1.1 * drawn.width);
  out += fmt::format("><title>{}</title>\n{}</svg>{}\n",
                     escape_xml(drawn.title.empty() ? drawn.kind : drawn.title), drawn.elements,
                     wide ? "</div>" : "");
  for (const std::string& note : drawn.notes) out += "<p class=\"note\">" + escape_xml(note) + "</p>\n";
  return out + "</figure>\n";
}

// What format_number writes, or a plain number; "-", "–" and nothing stand for a number that is not there.
bool numeric(std::string_view cell) {
  return cell == "NaN" || cell.ends_with("\xe2\x88\x9e") || cell == "\xe2\x80\x93" ||
         cell.find_first_not_of("0123456789.,+-e%") == std::string_view::npos;
}

std::string figure(const Table& table) {
  constexpr std::size_t kNarrow = 3;  // columns
  for (const auto& row : table.rows)
    if (row.size() != table.columns.size())
      throw ValueError(fmt::format("[html_report] a row of table '{}' has {} cells for {} columns",
                                   table.title, row.size(), table.columns.size()));
  std::vector<std::string_view> style;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const bool numbers = std::ranges::all_of(table.rows, [&](const auto& row) { return numeric(row[c]); });
    style.push_back(numbers && !table.rows.empty() ? " class=\"num\"" : "");
  }
  const bool wide = table.columns.size() > kNarrow;
  std::string out = fmt::format("<figure class=\"{}\">\n{}", wide ? "wide" : "table", caption(table.title));
  out += fmt::format(
      "<div class=\"scroll\"{}><table>\n<thead><tr>",
      wide ? fmt::format(" tabindex=\"0\" role=\"region\" aria-label=\"{}\"", escape_xml(table.title)) : "");
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    out += fmt::format("<th scope=\"col\"{}>{}</th>", style[c], escape_xml(table.columns[c]));
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      out += fmt::format("<td{}>{}</td>", style[c], escape_xml(row[c]));
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n</figure>\n";
}

std::string node(const Tree& tree, int depth) {
  std::string line;
  if (tree.level >= 0)
    line +=
        fmt::format("<span class=\"level v{}\">level {}</span>", tree.level % drawing::kLevels, tree.level);
  line += "<span>" + escape_xml(tree.label) + "</span>";
  if (!tree.detail.empty()) line += "<span class=\"detail\">" + escape_xml(tree.detail) + "</span>";
  if (tree.children.empty()) return "<div class=\"node leaf\">" + line + "</div>\n";
  std::string out = fmt::format("<details class=\"node\"{}><summary>{}</summary>\n<div class=\"children\">\n",
                                depth == 0 ? " open=\"\"" : "", line);
  for (const Tree& child : tree.children) out += node(child, depth + 1);
  return out + "</div></details>\n";
}

std::string figure(const Tree& tree) { return "<figure class=\"tree\">\n" + node(tree, 0) + "</figure>\n"; }

std::string figure(const Picture& picture) {
  return std::visit(
      [](const auto& p) {
        using Kind = std::decay_t<decltype(p)>;
        if constexpr (std::is_same_v<Kind, Table> || std::is_same_v<Kind, Tree>) return figure(p);
        else if constexpr (std::is_same_v<Kind, Images>) return drawing::figure(p);
        else return figure(drawing::draw(p, drawing::kPage));
      },
      picture);
}

// --- Claims

std::string mark(bool holds) { return holds ? "\xe2\x9c\x93" : "\xe2\x9c\x97"; }  // check mark, cross

std::string state(const std::vector<Claim>& claims) {
  if (claims.empty()) return "<span class=\"state none\">no invariant</span>";
  const auto failed = std::ranges::count_if(claims, [](const Claim& claim) { return !claim.holds(); });
  std::string words;
  if (claims.size() == 1) words = failed ? "fails" : "holds";
  else if (failed) words = fmt::format("{} of {} fail", failed, claims.size());
  else words = fmt::format("all {} hold", claims.size());
  return fmt::format("<span class=\"state {}\">{} {}</span>", failed ? "fails" : "holds", mark(failed == 0),
                     words);
}

// The one that is nearest to its tolerance, or furthest beyond it.
const Claim& tightest(const std::vector<Claim>& claims) {
  const auto share = [](const Claim& claim) {
    if (claim.holds()) return claim.error > 0 ? claim.error / claim.tolerance : 0.0;
    return std::isnan(claim.error) || !(claim.tolerance > 0) ? INFINITY : claim.error / claim.tolerance;
  };
  return *std::ranges::max_element(claims, {}, share);
}

std::string numbers(const Claim& claim) {
  return fmt::format("<td class=\"num\">{}</td><td class=\"num\">{} <span class=\"unit\">{}</span></td>",
                     format_number(claim.error), format_number(claim.tolerance), escape_xml(claim.unit));
}

std::string claims_table(const std::vector<Claim>& claims) {
  if (claims.empty()) return "";
  std::string out =
      "<table class=\"checks\">\n<thead><tr><th scope=\"col\">Invariant</th><th scope=\"col\"></th>"
      "<th scope=\"col\" class=\"num\">error</th><th scope=\"col\" "
      "class=\"num\">tolerance</th></tr></thead>\n<tbody>\n";
  for (const Claim& claim : claims)
    out += fmt::format("<tr{}><th scope=\"row\">{}</th><td>{}</td>{}</tr>\n",
                       claim.holds() ? "" : " class=\"failing\"", escape_xml(claim.claim), state({claim}),
                       numbers(claim));
  return out + "</tbody>\n</table>\n";
}

std::string verdict(const std::vector<ReportView>& views) {
  std::size_t total = 0, failed = 0;
  for (const ReportView& view : views)
    for (const Claim& claim : view.claims) ++total, failed += !claim.holds();
  if (total == 0) return "";
  if (failed == 0)
    return fmt::format("<p class=\"verdict\"><span class=\"holds\">{} {}</span></p>\n", mark(true),
                       total == 1 ? "The one invariant holds" : fmt::format("All {} invariants hold", total));
  return fmt::format("<p class=\"verdict\"><span class=\"fails\">{} {} of {} invariants {}</span></p>\n",
                     mark(false), failed, total, failed == 1 ? "fails" : "fail");
}

// --- Views

void check_ids(const std::vector<ReportView>& views) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  std::set<std::string_view> seen;
  for (const ReportView& view : views) {
    if (view.id.empty() || view.id.find_first_not_of(kAllowed) != std::string::npos)
      throw ValueError(fmt::format(
          "[html_report] '{}' cannot be the id of view '{}'; need letters, digits, '-', '_' and '.'", view.id,
          view.title));
    if (!seen.insert(view.id).second)
      throw ValueError(fmt::format("[html_report] two views have the id '{}'", view.id));
  }
}

std::string contents(const std::vector<ReportView>& views) {
  const bool checked =
      std::ranges::any_of(views, [](const ReportView& view) { return !view.claims.empty(); });
  std::string out = "<nav aria-label=\"Views\">\n<table>\n<thead><tr><th scope=\"col\">View</th>";
  if (checked)
    out +=
        "<th scope=\"col\">Invariants</th><th scope=\"col\" class=\"num\">error</th>"
        "<th scope=\"col\" class=\"num\">tolerance</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const ReportView& view : views) {
    out += fmt::format("<tr><td><a href=\"#{}\">{}</a>", view.id, escape_xml(view.title));
    if (!view.question.empty())
      out += fmt::format("<div class=\"about\">{}</div>", escape_xml(view.question));
    out += "</td>";
    if (checked)
      out += fmt::format("<td>{}</td>{}", state(view.claims),
                         view.claims.empty() ? "<td></td><td></td>" : numbers(tightest(view.claims)));
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table>\n</nav>\n";
}

std::string section(const ReportView& view) {
  std::string pictures;
  for (const Picture& picture : view.pictures) pictures += figure(picture);
  // A single picture that is not wide stands beside the text where there is room.
  const bool one = view.pictures.size() == 1 && !pictures.starts_with("<figure class=\"wide\"");
  std::string out = fmt::format(
      "<details class=\"view\" id=\"{}\"{}>\n<summary><h2>{}</h2>{}</summary>\n<div "
      "class=\"body{}\">\n<div>\n",
      view.id, view.open ? " open=\"\"" : "", escape_xml(view.title),
      view.claims.empty() ? "" : state(view.claims), one ? " one" : "");
  if (!view.question.empty()) out += "<p class=\"question\">" + escape_xml(view.question) + "</p>\n";
  if (!view.reading.empty()) out += "<div class=\"reading\">\n" + paragraphs(view.reading) + "</div>\n";
  out += claims_table(view.claims) + "</div>\n";
  if (!pictures.empty()) out += "<div class=\"pictures\">\n" + pictures + "</div>\n";
  if (!view.preformatted.empty()) out += "<pre>\n" + escape_xml(view.preformatted) + "</pre>\n";
  return out + "</div>\n</details>\n";
}

bool has_heatmap(const std::vector<ReportView>& views) {
  return std::ranges::any_of(views, [](const ReportView& view) {
    return std::ranges::any_of(view.pictures,
                               [](const Picture& p) { return std::holds_alternative<Heatmap>(p); });
  });
}

}  // namespace

std::string html_report(std::string_view title, std::string_view subtitle,
                        const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<ReportView>& views) {
  check_ids(views);
  const std::string heading = escape_xml(title);
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n";
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  page += "<title>" + heading + "</title>\n<style>" + drawing::picture_style(has_heatmap(views)) +
          drawing::page_style() + "</style>\n</head>\n<body>\n";
  page += "<header>\n<h1>" + heading + "</h1>\n";
  if (!subtitle.empty()) page += "<p class=\"subtitle\">" + escape_xml(subtitle) + "</p>\n";
  page += verdict(views);
  if (!facts.empty()) {
    page += "<dl class=\"facts\">\n";
    for (const auto& [key, value] : facts)
      page += "<div><dt>" + escape_xml(key) + "</dt><dd>" + escape_xml(value) + "</dd></div>\n";
    page += "</dl>\n";
  }
  page += "</header>\n";
  if (!views.empty()) {
    page += contents(views);
    page +=
        "<div class=\"controls\" hidden=\"\"><button type=\"button\" value=\"open\">Expand all</button>"
        "<button type=\"button\" value=\"shut\">Collapse all</button></div>\n";
  }
  page += "<main>\n";
  for (const ReportView& view : views) page += section(view);
  return page + "</main>\n<script>" + drawing::page_script() + "</script>\n</body>\n</html>\n";
}

}  // namespace nestgrad
