#include "models/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/core/hash.h"
#include "engine/core/random.h"
#include "engine/io/file.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kEveryNthFile = 10;                   // of a folder validates
constexpr std::ptrdiff_t kTrainingTenths = 9;               // of one text trains
constexpr std::uint64_t kDataStream = 0x64617461ull << 32;  // "data": apart from streams that count from 0

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw IoError(
        fmt::format("[data] cannot open '{}'; check that it may be read", printable(path.string())));
  Bytes bytes;
  std::array<char, 1 << 16> chunk;
  while (in.read(chunk.data(), chunk.size()) || in.gcount() > 0)
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + in.gcount());
  if (in.bad()) throw IoError(fmt::format("[data] reading '{}' failed part way", printable(path.string())));
  return bytes;
}

bool is_binary(const Bytes& bytes) { return std::ranges::find(bytes, std::uint8_t{0}) != bytes.end(); }
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Relative paths in byte order: the order of a folder listing differs between file systems and locales.
std::vector<std::string> list_files(const fs::path& folder) {
  std::vector<std::string> files;
  try {
    // The iterator's default does not enter links to folders.
    for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
      if (is_hidden(it->path())) {
        it.disable_recursion_pending();
        continue;
      }
      std::error_code dangling_or_looping_link;
      if (it->is_regular_file(dangling_or_looping_link))
        files.push_back(it->path().lexically_relative(folder).generic_string());
    }
  } catch (const fs::filesystem_error& e) {
    throw IoError(
        fmt::format("[data] cannot list folder '{}': {}", printable(folder.string()), e.code().message()));
  }
  std::ranges::sort(files);
  return files;
}

// Texts joined by newlines, and where each begins.
struct Joined {
  Bytes bytes;
  std::vector<std::size_t> documents;

  void append(const Bytes& text) {
    if (!bytes.empty()) bytes.push_back('\n');
    documents.push_back(bytes.size());
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
};

// Where parts begin that empty lines divide.
std::vector<std::size_t> paragraphs_of(const Bytes& text) {
  std::vector<std::size_t> out;
  bool after_empty = true;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = static_cast<std::size_t>(
        std::find(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), '\n') - text.begin());
    const bool empty = end == begin || (end == begin + 1 && text[begin] == '\r');  // lines may end in \r\n
    if (!empty && after_empty) out.push_back(out.empty() ? 0 : begin);
    after_empty = empty;
  }
  if (out.empty()) out.push_back(0);
  return out;
}

ByteCorpus split_at_nine_tenths(const Bytes& text) {
  const auto cut = text.begin() + std::ssize(text) * kTrainingTenths / 10;
  return {Bytes(text.begin(), cut), Bytes(cut, text.end())};
}

ByteCorpus load_file(const fs::path& path) {
  const Bytes text = read_bytes(path);
  if (text.empty())
    throw IoError(fmt::format("[data] '{}' is empty; give a file with text", printable(path.string())));
  if (is_binary(text))
    throw IoError(fmt::format("[data] '{}' has NUL bytes, so it is not text; give a text file",
                              printable(path.string())));
  return split_at_nine_tenths(text);
}

ByteCorpus load_folder(const fs::path& folder) {
  std::vector<Bytes> texts;
  for (const std::string& file : list_files(folder)) {
    Bytes text = read_bytes(folder / file);
    if (!text.empty() && !is_binary(text)) texts.push_back(std::move(text));
  }
  if (texts.empty())
    throw IoError(
        fmt::format("[data] folder '{}' holds no text; give a folder with text files that are not hidden",
                    printable(folder.string())));
  Joined training, validation;
  const bool by_file = texts.size() >= kEveryNthFile;
  for (std::size_t i = 0; i < texts.size(); ++i)
    (by_file && i % kEveryNthFile == kEveryNthFile - 1 ? validation : training).append(texts[i]);
  if (!by_file) return split_at_nine_tenths(training.bytes);
  return {std::move(training.bytes), std::move(training.documents), std::move(validation.bytes),
          std::move(validation.documents)};
}

std::string_view name(Split split) { return split == Split::training ? "training" : "validation"; }

