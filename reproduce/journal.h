// The file of an experiment's runs, results.jsonl: a line on what was asked for, then a line for each run. It is written
// anew, whole, whenever a run has ended, so a call that is stopped loses the runs that were going on and no other.
#pragma once

#include <string>

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

// Where and on what runs were made; of these, only the text counts for the numbers.
struct Circumstances {
  std::string data;         // as pages call it: "the Eigen headers", or the name of a file
  std::string fingerprint;  // of what was read; empty: the experiment reads nothing
  std::string machine, date;
};

std::string to_jsonl(const Results& results, const Circumstances& where);

struct Journal {
  Results results;
  Circumstances where;
};
// The inverse. `what` names the text in errors: IoError for a line that is no such line, for an experiment or a row that is
// not known, for a run that is there twice, and for one that has not the numbers, and curves as long, as the row's other runs.
// experiment: the name of the only one that will do; empty: any.
Journal parse_jsonl(const std::string& text, const std::string& what, const std::string& experiment = {});

// 16 hexadecimal digits that depend on every number and curve, on rows, seeds and data, and on nothing else: the same on
// every machine.
std::string digest(const Results& results, const Circumstances& where);

// The first number in which the two differ, in words; "" if there is none.
std::string first_difference(const Results& a, const Results& b);

}  // namespace nestgrad::reproduce
