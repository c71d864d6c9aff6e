// Learners of language models that are no ttt::System: nothing is derived from a trace of theirs, and so what there is to say
// of them is said here.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nestgrad {

struct OtherLearner {
  std::string_view name, title, source;
  std::string_view model, loss, optimizer, policy;  // as ttt::Explanation has them
  std::string_view form;                            // how it goes along a sequence
  std::string_view why_no_form;                     // none of the forms of ttt/forms/table.h
  std::string_view why_no_system;                   // in words: "it has no inner loop"
};
std::span<const OtherLearner> other_learners();
const OtherLearner* find_other_learner(std::string_view name);  // null for any other name

// The names of all systems, in their order.
std::vector<std::string> system_names();
// For an option that takes one of them: of another learner it says why it is none.
CLI::Validator system_name();

}  // namespace nestgrad
