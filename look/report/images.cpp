// Images of a page, as PNG inside of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/index.h"
#include "engine/io/png.h"
#include "look/report/drawing.h"

namespace nestgrad::drawing {

namespace {

constexpr std::int64_t kTile = 96;  // pixels of the screen, about
constexpr std::int64_t kSmallestTile = 40;
constexpr int kGap = 8;  // as in the style sheet

// What of all tiles is not as it was given.
struct Odd {
  std::size_t not_finite = 0, beyond = 0, total = 0;
};

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const unsigned three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (const unsigned shift : {18u, 12u, 6u, 0u}) out += kDigits[three >> shift & 63];
  }
  if (bytes.size() % 3 != 0)
    out.replace(out.size() - (3 - bytes.size() % 3), std::string::npos, 3 - bytes.size() % 3, '=');
  return out;
}

std::string png_of(const Array& image, Odd& odd) {
  Array shown = image.to(Device::cpu()).clone();
  for (float& v : shown.as<float>()) {
    ++odd.total;
    if (!std::isfinite(v)) ++odd.not_finite, v = 0;
    else if (v < 0 || v > 1) ++odd.beyond;
  }
  return base64(format_png(shown));
}

std::int64_t scale_of(const Images& images) {
  if (images.scale > 0) return images.scale;
  std::int64_t widest = 1;
  for (const Images::Tile& tile : images.tiles) widest = std::max(widest, tile.image.shape()[1]);
  return std::max<std::int64_t>((kTile + widest / 2) / widest, 1);
}

// In words, for those who do not see it.
std::string words_of(const Images& images, std::size_t index) {
  const Images::Tile& tile = images.tiles[index];
  std::string out = images.title.empty() ? "image" : images.title;
  if (!images.row_names.empty()) out += ", " + images.row_names[index / uz(images.columns)];
  out +=
      tile.caption.empty() ? fmt::format(", {} of {}", index + 1, images.tiles.size()) : ": " + tile.caption;
  return tile.marked.empty() ? out : fmt::format("{} ({})", out, tile.marked);
}

std::string tile_of(const Images& images, std::size_t index, std::int64_t scale, Odd& odd) {
  const Images::Tile& tile = images.tiles[index];
  const std::int64_t height = scale * tile.image.shape()[0], width = scale * tile.image.shape()[1];
  std::string out = fmt::format(
      "<div class=\"tile{}{}\" style=\"width:{}px\"><img alt=\"{}\" width=\"{}\" height=\"{}\" "
      "src=\"data:image/png;base64,{}\"/>",
      tile.marked.empty() ? "" : " ", tile.marked, std::max(width, kSmallestTile),
      escape_xml(words_of(images, index)), width, height, png_of(tile.image, odd));
  if (tile.marked == "good") out += "<span class=\"holds\">\xe2\x9c\x93</span> ";
  if (tile.marked == "bad") out += "<span class=\"fails\">\xe2\x9c\x97</span> ";
  if (!tile.caption.empty()) out += "<span>" + escape_xml(tile.caption) + "</span>";
  return out + "</div>\n";
}

// Tiles begin to end, side by side.
std::string tiles_of(const Images& images, std::size_t begin, std::size_t end, std::int64_t scale, Odd& odd) {
  std::int64_t widest = kSmallestTile;
  for (const Images::Tile& tile : images.tiles) widest = std::max(widest, scale * tile.image.shape()[1]);
  std::string out = "<div class=\"tiles\"";
  if (images.columns > 0) out += fmt::format(" style=\"max-width:{}px\"", images.columns * (widest + kGap));
  out += ">\n";
  for (std::size_t i = begin; i < end; ++i) out += tile_of(images, i, scale, odd);
  return out + "</div>\n";
}

void check(const Images& images) {
  if (images.columns < 0 || images.scale < 0)
    throw ValueError(
        fmt::format("[html_report] images '{}' have {} columns and the scale {}; neither can be negative",
                    images.title, images.columns, images.scale));
  for (const Images::Tile& tile : images.tiles) {
    if (tile.image.shape().size() != 3)
      throw ValueError(fmt::format("[html_report] images '{}' have a tile {}; need [height, width, 1 or 3]",
                                   images.title, to_string(tile.image.spec())));
    if (!tile.marked.empty() && tile.marked != "good" && tile.marked != "bad")
      throw ValueError(
          fmt::format("[html_report] images '{}' have a tile marked '{}'; need good, bad or nothing",
                      images.title, tile.marked));
  }
  if (images.row_names.empty()) return;
  const std::size_t columns = uz(images.columns),
                    rows = columns == 0 ? 0 : (images.tiles.size() + columns - 1) / columns;
  if (rows != images.row_names.size())
    throw ValueError(fmt::format("[html_report] images '{}' have {} names for {} rows of {} columns",
                                 images.title, images.row_names.size(), rows, columns));
}

}  // namespace

std::string figure(const Images& images) {
  check(images);
  const std::int64_t scale = scale_of(images);
  const std::size_t columns = uz(images.columns), count = images.tiles.size();
  std::int64_t widest = 0;
  for (const Images::Tile& tile : images.tiles)
    widest = std::max(widest, scale * tile.image.shape()[1] + kGap);
  const auto beside = static_cast<std::int64_t>(columns == 0 ? count : std::min(columns, count));
  const bool wide = !images.row_names.empty() || static_cast<double>(beside * widest) > kPage.width;
  std::string out = fmt::format("<figure class=\"{}\">\n", wide ? "wide" : "plot");
  if (!images.title.empty()) out += "<figcaption>" + escape_xml(images.title) + "</figcaption>\n";

  Odd odd;
  if (images.row_names.empty()) out += tiles_of(images, 0, count, scale, odd);
  for (std::size_t row = 0; row < images.row_names.size(); ++row)
    out += fmt::format("<div class=\"tile-row\"><div class=\"row-name\">{}</div>\n{}</div>\n",
                       escape_xml(images.row_names[row]),
                       tiles_of(images, row * columns, std::min((row + 1) * columns, count), scale, odd));
  if (count == 0) out += "<p class=\"note\">There are no images to show.</p>\n";
  if (odd.not_finite > 0)
    out += fmt::format("<p class=\"note\">{} of {} values are not finite numbers and drawn as 0.</p>\n",
                       odd.not_finite, odd.total);
  if (odd.beyond > 0)
    out += fmt::format("<p class=\"note\">{} of {} values are below 0 or above 1 and drawn as these.</p>\n",
                       odd.beyond, odd.total);
  return out + "</figure>\n";
}

}  // namespace nestgrad::drawing
