// Files of images, made by hand: for tests and campaigns.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nestgrad::testing {

inline std::string big_endian(std::uint32_t number) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift);
  return out;
}

// As gzip packs it.
inline std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// An idx file: numbers of this type and these extents.
inline std::string idx_with(char type, const std::vector<std::uint32_t>& shape, const std::string& numbers) {
  std::string out{0, 0, type, static_cast<char>(shape.size())};
  for (const std::uint32_t extent : shape) out += big_endian(extent);
  return out + numbers;
}
inline std::string small_idx() { return idx_with(8, {2, 3}, std::string("\0\1\2\3\4\xff", 6)); }

inline std::string png_chunk(const std::string& name, const std::string& data) {
  const std::string body = name + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(sum));
}

// A PNG file of its parts. rows: the bytes of each, before which stands the filter's (0: none). colour: 0 grey, 2
// colour, 3 palette, 4 grey and alpha, 6 colour and alpha. chunks: what stands between header and data, as PLTE.
inline std::string png_with(std::uint32_t width, std::uint32_t height, char bits, char colour,
                            const std::string& rows,
                            const std::vector<std::pair<std::string, std::string>>& chunks = {}) {
  std::string packed(compressBound(static_cast<uLong>(rows.size())), '\0');
  uLongf size = static_cast<uLongf>(packed.size());
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
           static_cast<uLong>(rows.size()));
  packed.resize(size);
  std::string out = "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", big_endian(width) + big_endian(height) +
                                                                std::string{bits, colour, 0, 0, 0});
  for (const auto& [name, data] : chunks) out += png_chunk(name, data);
  return out + png_chunk("IDAT", packed) + png_chunk("IEND", "");
}
// 10 x 2 pixels: 1010101010, 1111111111.
inline std::string one_bit_png() { return png_with(10, 2, 1, 0, std::string("\0\xaa\x80\0\xff\xc0", 6)); }

}  // namespace nestgrad::testing