void require_window(std::span<const std::uint8_t> bytes, Split split, std::int64_t context) {
  if (context < 1) throw ConfigError(fmt::format("[data] context is {}; it must be at least 1", context));
  if (std::ssize(bytes) <= context)
    throw ConfigError(fmt::format(
        "[data] the {} part has {} bytes, but a window with context {} needs one more than that; give more "
        "text, or ask for shorter windows",
        name(split), bytes.size(), context));
}

struct BigramCounts {
  explicit BigramCounts(std::span<const std::uint8_t> text) : pairs(256 * 256), firsts(256), bytes(256) {
    total = static_cast<double>(text.size());
    for (std::uint8_t b : text) ++bytes[b];
    for (std::size_t i = 1; i < text.size(); ++i) {
      ++pairs[text[i - 1] * 256u + text[i]];
      ++firsts[text[i - 1]];
    }
  }

  // log p(b | a) with `removed` occurrences of the pair (a, b) taken out of the counts first.
  double log_probability(std::size_t a, std::size_t b, double k, double removed) const {
    const double unigram = (bytes[b] - removed + 1) / (total - removed + 256);
    return m::log((pairs[a * 256 + b] - removed + k * unigram) / (firsts[a] - removed + k));
  }

  double leave_one_out(double k) const {
    double sum = 0;
    for (std::size_t a = 0; a < 256; ++a)
      for (std::size_t b = 0; b < 256; ++b)
        if (const double n = pairs[a * 256 + b]; n > 0) sum += n * log_probability(a, b, k, 1);
    return sum;
  }

  double fit_k() const {
    double best_k = 1, best = -std::numeric_limits<double>::infinity();
    for (int exponent = -10; exponent <= 20; ++exponent) {
      const double k = std::ldexp(1.0, exponent), value = leave_one_out(k);
      if (value > best) best = value, best_k = k;
    }
    return best_k;
  }

  std::vector<double> pairs, firsts, bytes;
  double total;
};

}  // namespace

ByteCorpus::ByteCorpus(Bytes training, Bytes validation)
    : training_(std::make_shared<const Bytes>(std::move(training))),
      validation_(std::make_shared<const Bytes>(std::move(validation))),
      training_documents_(std::make_shared<const std::vector<std::size_t>>(paragraphs_of(*training_))),
      validation_documents_(std::make_shared<const std::vector<std::size_t>>(paragraphs_of(*validation_))) {
  check();
}

ByteCorpus::ByteCorpus(Bytes training, std::vector<std::size_t> training_documents, Bytes validation,
                       std::vector<std::size_t> validation_documents)
    : training_(std::make_shared<const Bytes>(std::move(training))),
      validation_(std::make_shared<const Bytes>(std::move(validation))),
      training_documents_(std::make_shared<const std::vector<std::size_t>>(std::move(training_documents))),
      validation_documents_(
          std::make_shared<const std::vector<std::size_t>>(std::move(validation_documents))) {
  check();
}

void ByteCorpus::check() const {
  for (Split split : {Split::training, Split::validation}) {
    if (bytes(split).size() > std::numeric_limits<std::uint32_t>::max())  // offsets are drawn in 32 bits
      throw ConfigError(
          fmt::format("[data] the {} part has {} bytes; at most 4 GiB can be used, give less text",
                      name(split), bytes(split).size()));
    const auto begins = documents(split);
    if (begins.empty() || begins[0] != 0 ||
        std::ranges::adjacent_find(begins, std::greater_equal()) != begins.end() ||
        (begins.size() > 1 && begins.back() >= bytes(split).size()))
      throw ConfigError(fmt::format(
          "[data] the documents of the {} part must begin at ascending bytes of it, the first at 0",
          name(split)));
  }
}

std::uint64_t ByteCorpus::fingerprint(bool with_documents) const {
  std::uint64_t hash = fnv1a(std::string_view());
  for (const Split split : {Split::training, Split::validation}) {
    const std::uint64_t size = bytes(split).size();
    hash = fnv1a(bytes(split), fnv1a(std::bit_cast<std::array<std::uint8_t, 8>>(size), hash));
    if (!with_documents) continue;
    for (const std::uint64_t begin : documents(split))
      hash = fnv1a(std::bit_cast<std::array<std::uint8_t, 8>>(begin), hash);
  }
  return hash;
}

