// Typed errors. The library never prints and never aborts: everything that can go wrong is thrown as one of
// these, and what() says which op or rule, the shapes and operands, where they came from, and what to do.
#pragma once

#include <stdexcept>
#include <string>

#include "engine/core/compiler.h"

namespace nestgrad {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Shapes of operands do not fit the op.
struct ShapeError : Error {
  using Error::Error;
};
// Element types of operands do not fit the op.
struct DTypeError : Error {
  using Error::Error;
};
// A tensor is used where it does not exist: foreign graph, closed scan body, missing input.
struct GraphError : Error {
  using Error::Error;
};
// A derivative that does not exist: the path was cut, or the op has none.
struct GradError : Error {
  using Error::Error;
};
// A learner that breaks a rule of the form that was asked for.
struct FormError : Error {
  using Error::Error;
};
// A value that is wrong at run time: an index out of range, NaN where it was forbidden.
struct ValueError : Error {
  using Error::Error;
};
// A file that cannot be read or written, or whose contents are not what they should be.
struct IoError : Error {
  using Error::Error;
};
// A setting or model configuration that does not make sense.
struct ConfigError : Error {
  using Error::Error;
};
// A device that is missing, full or failing.
struct DeviceError : Error {
  using Error::Error;
};

// ConfigError for a function that was never given: require_function("scan", "the step", step).
template <class F>
void require_function(const char* who, const char* what, const F& fn) {
  if (!fn) throw ConfigError(std::string("[") + who + "] " + what + " is an empty function; give one");
}

}  // namespace nestgrad
