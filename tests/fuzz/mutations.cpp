#include "tests/fuzz/mutations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "engine/io/file.h"

namespace nestgrad::fuzz {

namespace {

// Numbers and pieces of text that readers fall over.
const std::vector<std::string>& absurdities() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out{"0",
                                 "-1",
                                 "1",
                                 "2147483647",
                                 "2147483648",
                                 "1099511627776",
                                 "1e308",
                                 "-1e308",
                                 "1e400",
                                 "0.5",
                                 "NaN",
                                 "nan",
                                 "inf",
                                 "-inf",
                                 "null",
                                 "true",
                                 "[]",
                                 "{}",
                                 "\"\"",
                                 "\"x\"",
                                 "\xff\xfe",
                                 "9223372036854775807",
                                 "-9223372036854775808",
                                 "18446744073709551615",
                                 "123456789012345678901234567890",
                                 "\n",
                                 "\\u0000",
                                 ",",
                                 ":",
                                 "\"",
                                 "%s%n",
                                 "attention",
                                 "ttt-e2e",
                                 "nadaraya-watson",
                                 "F64",
                                 "BF16",
                                 "I64"};
    out.emplace_back(1, '\0');
    out.emplace_back(100'000, '[');
    std::string nested;
    for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
    out.push_back(nested);
    out.push_back(std::string(50'000, '[') + std::string(50'000, ']'));
    out.emplace_back(100'000, '9');
    return out;
  }();
  return all;
}

// Where words of a text begin and end: numbers, names, texts in quotes, and what follows an '='.
std::vector<std::pair<std::size_t, std::size_t>> words_of(const std::string& text) {
  const auto is_inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_' || c == '+';
  };
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    while (i < text.size() && is_inside(text[i])) ++i;
    if (i > begin) out.emplace_back(begin, i);
    else ++i;
  }
  return out;
}

}  // namespace

std::string Mutation::str() const {
  static constexpr const char* names[]{"flip", "cut", "repeat", "truncate", "insert", "replace word"};
  return fmt::format("{} {} {} '{}'", names[static_cast<int>(kind)], at, size, printable(text, 40));
}

Mutation draw_mutation(Random& random) {
  using Kind = Mutation::Kind;
  static constexpr Kind kinds[]{Kind::flip,         Kind::cut,          Kind::repeat,
                                Kind::truncate,     Kind::insert,       Kind::replace_word,
                                Kind::replace_word, Kind::replace_word, Kind::replace_word};
  Mutation m{kinds[below(random, std::size(kinds))], random() >> 1, 1 + below(random, 9), {}};
  if (below(random, 8) == 0) m.size *= 1 + below(random, 1000);
  if (m.kind == Kind::insert || m.kind == Kind::replace_word)
    m.text = absurdities()[below(random, absurdities().size())];
  return m;
}

void apply(const Mutation& m, std::string& text) {
  const std::size_t at = text.empty() ? 0 : m.at % text.size(), size = std::min(m.size, text.size() - at);
  switch (m.kind) {
    case Mutation::Kind::flip:
      if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << m.size % 8));
      break;
    case Mutation::Kind::cut:
      text.erase(at, size);
      break;
    case Mutation::Kind::repeat:
      text.insert(at, text.substr(at, size));
      break;
    case Mutation::Kind::truncate:
      text.resize(at);
      break;
    case Mutation::Kind::insert:
      text.insert(at, m.text);
      break;
    case Mutation::Kind::replace_word:
      if (const auto words = words_of(text); !words.empty()) {
        const auto [begin, end] = words[m.at % words.size()];
        text.replace(begin, end - begin, m.text);
      }
      break;
  }
}

}  // namespace nestgrad::fuzz
