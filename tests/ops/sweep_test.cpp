// Every row of the op table is complete and true.
#include "tests/ops/sweep.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// The check over all rows whose value is a function of their inputs.
void sweep(Failures (*check)(const Op&)) {
  Failures failures;
  for (const Op* op : op_table())
    if (op->kind == OpKind::value && !has_own_body(*op)) append(failures, checked(check, *op));
  INFO(join(failures));
  CHECK(failures.empty());
}

}  // namespace

TEST_CASE("every row of the op table is complete") {
  Failures failures;
  for (const Op* op : op_table()) append(failures, check_complete(*op));
  INFO(join(failures));
  CHECK(failures.empty());
  CHECK(std::ranges::count_if(op_table(), [](const Op* op) { return op->kind == OpKind::value; }) > 40);
  // The sweep passes over rows that are no values (input, scan, ..) and over this one: both have own tests.
  CHECK(std::ranges::count_if(op_table(), [](const Op* op) { return has_own_body(*op); }) == 1);
}

TEST_CASE("rows are found by name, and sorted by it") {
  CHECK(std::ranges::is_sorted(op_table(), {}, [](const Op* op) { return op->name; }));
  for (const Op* op : op_table()) CHECK(find_op(op->name) == op);
  CHECK(find_op("no such op") == nullptr);
}

TEST_CASE("every negative sample is refused with its message") { sweep(check_errors); }
TEST_CASE("no derivative reads a value that it does not need") { sweep(check_mentions); }
TEST_CASE("what is declared affine is affine, and nothing else is") { sweep(check_linear_in); }
TEST_CASE("attributes are read back from their numbers, and others are refused") { sweep(check_attributes); }
TEST_CASE("sums pass through what is declared linear, and nothing else") { sweep(check_sums); }
TEST_CASE("slices go where `axes` says, to the bit") { sweep(check_axes); }
TEST_CASE("axes that nothing maps to repeat the inputs, where a row says so") { sweep(check_broadcasts); }
TEST_CASE("an output may be written over the inputs that the row names") { sweep(check_may_reuse); }
TEST_CASE("a result has one value wherever it and its inputs lie in memory") { sweep(check_placement); }
TEST_CASE("an alias is the bytes of its input") { sweep(check_alias); }
TEST_CASE("a kernel computes what its expansion says") { sweep(check_expand); }
TEST_CASE("f32 kernels are close to f64 kernels") { sweep(check_f32); }
TEST_CASE("plans with and without simplification agree, derivatives included") { sweep(check_simplify); }
TEST_CASE("derivatives of every row are right up to order 3") { sweep(check_derivatives); }
