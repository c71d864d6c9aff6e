// libpng reports errors by longjmp. It passes by functions of libpng and of this file that own nothing: read_header,
// read_rows and the callbacks, whose variables need no destructor. Who owns something calls these.
#include "engine/io/png.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/core/index.h"
#include "engine/io/file.h"

namespace nestgrad {

namespace {

constexpr std::size_t kSignature = 8;  // bytes
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 24;
constexpr std::uint64_t kMostDeflated = 1032;  // bytes that one of deflate's can become

// What libpng's callbacks are given.
struct Source {
  const std::byte* bytes;
  std::size_t size, at;
  bool is_truncated;
  char problem[160];
};

struct Layout {
  std::uint64_t width, height;
  std::size_t row_bytes, packed_row_bytes;  // of a row as it is handed out, and as it is in the file
  int channels, bits;  // as handed out: 1 to 4 channels, the last of 2 or 4 is alpha; 8 or 16 bits
  // Where pixels are numbers of colours, one byte each; libpng's.
  const png_color* palette;
  const png_byte* alphas;  // of the first `transparent` colours
  int colours, transparent;
};

[[noreturn]] void on_error(png_structp png, png_const_charp problem) {
  auto* source = static_cast<Source*>(png_get_error_ptr(png));
  std::strncpy(source->problem, problem, sizeof source->problem - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, std::size_t n) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (n > source->size - source->at) {
    source->is_truncated = true;
    png_error(png, "truncated");
  }
  std::memcpy(to, source->bytes + source->at, n);
  source->at += n;
}

// Asks for what Layout describes. False: source.problem says why not.
bool read_header(png_structp png, png_infop info, Layout* layout) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(png, info);
  layout->width = png_get_image_width(png, info);
  layout->height = png_get_image_height(png, info);
  if (layout->width * layout->height > kMostPixels) return true;  // refused before there is memory for a row
  layout->packed_row_bytes = png_get_rowbytes(png, info);
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) {
    png_colorp palette = nullptr;
    png_bytep alphas = nullptr;
    png_get_PLTE(png, info, &palette, &layout->colours);
    png_get_tRNS(png, info, &alphas, &layout->transparent, nullptr);
    layout->palette = palette, layout->alphas = alphas;
    png_set_packing(png);
  } else {
    png_set_expand(png);
  }
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  layout->row_bytes = png_get_rowbytes(png, info);
  layout->channels = png_get_channels(png, info);
  layout->bits = png_get_bit_depth(png, info);
  return true;
}

