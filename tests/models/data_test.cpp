#include "models/data.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/core/error.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;
namespace fs = std::filesystem;

namespace {

struct ScratchFolder : TemporaryFolder {
  fs::path write(const fs::path& file, std::string_view text) const {
    fs::create_directories((path / file).parent_path());
    std::ofstream(path / file, std::ios::binary) << text;
    return path / file;
  }
};

std::vector<std::uint8_t> as_bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const ByteCorpus& corpus, Split split) {
  const auto bytes = corpus.bytes(split);
  return {bytes.begin(), bytes.end()};
}

// Bytes 0, 1, 2, ... 255, 0, ...: a window shows where it was taken.
std::vector<std::uint8_t> counting(std::size_t n) {
  std::vector<std::uint8_t> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return bytes;
}

}  // namespace

TEST_CASE("a single file trains on its first nine tenths and validates on the rest") {
  const ScratchFolder scratch;
  const ByteCorpus corpus = ByteCorpus::load(scratch.write("text.txt", "abcdefghijklmnopqrst"), 2);
  CHECK(text_of(corpus, Split::training) == "abcdefghijklmnopqr");
  CHECK(text_of(corpus, Split::validation) == "st");
}

TEST_CASE("a folder gives every tenth text file in path order to validation") {
  const ScratchFolder scratch;
  for (int i = 20; i-- > 0;)
    scratch.write(fmt::format("{}/{:02}.txt", i < 5 ? "a" : "b", i), fmt::format("file{:02}", i));
  const ByteCorpus corpus = ByteCorpus::load(scratch.path, 1);
  CHECK(text_of(corpus, Split::validation) == "file09\nfile19");
  CHECK(text_of(corpus, Split::training).starts_with("file00\nfile01\n"));
  CHECK(text_of(corpus, Split::training).find("file08\nfile10") != std::string::npos);
}

TEST_CASE("a folder of fewer than ten files is joined and split 90/10") {
  const ScratchFolder scratch;
  scratch.write("b.txt", "ghij\nlmnop");
  scratch.write("a.txt", "01234567");
  scratch.write("empty.txt", "");
  const ByteCorpus corpus = ByteCorpus::load(scratch.path, 1);
  CHECK(text_of(corpus, Split::training) == "01234567\nghij\nlmn");
  CHECK(text_of(corpus, Split::validation) == "op");
}

TEST_CASE("a folder skips binary files, hidden files and hidden folders") {
  using namespace std::string_view_literals;
  const ScratchFolder scratch;
  scratch.write("text.txt", "kept kept kept kept");
  scratch.write("image.bin", "not\0text"sv);
  scratch.write(".hidden", "hidden file");
  scratch.write(".git/config", "hidden folder");
  const ByteCorpus corpus = ByteCorpus::load(scratch.path, 1);
  CHECK(text_of(corpus, Split::training) + text_of(corpus, Split::validation) == "kept kept kept kept");
}

TEST_CASE("a folder survives links that loop and links that dangle") {
  const ScratchFolder scratch;
  scratch.write("inner/text.txt", "kept kept kept kept");
  fs::create_directory_symlink(scratch.path, scratch / "inner/up");
  fs::create_symlink(scratch / "itself", scratch / "itself");
  fs::create_symlink("nowhere", scratch / "dangling");
  const ByteCorpus corpus = ByteCorpus::load(scratch.path, 1);
  CHECK(text_of(corpus, Split::training) + text_of(corpus, Split::validation) == "kept kept kept kept");
}

TEST_CASE("text that cannot be used is refused with an error that says why") {
  using namespace std::string_view_literals;
  const ScratchFolder scratch;
  const auto message_of = [](const fs::path& path, std::int64_t min_bytes) -> std::string {
    try {
      ByteCorpus::load(path, min_bytes);
    } catch (const IoError& e) {
      return fmt::format("io: {}", e.what());
    } catch (const ConfigError& e) {
      return fmt::format("config: {}", e.what());
    }
    return "loaded";
  };
  const auto has = [](const std::string& message, std::string_view kind, std::string_view part) {
    CAPTURE(message);
    CHECK(message.starts_with(kind));
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  };
  has(message_of(scratch / "missing", 1), "io", "does not exist");
  has(message_of(scratch.path, 1), "io", "holds no text");
  has(message_of(scratch.write("empty.txt", ""), 1), "io", "is empty");
  has(message_of(scratch.write("image.bin", "a\0b"sv), 1), "io", "NUL");
  const fs::path small = scratch.write("small.txt", "0123456789");
  has(message_of(small, 2), "config", "the validation part has 1 bytes, but at least 2 are needed");
  CHECK(message_of(small, 1) == "loaded");
}

TEST_CASE("batch holds runs of the text, and every window that fits can be drawn") {
  const ByteCorpus corpus(counting(40), counting(40));
  const Array windows = corpus.batch(Split::training, 0, 2000, 7, 1);
  REQUIRE(windows.spec() == Spec{DType::i32, {2000, 8}});
  const auto values = windows.as<std::int32_t>();
  std::vector<int> seen(33);
  for (std::size_t row = 0; row < 2000; ++row) {
    const std::int32_t start = values[row * 8];
    REQUIRE(start <= 32);
    ++seen[static_cast<std::size_t>(start)];
    for (std::int32_t t = 0; t < 8; ++t) REQUIRE(values[row * 8 + static_cast<std::size_t>(t)] == start + t);
  }
  for (int count : seen) CHECK(count > 0);
}

