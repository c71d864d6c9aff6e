// The text of a function that is to be compiled, and its machine code.
#pragma once

#include <string>
#include <string_view>

namespace nestgrad {

// Of whatever type; who calls it knows which.
using NativeFunction = void (*)();

// A text calls its function, and whatever else has a name of its own, by "$".
inline std::string named(std::string text, std::string_view name) {
  for (std::size_t at = 0; (at = text.find('$', at)) != std::string::npos; at += name.size())
    text.replace(at, 1, name);
  return text;
}

}  // namespace nestgrad
