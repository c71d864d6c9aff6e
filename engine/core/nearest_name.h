// What somebody probably meant who wrote a name that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nestgrad {

// Of the known names the one with the least edits from `name` (letters inserted, deleted or replaced), the
// first of several; empty if that takes more than two edits and more than a third of its letters, or as many as the
// known name is long.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

// "; did you mean 'rate'?", or nothing.
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace nestgrad
