// Where NaN and infinity come from: the first value of a program that is not finite, with what it was made
// of, and a file that makes it again.
//
//   if (const auto found = first_nonfinite(f, inputs)) {
//     std::puts(found->str().c_str());
//     save_reproducer(*found, "nan.safetensors");
//   }
//
//   [div] element 2 of %9 = div f64[4] is inf, the first value that is not finite: step 5, level 1, in loss
//   (learner.cpp:31)
//     input 0, input 'x' (learner.cpp:12), f64[4]: from -1.5 to 2
//     input 1, relu (learner.cpp:30), f64[4]: from 0 to 3
//     output, f64[4]: from -3 to 1; 1 infinite
#pragma once

#include <optional>

#include "engine/run/function.h"

namespace nestgrad {

struct NonFinite {
  struct Range {
    Spec spec;
    std::string from;  // of an input of the op, what made it and where; empty when it was read from a file
    double low = 0, high = 0;  // of the finite elements; NaN if there are none
    std::int64_t nans = 0, infs = 0;
    std::string str() const;
  };
  std::string op;  // "input": an input of the function was not finite when it was given
  Attrs attrs;
  NodeId node = -1;                 // in the graph or body that it is of
  std::vector<NodeId> within;       // enclosing scans and expanded ops, outermost first
  std::vector<std::int64_t> steps;  // the time of each enclosing scan, outermost first
  int level = 0;
  std::string scope;
  Loc loc;
  std::vector<Range> inputs;
  Range output;
  std::int64_t element = -1;  // flat index of the first one that is not finite
  std::vector<Array> values;  // of the inputs
  Array value;                // of the output
  std::string str() const;
};

// The first value, in the order of the graph and of the steps, that is not finite; none if all are. Inputs of
// the function come before everything else. Of values that no output needs, and of constants (a mask may be
// made of infinities), nothing is said. Runs the function in an interpreter (engine/run/interpreter.h), so
// the numbers are those of a plan to rounding.
std::optional<NonFinite> first_nonfinite(const Function& function, const std::vector<Array>& inputs);

// The op with its attributes and the values of its inputs and its output, as a safetensors file that appears
// complete or not at all. Tensors: input0, input1, .., output. Metadata: format, op, ints and text of
// the attributes, inputs (how many); and for people attributes, node, within, level, steps, scope, line, element, report, graph
// (the op alone as a function) and replay: "yes", or why the op cannot be run from this file. IoError where the file cannot be written.
void save_reproducer(const NonFinite& report, const std::string& path);

struct Reproduction {
  NonFinite report;         // of the op as it ran now; loc is not known
  std::string line, graph;  // as they were saved
  Array saved;              // what the op gave then
  bool same_bits() const { return report.value.same_bits(saved); }
};

// Runs the op of such a file again on its values. Only for files that save_reproducer wrote: attributes are
// handed to the op as they are. IoError for another kind of file, an op that this build does not have, and
// one that could not be saved whole.
Reproduction replay_reproducer(const std::string& path);

}  // namespace nestgrad
