// Text as bytes: a corpus split into training and validation, windows drawn from it, and the bigram baseline
// that a language model has to beat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/array.h"

namespace nestgrad {

enum class Split : std::uint8_t { training, validation };

// The bytes of a text file or of a folder of text files, in a training and a validation part. Immutable
// after construction, so any number of threads may read it.
//
//   ByteCorpus corpus = ByteCorpus::load("texts", context + 1);
//   Array windows = corpus.batch(Split::training, step, batch, context, seed);
class ByteCorpus {
 public:
  // Reads a file or, recursively, a folder.
  //   One file: the first 90 % of the bytes train, the rest validate.
  //   Folder:   files in the byte order of their relative paths, joined by a newline. Every tenth validates;
  //             with fewer than ten files the joined text is split 90/10.
  // In a folder these are skipped: hidden files and folders, files with a NUL byte (binary), empty files, and
  // links to folders (so no link can make a loop). An explicitly given path may be hidden or a link.
  // min_bytes is what each part needs at least: context + 1 for windows of a given context.
  // Throws IoError when the path is missing, unreadable or holds no text, ConfigError when a part is smaller
  // than min_bytes.
  static ByteCorpus load(const std::filesystem::path& path, std::int64_t min_bytes);

  // The two parts as given. Copies share them. Throws ConfigError
  // when one exceeds the 4 GiB that batch() can address.
  ByteCorpus(std::vector<std::uint8_t> training, std::vector<std::uint8_t> validation);
  // Moving copies: one that was moved from still has its text.
  ByteCorpus(const ByteCorpus&) = default;
  ByteCorpus& operator=(const ByteCorpus&) = default;

  std::span<const std::uint8_t> bytes(Split split) const {
    return split == Split::training ? *training_ : *validation_;
  }

  // Where documents begin, ascending, the first at 0: the files of a folder of ten or more; of any other text the
  // parts that empty lines divide. A document reaches to where the next one begins.
  std::span<const std::size_t> documents(Split split) const {
    return split == Split::training ? *training_documents_ : *validation_documents_;
  }

  // A number that another text has with a chance of 2^-64: FNV-1a over the parts and where they end; with `documents`
  // also over where those begin, which decide what is packed.
  std::uint64_t fingerprint(bool documents = false) const;

  // i32 [batch, context+1]: windows at random offsets; columns [0, context) are inputs, [1, context] targets.
  // Row r depends only on (split, seed, step, r), never on earlier calls: a resumed run sees the same
  // windows. Throws ConfigError when the part is shorter than context + 1 bytes.
  Array batch(Split split, std::uint64_t step, std::int64_t batch, std::int64_t context,
              std::uint64_t seed) const;

  // i32 [n, context+1]: n = min(max_windows, what fits) windows of the validation bytes, evenly spaced and
  // without overlap; the same for every run. Throws ConfigError when not even one fits.
  Array validation_windows(std::int64_t context, std::int64_t max_windows) const;

  // The same with documents that begin there. ConfigError unless they are ascending, from 0 on, and within the part.
  ByteCorpus(std::vector<std::uint8_t> training, std::vector<std::size_t> training_documents,
             std::vector<std::uint8_t> validation, std::vector<std::size_t> validation_documents);

 private:
  void check() const;
  std::shared_ptr<const std::vector<std::uint8_t>> training_, validation_;
  std::shared_ptr<const std::vector<std::size_t>> training_documents_, validation_documents_;
};

// Mean negative log-likelihood, in nats per byte, of columns [1, context] of windows, i32 [n, context+1],
// each given the column before it, under a bigram model counted on training (where counted, [n, context], is given, of
// those columns alone where it is 1):
//
//   p(b | a) = (count(a b) + k p(b)) / (count(a) + k),    p(b) = (count(b) + 1) / (N + 256)
//
// that is, interpolated with the add-one unigram (a Dirichlet prior of strength k). k is the power of two
// from 2^-10 to 2^20 with the best leave-one-out likelihood on training itself; the windows play no part in
// it. Throws ConfigError when training has fewer than two bytes, ShapeError, DTypeError or ValueError when
// windows is not [n, context+1] with n, context >= 1, not i32, or not bytes.
double bigram_loss(std::span<const std::uint8_t> training, const Array& windows, const Array& counted = {});

}  // namespace nestgrad