TEST_CASE("batch depends only on seed, step and row") {
  const ByteCorpus corpus(counting(200), counting(200));
  const Array first = corpus.batch(Split::training, 5, 4, 3, 7);
  corpus.batch(Split::training, 6, 4, 3, 7);
  CHECK(corpus.batch(Split::training, 5, 4, 3, 7).same_bits(first));
  CHECK_FALSE(corpus.batch(Split::training, 6, 4, 3, 7).same_bits(first));
  CHECK_FALSE(corpus.batch(Split::training, 5, 4, 3, 8).same_bits(first));
  const Array more_rows = corpus.batch(Split::training, 5, 6, 3, 7);
  for (std::int64_t i = 0; i < first.size(); ++i) CHECK(more_rows.at(i) == first.at(i));
}

TEST_CASE("a window that does not fit is refused, one that just fits is given") {
  const ByteCorpus corpus(counting(4), counting(4));
  CHECK(corpus.batch(Split::training, 0, 1, 3, 0).to_vector() == std::vector<double>{0, 1, 2, 3});
  CHECK(corpus.validation_windows(3, 9).to_vector() == std::vector<double>{0, 1, 2, 3});
  CHECK_THROWS_AS(corpus.batch(Split::training, 0, 1, 4, 0), ConfigError);
  CHECK_THROWS_AS(corpus.validation_windows(4, 1), ConfigError);
  CHECK_THROWS_AS(corpus.validation_windows(3, 0), ConfigError);
  CHECK_THROWS_AS(corpus.validation_windows(0, 1), ConfigError);
}

TEST_CASE("validation windows are evenly spaced and do not overlap") {
  const ByteCorpus corpus(counting(10), counting(103));
  for (std::int64_t max_windows : {1, 3, 7, 10, 1000}) {
    CAPTURE(max_windows);
    const Array windows = corpus.validation_windows(9, max_windows);
    const std::int64_t n = windows.shape()[0];
    CHECK(n == std::min<std::int64_t>(max_windows, 10));
    for (std::int64_t i = 1; i < n; ++i) {
      const double step = windows.at(i * 10) - windows.at((i - 1) * 10);
      CHECK(step >= 10);
      CHECK(std::abs(step - 103.0 / static_cast<double>(n)) <= 1);
    }
  }
}

TEST_CASE("bigram_loss agrees with the smoothed counts done by hand") {
  // Text "aab". Leave-one-out gives each of its two pairs k u / (1 + k), which grows with k, so the largest k
  // is chosen.
  const Array windows = Array::of({'a', 'b', 'a', 'z', 'a', 'a'}, {1, 6}, DType::i32);
  const double k = std::ldexp(1.0, 20);
  const auto p = [&](double pair, double first, double count) {
    return (pair + k * (count + 1) / (3 + 256)) / (first + k);
  };
  const double expected = -(std::log(p(1, 2, 1)) + std::log(p(0, 0, 2)) + std::log(p(0, 2, 0)) +
                            std::log(p(0, 0, 2)) + std::log(p(1, 2, 2))) /
                          5;
  CHECK(bigram_loss(as_bytes("aab"), windows) == doctest::Approx(expected).epsilon(1e-12));
}

TEST_CASE("bigram_loss learns a deterministic text, is never far above uniform, and scores only targets") {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "abcd";
  const Array same = Array::of({'a', 'b', 'c', 'd', 'b', 'c', 'd', 'a'}, {2, 4}, DType::i32);
  CHECK(bigram_loss(as_bytes(text), same) < 0.001);
  const Array unseen = Array::of({'a', 200, 201, 202}, {1, 4}, DType::i32);
  CHECK(bigram_loss(as_bytes(text), unseen) > 5);
  CHECK(std::isfinite(bigram_loss(as_bytes(text), unseen)));
  // The first column is context: the surprising jump into it costs nothing.
  const Array jump = Array::of({'a', 'b', 'a', 'b'}, {2, 2}, DType::i32);
  CHECK(bigram_loss(as_bytes(text), jump) < 0.001);
  // Independent uniform bytes: nothing to learn, so the fit must fall back to about log 256.
  std::vector<std::uint8_t> noise(20000);
  std::uint32_t state = 1;
  for (std::uint8_t& b : noise) b = static_cast<std::uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  CHECK(bigram_loss(noise, Array::of({9, 200, 3, 77, 31}, {1, 5}, DType::i32)) ==
        doctest::Approx(std::log(256)).epsilon(0.06));
}

TEST_CASE("bigram_loss refuses windows that are not bytes") {
  const auto text = as_bytes("some text");
  CHECK_THROWS_AS(bigram_loss(as_bytes("a"), Array::zeros(DType::i32, {1, 2})), ConfigError);
  CHECK_THROWS_AS(bigram_loss(text, Array::zeros(DType::i32, {4})), ShapeError);
  CHECK_THROWS_AS(bigram_loss(text, Array::zeros(DType::i32, {1, 1})), ShapeError);
  CHECK_THROWS_AS(bigram_loss(text, Array::zeros(DType::f32, {1, 2})), DTypeError);
  CHECK_THROWS_AS(bigram_loss(text, Array::full(DType::i32, {1, 2}, 256)), ValueError);
}
