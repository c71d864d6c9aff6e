#include "models/report.h"

#include <array>
#include <cstdint>

namespace nestgrad {

namespace {

constexpr std::string_view kPageStyle = R"(
:root{color-scheme:light dark;--page:#f4f4f1;--surface:#fcfcfb;--ink:#1c1c1a;--soft:#5c5b57;--grid:#e4e3df}
@media(prefers-color-scheme:dark){:root{--page:#0f0f0e;--surface:#1a1a19;--ink:#f2f1ed;--soft:#b5b4ad;--grid:#32322f}}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:50rem;background:var(--page);color:var(--ink);line-height:1.55;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.75rem;line-height:1.2;margin:0}h2{font-size:1.25rem;margin:2.5rem 0 .5rem}
.subtitle{color:var(--soft);margin:.4rem 0 1.5rem}p{margin:.5rem 0 1rem}
table{border-collapse:collapse;width:100%;font-size:.9375rem}
th,td{text-align:left;vertical-align:top;padding:.375rem 1rem .375rem 0;border-bottom:1px solid var(--grid)}
th{font-weight:400;color:var(--soft);width:30%}td{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
svg,pre{box-sizing:border-box;display:block;width:100%;margin:1rem 0;border:1px solid var(--grid);border-radius:8px}
svg{height:auto}pre{background:var(--surface);padding:1rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;
font:.8125rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media print{svg,pre,tr{break-inside:avoid}}
)";

// Bytes of the UTF-8 character at the front of text, 0 when there is none that XML may hold.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : first == '\n' || first == '\t' ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool forbidden = (code >= 0x80 && code < 0xa0) || (code & 0xfffe) == 0xfffe || code > 0x10ffff;
  return code < kSmallest[length] || surrogate || forbidden ? 0 : length;
}

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

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text.substr(i));
    if (length == 0) out += "\xef\xbf\xbd";
    else if (text[i] == '&') out += "&amp;";
    else if (text[i] == '<') out += "&lt;";
    else if (text[i] == '>') out += "&gt;";
    else if (text[i] == '"') out += "&quot;";
    else out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string html_report(std::string_view title, std::string_view subtitle,
                        const std::vector<std::pair<std::string, std::string>>& facts,
                        const std::vector<ReportSection>& sections) {
  const std::string heading = escape_xml(title);
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  page += "<title>" + heading + "</title>\n<style>" + std::string(kPageStyle) + "</style>\n</head>\n<body>\n";
  page += "<h1>" + heading + "</h1>\n";
  if (!subtitle.empty()) page += "<p class=\"subtitle\">" + escape_xml(subtitle) + "</p>\n";
  if (!facts.empty()) {
    page += "<table>\n";
    for (const auto& [key, value] : facts)
      page += "<tr><th scope=\"row\">" + escape_xml(key) + "</th><td>" + escape_xml(value) + "</td></tr>\n";
    page += "</table>\n";
  }
  for (const ReportSection& section : sections) {
    page += "<section>\n<h2>" + escape_xml(section.heading) + "</h2>\n" + paragraphs(section.prose);
    for (const Chart& chart : section.charts) page += svg(chart);
    if (!section.preformatted.empty()) page += "<pre>\n" + escape_xml(section.preformatted) + "</pre>\n";
    page += "</section>\n";
  }
  return page + "</body>\n</html>\n";
}

}  // namespace nestgrad
