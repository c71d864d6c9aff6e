#include "models/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"

#if NESTGRAD_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace nestgrad {

namespace {

namespace fs = std::filesystem;

void check_token(std::int32_t token, std::int64_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    throw ValueError(
        fmt::format("[tokenizer] there is no token {}; there are {}, counted from 0", token, vocab_size));
}

class Bytes final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  std::string bytes(std::int32_t token) const override {
    check_token(token, 256);
    return {static_cast<char>(token)};
  }
};

#if NESTGRAD_SENTENCEPIECE
class SentencePiece final : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) {
    const auto status = processor_.LoadFromSerializedProto(read_file(path));
    if (!status.ok() || processor_.GetPieceSize() < 1)
      throw IoError(fmt::format(
          "[tokenizer] {}: sentencepiece cannot read it; it is damaged or no sentencepiece model, "
          "copy it again",
          printable(path)));
  }

  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    if (const auto status = processor_.Encode(text, &ids); !status.ok())
      throw ValueError(fmt::format("[tokenizer] '{}' cannot be made tokens: {}", printable(text, 40),
                                   printable(status.message())));
    std::vector<std::int32_t> out;
    if (processor_.bos_id() >= 0) out.push_back(processor_.bos_id());
    out.insert(out.end(), ids.begin(), ids.end());
    return out;
  }

  // Piece by piece, so that text can be shown while it is written: the mark U+2581 is a space, a byte piece
  // <0x0A> its byte.
  std::string bytes(std::int32_t token) const override {
    check_token(token, vocab_size());
    if (processor_.IsControl(token)) return "";
    std::string piece = processor_.IdToPiece(token);
    if (processor_.IsByte(token) && piece.size() == 6)
      return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};
    if (processor_.IsUnknown(token)) return "\uFFFD";
    constexpr std::string_view kSpace = "\u2581";
    for (auto at = piece.find(kSpace); at != piece.npos; at = piece.find(kSpace, at + 1))
      piece.replace(at, kSpace.size(), " ");
    return piece;
  }

  std::optional<std::int32_t> end_of_text() const override {
    return processor_.eos_id() >= 0 ? std::optional(processor_.eos_id()) : std::nullopt;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path) {
  return std::make_shared<SentencePiece>(path);
}
#else
std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path) {
  throw ConfigError(
      fmt::format("[tokenizer] {} is read by sentencepiece, without which this program was built; install "
                  "libsentencepiece-dev (Fedora: sentencepiece-devel) and build again",
                  printable(path)));
}
#endif

}  // namespace

const Tokenizer& byte_tokenizer() {
  static const auto& bytes = *new Bytes;
  return bytes;
}

std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& model, std::int64_t vocab_size,
                                                const std::string& given) {
  std::error_code error;
  if (given.empty() && model.ends_with(".model") && !fs::is_directory(model, error))
    return read_tokenizer("", vocab_size, model);
  if (!given.empty() && vocab_size == 256)
    throw ConfigError(
        fmt::format("[tokenizer] {} is given, and the model, of 256 tokens, reads bytes: leave it out",
                    printable(given)));
  const std::string& path = given.empty() ? model : given;
  const bool is_folder = fs::is_directory(path, error);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  const fs::path file = given.empty() || is_folder ? folder / "tokenizer.model" : fs::path(given);
  if (!given.empty() && !fs::exists(file, error))
    throw IoError(
        fmt::format("[tokenizer] {}: there is no such file; give that of sentencepiece, or leave it out for "
                    "tokenizer.model beside the weights",
                    printable(file.string())));
  if (!fs::exists(file, error)) {
    if (vocab_size == 256) return {std::shared_ptr<void>(), &byte_tokenizer()};
    throw ConfigError(fmt::format(
        "[tokenizer] a model of {} tokens does not read bytes, and there is no tokenizer.model in {}{}; copy "
        "that of sentencepiece there, or name it",
        vocab_size, folder.empty() ? "this folder" : printable(folder.string()),
        fs::exists(folder / "tokenizer.json", error) ? " (a tokenizer.json cannot be read)" : ""));
  }
  if (file != given) check_no_pipe(file);
  auto out = read_sentencepiece(file.string());
  if (out->vocab_size() > vocab_size)
    throw ConfigError(fmt::format("[tokenizer] {} has {} tokens, the model {}; it is that of another model",
                                  printable(file.string()), out->vocab_size(), vocab_size));
  return out;
}

}  // namespace nestgrad
