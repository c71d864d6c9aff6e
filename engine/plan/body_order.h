// In which order a compiled body does its instructions (engine/plan/body_source.h), and which of them go over one
// matrix together. With one row, a product does little with each element of the matrix that it loads: `x W` and the
// step W + y'z, or two of either, then take the time of one. Two steps of more rows go over blocks of the matrix, so
// that what lies between them stays in the cache.
#pragma once

#include <vector>

#include "engine/plan/program.h"

namespace nestgrad {

// Of a body that is compiled; more would take a compiler too long.
constexpr std::size_t kMostInstructions = 2000;
constexpr std::size_t kFarthestProduct = 48;  // groups that a product looks back to for one of its matrix

// Products over one matrix W[m,n] of each of some batch members, f32 or f64: `reads`, C = A W (+ D) with one row; then
// `steps`, W = W + A B, each from what the one before has made. After reads there are only steps of A[m,1] and B[1,n].
// Numbers of instructions. An instruction by itself is a group of that one, in `alone`.
struct BodyGroup {
  int alone = -1;
  std::vector<int> reads, steps;
};

// All instructions of the program. Each group finds what it would find if the instructions ran in their order.
std::vector<BodyGroup> body_order(const Program& body);

// May the batch members of two products be multiplied in turns, first, second, first, ..? Not where the second, which
// comes later, writes over what the first reads, as the arena lets it, or reads what the first writes.
bool may_alternate(const Program& body, int first, int second);

// The products of an instruction, if it is some and nothing else.
struct BodyProducts {
  OpProducts of;
  DType dtype = DType::f32;
  Place a, b, d, c;  // d.kind: none if nothing is added
};
std::optional<BodyProducts> products_of(const Program& body, const Instruction& instruction);

}  // namespace nestgrad