ByteCorpus ByteCorpus::load(const fs::path& path, std::int64_t min_bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    throw IoError(fmt::format("[data] '{}' does not exist; give a text file or a folder of text files",
                              printable(path.string())));
  if (!fs::is_directory(status) && !fs::is_regular_file(status))
    throw IoError(fmt::format("[data] '{}' is a device or a pipe; give a text file or a folder of text files",
                              printable(path.string())));
  ByteCorpus corpus = fs::is_directory(status) ? load_folder(path) : load_file(path);
  for (Split split : {Split::training, Split::validation}) {
    const std::size_t size = corpus.bytes(split).size();
    if (std::cmp_less(size, min_bytes))
      throw ConfigError(
          fmt::format("[data] '{}': the {} part has {} bytes, but at least "
                      "{} are needed; give more text, or ask for shorter windows",
                      printable(path.string()), name(split), size, min_bytes));
  }
  return corpus;
}

Array ByteCorpus::batch(Split split, std::uint64_t step, std::int64_t batch, std::int64_t context,
                        std::uint64_t seed) const {
  const auto text = bytes(split);
  require_window(text, split, context);
  const auto offsets = static_cast<std::uint32_t>(std::ssize(text) - context);
  Array windows(DType::i32, {batch, context + 1});
  auto out = windows.as<std::int32_t>().begin();
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::uint32_t offset =
        random_below(offsets, seed, kDataStream + step, static_cast<std::uint64_t>(row));
    out = std::ranges::copy(text.subspan(offset, static_cast<std::size_t>(context) + 1), out).out;
  }
  return windows;
}

Array ByteCorpus::validation_windows(std::int64_t context, std::int64_t max_windows) const {
  const auto text = bytes(Split::validation);
  require_window(text, Split::validation, context);
  if (max_windows < 1)
    throw ConfigError(fmt::format("[data] max_windows is {}; it must be at least 1", max_windows));
  const std::int64_t n = std::min(max_windows, std::ssize(text) / (context + 1));
  Array windows(DType::i32, {n, context + 1});
  auto out = windows.as<std::int32_t>().begin();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto offset = static_cast<std::size_t>(i * std::ssize(text) / n);
    out = std::ranges::copy(text.subspan(offset, static_cast<std::size_t>(context) + 1), out).out;
  }
  return windows;
}

double bigram_loss(std::span<const std::uint8_t> training, const Array& windows, const Array& counted) {
  if (training.size() < 2)
    throw ConfigError(
        fmt::format("[bigram_loss] the training text has {} bytes; at least 2 are needed", training.size()));
  const Shape& shape = windows.shape();
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 2)
    throw ShapeError(
        fmt::format("[bigram_loss] windows is {}; need i32 [n, context+1]", to_string(windows.spec())));
  if (counted.defined() && counted.shape() != Shape{shape[0], shape[1] - 1})
    throw ShapeError(fmt::format("[bigram_loss] counted is {}; need {}", to_string(counted.spec()),
                                 to_string(Shape{shape[0], shape[1] - 1})));
  const auto values = windows.as<std::int32_t>();
  if (std::ranges::any_of(values, [](std::int32_t v) { return v < 0 || v > 255; }))
    throw ValueError("[bigram_loss] windows holds a value that is not a byte; need 0 to 255");

  const BigramCounts counts(training);
  const double k = counts.fit_k();
  double sum = 0;
  std::size_t scored = 0;
  const auto rows = static_cast<std::size_t>(shape[0]), columns = static_cast<std::size_t>(shape[1]);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t t = 1; t < columns; ++t) {
      if (counted.defined() && counted.at(static_cast<std::int64_t>(row * (columns - 1) + t - 1)) == 0)
        continue;
      ++scored;
      const auto previous = static_cast<std::size_t>(values[row * columns + t - 1]);
      sum -= counts.log_probability(previous, static_cast<std::size_t>(values[row * columns + t]), k, 0);
    }
  if (scored == 0) throw ValueError("[bigram_loss] counted names no token, and so there is no mean loss");
  return sum / static_cast<double>(scored);
}

}  // namespace nestgrad
