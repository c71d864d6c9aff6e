#include "models/documents.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/random.h"

namespace nestgrad {

namespace {

constexpr std::uint64_t kDocumentStream = 0x646f6373ull << 32;  // "docs"
constexpr std::int64_t kMostContext = std::int64_t{1} << 30;    // tokens, as a step of training takes at most
constexpr std::size_t kLeast = 2;  // bytes of a document: one to read, one to predict

// Documents of a part that are long enough.
std::vector<std::span<const std::uint8_t>> documents_of(const ByteCorpus& corpus, Split split) {
  const auto bytes = corpus.bytes(split);
  const auto begins = corpus.documents(split);
  std::vector<std::span<const std::uint8_t>> out;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : bytes.size();
    if (end - begins[i] >= kLeast) out.push_back(bytes.subspan(begins[i], end - begins[i]));
  }
  if (out.empty())
    throw ConfigError(fmt::format(
        "[documents] the {} part has no document of two bytes or more; documents are the files of a folder, or what "
        "empty lines divide",
        split == Split::training ? "training" : "validation"));
  return out;
}

void check(std::int64_t windows, std::int64_t context, std::int64_t align) {
  if (windows < 1) throw ConfigError(fmt::format("[documents] {} windows; it must be at least 1", windows));
  if (context < 1 || context > kMostContext)
    throw ConfigError(
        fmt::format("[documents] context is {}; it must be from 1 to {}", context, kMostContext));
  if (align < 1 || align > context)
    throw ConfigError(fmt::format(
        "[documents] documents cannot begin at multiples of {} tokens in a context of {}; it must be 1 to that",
        align, context));
}

// Windows that are filled from the first token on.
class Packing {
 public:
  Packing(std::int64_t windows, std::int64_t context, std::int64_t align)
      : context_(context),
        align_(align),
        out_{Array::full(DType::i32, {windows, context + 1}, '\n'), Array(DType::f32, {windows, context}),
             Array::zeros(DType::f32, {windows, context})} {}

  // Bytes of a document that fit, where the next one begins in the window; fewer than kLeast: it is full.
  std::size_t room() const { return at_ >= context_ ? 0 : uz(context_ + 1 - at_); }

  void add(std::int64_t window, std::span<const std::uint8_t> document) {
    const auto tokens = out_.tokens.as<std::int32_t>().subspan(uz(window * (context_ + 1)));
    std::ranges::copy(document, tokens.begin() + at_);
    const std::int64_t end = at_ + std::ssize(document), next = (end + align_ - 1) / align_ * align_;
    for (std::int64_t t = at_; t < std::min(next, context_); ++t) {
      out_.places.as<float>()[uz(window * context_ + t)] = static_cast<float>(t - at_);
      out_.counted.as<float>()[uz(window * context_ + t)] = t + 1 < end ? 1.0F : 0.0F;
    }
    at_ = next;
  }

  // What is left of the window belongs to its last document.
  void close(std::int64_t window) {
    for (std::int64_t t = at_; t < context_; ++t) {
      const auto places = out_.places.as<float>();
      places[uz(window * context_ + t)] = t == 0 ? 0 : places[uz(window * context_ + t - 1)] + 1;
    }
    at_ = 0;
  }

  PackedWindows take() && { return std::move(out_); }

 private:
  std::int64_t context_, align_, at_ = 0;
  PackedWindows out_;
};

}  // namespace

PackedWindows packed_batch(const ByteCorpus& corpus, Split split, std::uint64_t step, std::int64_t batch,
                           std::int64_t context, std::int64_t align, std::uint64_t seed) {
  check(batch, context, align);
  const auto documents = documents_of(corpus, split);
  Packing out(batch, context, align);
  for (std::int64_t row = 0; row < batch; ++row) {
    std::uint64_t drawn = static_cast<std::uint64_t>(row) << 32;
    const auto draw = [&](std::size_t below) {
      return random_below(static_cast<std::uint32_t>(below), seed, kDocumentStream + step, drawn++);
    };
    while (out.room() >= kLeast) {
      std::span<const std::uint8_t> document = documents[draw(documents.size())];
      if (document.size() > out.room())
        document = document.subspan(draw(document.size() - out.room() + 1), out.room());
      out.add(row, document);
    }
    out.close(row);
  }
  return std::move(out).take();
}

PackedWindows packed_validation(const ByteCorpus& corpus, std::int64_t context, std::int64_t align,
                                std::int64_t max_windows) {
  check(max_windows, context, align);
  std::vector<std::span<const std::uint8_t>> parts;
  for (const auto document : documents_of(corpus, Split::validation))
    for (std::size_t begin = 0; document.size() - begin >= kLeast;) {
      parts.push_back(document.subspan(begin, std::min(document.size() - begin, uz(context) + 1)));
      begin += parts.back().size();
    }
  // Twice over the same parts: how many windows they fill is known after the first time. Each has a part at least.
  std::int64_t windows = std::min(max_windows, std::ssize(parts));
  for (const bool counting : {true, false}) {
    Packing out(windows, context, align);
    std::int64_t window = 0;
    auto part = parts.begin();
    while (window < windows && part != parts.end()) {
      if (part->size() <= out.room()) {
        out.add(window, *part++);
        continue;
      }
      out.close(window++);
    }
    if (part == parts.end() && window < windows) out.close(window++);
    if (!counting) return std::move(out).take();
    windows = window;
  }
  return {};
}

}  // namespace nestgrad
