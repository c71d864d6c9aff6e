// Text and numbers.
#include <array>

#include "look/report/drawing.h"

namespace nestgrad {

namespace {

// Bytes of the UTF-8 character at the front of text, 0 when there is none that XML may hold, or one that would turn the order of the
// characters behind it.
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
  const bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return code < kSmallest[length] || surrogate || forbidden || turns ? 0 : length;
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

std::string format_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-\xe2\x88\x9e" : "\xe2\x88\x9e";
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size == std::floor(size) && size < 99999.5) return fmt::format("{:.0f}", value);
  if (size < 9.995e-4 || size >= 99999.5) {
    const std::string text = fmt::format("{:.2e}", value);  // 1.23e-07
    const std::size_t at = text.find('e');
    return fmt::format("{}e{}", text.substr(0, at), std::stoi(text.substr(at + 1)));
  }
  return fmt::format("{:.{}f}", value,
                     size < 9.995e-3   ? 5
                     : size < 9.995e-2 ? 4
                     : size < 0.9995   ? 3
                     : size < 9.995    ? 2
                     : size < 99.95    ? 1
                                       : 0);
}

}  // namespace nestgrad
