// Damage to a text: what a campaign does to files and command lines.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace nestgrad::fuzz {

using Random = std::mt19937_64;

inline std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

struct Mutation {
  enum class Kind : std::uint8_t { flip, cut, repeat, truncate, insert, replace_word };
  Kind kind;
  std::size_t at, size;  // of the text at that time, taken modulo its size; of replace_word: which word
  std::string text;      // that is put there

  std::string str() const;
};

Mutation draw_mutation(Random& random);
void apply(const Mutation& mutation, std::string& text);

}  // namespace nestgrad::fuzz