bool read_rows(png_structp png, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what)
      : what_(what), source_{bytes.data(), bytes.size(), 0, false, {}} {}
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Array read() {
    if (source_.size < kSignature ||
        png_sig_cmp(reinterpret_cast<png_const_bytep>(source_.bytes), 0, kSignature) != 0)
      fail("the file does not begin with \\x89PNG; is this a PNG file?");
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source_, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr)
      fail("libpng has no memory, or another version than its headers; install libpng-dev again");
    png_set_read_fn(png_, &source_, on_read);
    Layout layout{};
    if (!read_header(png_, info_, &layout)) fail_as_libpng_says();
    check_size(layout);

    std::vector<png_byte> samples(layout.row_bytes * layout.height);
    std::vector<png_bytep> rows;
    for (std::size_t y = 0; y < layout.height; ++y) rows.push_back(samples.data() + y * layout.row_bytes);
    if (!read_rows(png_, rows.data())) fail_as_libpng_says();
    if (layout.palette != nullptr) samples = coloured(layout, samples);
    return layout.bits == 16 ? numbers<2>(layout, samples.data()) : numbers<1>(layout, samples.data());
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> problem, Args&&... args) const {
    throw IoError(
        fmt::format("[png] {}: {}", printable(what_), fmt::format(problem, std::forward<Args>(args)...)));
  }
  [[noreturn]] void fail_as_libpng_says() const {
    if (source_.is_truncated) fail("the file is truncated: it ends at byte {}; copy it again", source_.size);
    fail("the file is damaged near byte {}: {}; copy it again", source_.at, printable(source_.problem));
  }

  void check_size(const Layout& layout) const {
    const std::uint64_t pixels = layout.width * layout.height;  // both are below 2^31
    if (pixels > kMostPixels)
      fail("{} x {} pixels are more than the {} that are read; make it smaller", layout.width, layout.height,
           kMostPixels);
    if (layout.height * layout.packed_row_bytes > kMostDeflated * source_.size)
      fail("{} x {} pixels cannot be in {} bytes; the file is damaged, copy it again", layout.width,
           layout.height, source_.size);
  }

  // The colours of a palette instead of their numbers. (libpng makes black of a number that the palette does not have.)
  std::vector<png_byte> coloured(Layout& layout, const std::vector<png_byte>& indices) const {
    const bool alpha = layout.transparent > 0;
    layout.channels = alpha ? 4 : 3;
    std::vector<png_byte> out;
    out.reserve(indices.size() * uz(layout.channels));
    for (const int index : indices) {
      if (index >= layout.colours)
        fail("a pixel has colour {} of a palette of {}, counted from 0; the file is damaged, copy it again",
             index, layout.colours);
      const png_color& c = layout.palette[index];
      out.insert(out.end(), {c.red, c.green, c.blue});
      if (alpha) out.push_back(index < layout.transparent ? layout.alphas[index] : png_byte{255});
    }
    return out;
  }

  // Of samples of so many bytes, the most significant first.
  template <int kBytes>
  static Array numbers(const Layout& layout, const png_byte* samples) {
    constexpr float kMost = kBytes == 1 ? 255.0f : 65535.0f;
    const auto next = [&samples] {
      unsigned value = 0;
      for (int i = 0; i < kBytes; ++i) value = value << 8 | *samples++;
      return static_cast<float>(value) / kMost;
    };
    const bool alpha = layout.channels % 2 == 0;
    const int channels = layout.channels - alpha;
    Array out(DType::f32,
              {static_cast<std::int64_t>(layout.height), static_cast<std::int64_t>(layout.width), channels});
    float* to = out.as<float>().data();
    for (std::uint64_t pixel = 0; pixel < layout.width * layout.height; ++pixel, to += channels) {
      for (int c = 0; c < channels; ++c) to[c] = next();
      if (!alpha) continue;
      const float cover = next();
      for (int c = 0; c < channels; ++c) to[c] *= cover;
    }
    return out;
  }

  const std::string& what_;
  Source source_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

Array parse_png(std::span<const std::byte> bytes, const std::string& what) {
  return Reader(bytes, what).read();
}

Array read_png(const std::string& path) {
  const std::string bytes = read_file(path);
  return parse_png(std::as_bytes(std::span(bytes)), path);
}

std::string format_png(const Array& image) {
  const Shape& shape = image.shape();
  if (image.dtype() != DType::f32)
    throw DTypeError(fmt::format("[format_png] the image is {}; cast it to f32", to_string(image.spec())));
  if (shape.size() != 3 || (shape[2] != 1 && shape[2] != 3) || image.size() == 0 ||
      static_cast<std::uint64_t>(shape[0] * shape[1]) > kMostPixels)
    throw ShapeError(
        fmt::format("[format_png] the image is {}; need [height, width, 1 or 3] with 1 to {} pixels",
                    to_string(image.spec()), kMostPixels));
  std::vector<png_byte> samples;
  samples.reserve(uz(image.size()));
  for (const float value : image.as<float>()) {
    if (std::isnan(value))
      throw ValueError(
          fmt::format("[format_png] the number at index {} is NaN; it has no colour", samples.size()));
    samples.push_back(static_cast<png_byte>(std::floor(std::clamp(value, 0.0f, 1.0f) * 255.0f + 0.5f)));
  }
  // This part of libpng returns errors.
  png_image out{};
  out.version = PNG_IMAGE_VERSION;
  out.height = static_cast<png_uint_32>(shape[0]);
  out.width = static_cast<png_uint_32>(shape[1]);
  out.format = shape[2] == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(out);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&out, bytes.data(), &size, 0, samples.data(), 0, nullptr) == 0)
    throw IoError(fmt::format("[format_png] libpng cannot write a picture of {}: {}; make it smaller",
                              to_string(shape), printable(out.message)));
  bytes.resize(size);
  return bytes;
}

}  // namespace nestgrad
