// MovedFrom: whether the object that has it as a member was moved from, whose other members then hold nothing to work on.
#pragma once

#include <string>
#include <utility>

#include "engine/core/error.h"

namespace nestgrad {

// Copied and moved with the object, so that one that was moved from and is assigned to is whole again.
//
//   Array Decoder::step(const Array& tokens) {
//     moved_.check("decoder", "decoder");
class MovedFrom {
 public:
  MovedFrom() = default;
  MovedFrom(const MovedFrom&) = default;
  MovedFrom& operator=(const MovedFrom&) = default;
  MovedFrom(MovedFrom&& from) noexcept : gone_(std::exchange(from.gone_, true)) {}
  MovedFrom& operator=(MovedFrom&& from) noexcept {
    gone_ = std::exchange(from.gone_, true);
    return *this;
  }
  // ConfigError of an object that was moved from; what: the kind of object.
  void check(const char* who, const char* what) const {
    if (gone_)
      throw ConfigError(std::string("[") + who + "] this " + what +
                        " was moved from; use the one that it became");
  }

 private:
  bool gone_ = false;
};

}  // namespace nestgrad
