// The plain part of a StepTable (engine/plan/step_table.h): numbers, and the addresses that follow from them. Texts of kernels
// include it too, so it needs nothing but integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/host_device.h"

namespace nestgrad {

enum class DType : std::uint8_t;  // engine/core/array.h

// What each slice has of a value: bytes from offsets[at + slice] on.
struct StepPart {
  std::int64_t bytes = 0;
  int at = 0;  // in StepTable::offsets and owners
};

struct StepCarry {
  StepPart part;
  DType dtype{};
  int init = 0;                    // a base, like the next three; -1: there is none
  int final_value = -1;            // none: nobody reads it
  int terms = -1;                  // [slices] last values, to be added up
  int copies = -1;                 // [copies, slices]: what stretches begin with
  int stack = -1;                  // the stack of what the steps begin with; each writes the next there
  bool partial = false;            // the value is the sum over the slices
  // Steps write over what they read: it lies where the stretch leaves it, or else in `even`.
  bool in_place = false;
  // In base 0: where steps write by turns what goes nowhere else. -1: they need none.
  std::int64_t even = -1, odd = -1;
};

// A value of every step, or one of all: read (xs, constants) or written (stacks).
struct StepValue {
  StepPart part;
  int base = 0;
  std::int64_t stride = 0;   // in bytes, from one time to the next; 0 of a constant
  int window = 0;            // n: there is room for n times, time % n; 0: for all
  bool of_carry = false;     // a stack that the steps before fill; no output of the body
  std::int64_t scratch = 0;  // of a stack, in base 0: where a step writes what is not to be stored
};

// The table as plain numbers, of which a GPU can have a copy. Owns nothing.
struct StepTableView {
  int carries = 0, xs = 0, constants = 0, stacks = 0;
  int slices = 1;
  bool reverse = false;
  const StepCarry* carry = nullptr;
  const StepValue *x = nullptr, *constant = nullptr, *stack = nullptr;
  const std::int64_t* offsets = nullptr;
  const char* owners = nullptr;
};

// Some steps that run one after the other, and where the carries come from and go to.
struct Stretch {
  int first = 0, count = 0;  // times, in the scan's direction
  int from_copy = -1;        // -1: from what the scan begins with
  int to_copy = -1;          // -1: if `last`, to the final values; else nowhere
  bool last = false;
  bool store = true;  // false: only what has a window is wanted
};

// The addresses of one slice. base: from int to std::byte*.
template <class Base>
class StepAddresses {
 public:
  NESTGRAD_HOST_DEVICE StepAddresses(const StepTableView& table, std::int64_t slice, Base base)
      : t_(table), slice_(slice), base_(base) {}

  NESTGRAD_HOST_DEVICE bool owns(const StepPart& part) const { return t_.owners[part.at + slice_] != 0; }
  NESTGRAD_HOST_DEVICE std::byte* at(const StepValue& v, int time) const {
    return base_(v.base) + offset(v.part) + (v.window ? time % v.window : time) * v.stride;
  }

  // Of a sum, the first slice has what it begins with, the others zeros, which are to be written.
  NESTGRAD_HOST_DEVICE bool begins_with_zeros(const StepCarry& c, const Stretch& s) const {
    return s.from_copy < 0 && c.partial && !owns(c.part);
  }
  NESTGRAD_HOST_DEVICE std::byte* begin(const StepCarry& c, const Stretch& s) const {
    if (s.from_copy >= 0) return copy(c, s.from_copy);
    return begins_with_zeros(c, s) ? base_(0) + c.odd : base_(c.init) + offset(c.part);
  }
  // Where a carry in place is in all of the stretch's steps; what begin() says is to be copied there.
  NESTGRAD_HOST_DEVICE std::byte* stays(const StepCarry& c, const Stretch& s) const {
    return next(c, s, s.count - 1, 0);
  }
  // Has the stack a place for what the carry is at the stretch's times?
  NESTGRAD_HOST_DEVICE bool keeps(const StepCarry& c, const Stretch& s) const {
    return c.stack >= 0 && is_stored(t_.stack[c.stack], s);
  }
  // Where step i of the stretch, at `time`, writes what the carry is next.
  NESTGRAD_HOST_DEVICE std::byte* next(const StepCarry& c, const Stretch& s, int i, int time) const {
    std::byte* const elsewhere = next_elsewhere(c, s, i, time);
    return elsewhere ? elsewhere : base_(0) + (i % 2 && !c.in_place ? c.odd : c.even);
  }
  // The same, but null where nobody needs it but the next step.
  NESTGRAD_HOST_DEVICE std::byte* next_elsewhere(const StepCarry& c, const Stretch& s, int i,
                                                 int time) const {
    if (i + 1 < s.count) return keeps(c, s) ? at(t_.stack[c.stack], time + (t_.reverse ? -1 : 1)) : nullptr;
    if (s.to_copy >= 0) return copy(c, s.to_copy);
    if (!s.last || c.final_value < 0) return nullptr;
    if (c.partial) return base_(c.terms) + slice_ * c.part.bytes;
    return owns(c.part) ? base_(c.final_value) + offset(c.part) : nullptr;
  }
  // Does the stack get the stretch's values, and not the memory that is written for nobody?
  NESTGRAD_HOST_DEVICE bool is_stored(const StepValue& stack, const Stretch& s) const {
    return stack.window || (s.store && owns(stack.part));
  }
  NESTGRAD_HOST_DEVICE std::byte* written(const StepValue& stack, const Stretch& s, int time) const {
    return is_stored(stack, s) ? at(stack, time) : base_(0) + stack.scratch;
  }

 private:
  NESTGRAD_HOST_DEVICE std::int64_t offset(const StepPart& part) const {
    return t_.offsets[part.at + slice_];
  }
  NESTGRAD_HOST_DEVICE std::byte* copy(const StepCarry& c, int number) const {
    return base_(c.copies) + (static_cast<std::int64_t>(number) * t_.slices + slice_) * c.part.bytes;
  }

  const StepTableView& t_;
  std::int64_t slice_;
  Base base_;
};

}  // namespace nestgrad
