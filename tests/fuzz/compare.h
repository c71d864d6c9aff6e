// What has to be the same about one program, however it is run. Each check throws a Finding, in words.
#pragma once

#include <vector>

#include "nestgrad.h"
#include "tests/fuzz/draws.h"

namespace nestgrad::fuzz {

using Arrays = std::vector<Array>;

struct Subject {
  TraceFn fn;  // may be called again and again, on any graph
  std::vector<Spec> specs;
  Function f;
  bool narrow = false;  // has it f32?
  bool has_bodies = false;  // loops, or functions with rules of their own: of an eager graph they are plans
  bool has_empty = false;
  std::size_t orders = 0;  // of its last outputs: a value L0 and directional derivatives L1, .. of it
  bool exact_gradients = true;
};

// A program of random_graph.h; all its derivatives of the highest order; L0, a weighted sum of its outputs,
// and L_k, the derivative of L_(k-1) along the direction of order k.
Subject random_subject(Draws& draws);

// fn's outputs, computed node by node as it is called.
Arrays run_eagerly(const TraceFn& fn, const Arrays& in);

// Numbers for inputs. `tied` ones are few different, so that comparisons meet equals.
Arrays numbers_for(const std::vector<Spec>& specs, std::uint64_t seed, bool tied = false);

// Printed, drawn, made again, inlined: the same program.
void check_texts(const Subject& s);
// The interpreter, an eager graph, and plans of any options, on any number of threads.
void check_plans(const Subject& s, const Arrays& in, Draws& draws);
// A plan run again after other inputs, NaN among them; copies of a function on two threads; its profile.
void check_replays(const Subject& s, const Arrays& in, Draws& draws);
// Where NaN and infinity come from is found, if there are any.
void check_nonfinite(const Subject& s, const Arrays& in);
// CUDA, where it is linked.
void check_cuda(const Subject& s, const Arrays& in, Draws& draws);
// L_k against central differences of L_(k-1) along the direction of order k. False: nothing could be said,
// for a kink or numbers too large.
bool check_derivatives(const Subject& s, std::uint64_t seed);
Arrays direction(const std::vector<Spec>& specs, std::size_t order);

}  // namespace nestgrad::fuzz
