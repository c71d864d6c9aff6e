// Reference: the numbers of a published layer's inner loop, for people who write its kernel elsewhere and
// want something to hold it to: outputs, losses, states and gradients from named inputs.
//
//   const System& system = system_named("delta-net");
//   NamedArrays in = random_inputs(system, {.batch = 2, .heads = 2, .time = 64, .dim = 16}, {});
//   ReferenceResult r = reference(system, in, {});
//   r.outputs.at("output");       // f64 [batch, heads, time, dim]
//   r.outputs.at("grad.k");       // of sum(output * cotangent.output)
//
// Rows are row vectors: f(x) = x W with W [in, out]; W is per batch and head. docs/kernel-authors.md tells the
// conventions. ttt/verification.h compares a kernel's numbers with these.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ttt/system.h"

namespace nestgrad::ttt {

using NamedArrays = std::map<std::string, Array>;

struct ReferenceOptions {
  DType dtype = DType::f64;  // of the computation; inputs of less precision are taken exactly
  std::string policy = {};   // settings that replace the system's (ttt/policy_text.h)
  std::int64_t chunk = 16;   // tokens, where the system has chunks and `policy` does not say
  FormChoice form = FormChoice::automatic;
  // false: q, k, v and gates are as the inner loop is given them, which is what a kernel is given. true: as
  // the layer's projections leave them: rotation, System::prepare, biases and shapes of gates follow.
  bool raw = false;
  std::int64_t state_every = 0;         // tokens between the states that are given, whole chunks; 0: a chunk
  bool intermediates = false;           // give what a kernel's author debugs with as well
  std::uint64_t seed = 0;               // of what is drawn
  bool random_start = false;            // random_inputs: draw start.* of the weights too
  bool random_final_cotangent = false;  // .. and cotangent.final.*
  double base_lr = 1;                   // raw, systems with position rates: as of the published layer
  double rope_theta = 10000;            // raw, systems that rotate q and k
};

struct ReferenceSizes {
  std::int64_t batch = 1, heads = 2, time = 32, dim = 8;  // of q, k and v
};

// A named array that goes in or comes out.
struct ReferenceTensor {
  std::string name;
  Spec spec;
  std::string axes;  // names of its axes, "batch head token feature"; of other matrices "in out" come last
  std::string text;  // what it is, and its formula
  bool optional = false;
};

struct ReferenceDescription {
  std::vector<ReferenceTensor> inputs, outputs;
  // system, title, source, model, inner_loss, constants (of both), start (what each weight and slot starts
  // from), optimiser, gradient (g.W) and update (W <- ..), policy (words), settings (for --policy), form, dtype,
  // gates (raw or effective), seed, state_every; base_lr and rope_theta of raw inputs that these change; axes.NAME for
  // every tensor; inputs, outputs: names, in what reference() gives of the inputs that there were.
  std::map<std::string, std::string> metadata;
};

// Sizes of the problem that these inputs are: those of k, where System::prepare does not widen it. ConfigError, ShapeError:
// there is no k, or it is not [batch, heads, time, dim].
ReferenceSizes reference_sizes(const System& system, const NamedArrays& inputs,
                               const ReferenceOptions& options);

// What reference() takes, optional inputs included, and gives for those that are needed. ConfigError for sizes
// or settings that do not fit the system, FormError for a form that is impossible.
ReferenceDescription describe_reference(const System& system, const ReferenceSizes& sizes,
                                        const ReferenceOptions& options);

// Inputs of these sizes, the same bits for the same seed. What the projections would leave is drawn, in f64,
// and, unless options.raw, taken through the layer's own gates and norms: rates are small, keys as long as
// they are in the layer, and the problem is the same in both cases.
NamedArrays random_inputs(const System& system, const ReferenceSizes& sizes, const ReferenceOptions& options);

struct ReferenceResult {
  NamedArrays inputs;  // as they were taken, of options.dtype; the cotangent that was drawn among them
  NamedArrays outputs;
  ReferenceDescription description;
};

// Computes the outputs of describe_reference from its inputs. One that is missing, unknown (the nearest name
// is suggested), misshapen, of a type that would be rounded, or not finite is a ConfigError, ShapeError,
// DTypeError or ValueError of one line.
ReferenceResult reference(const System& system, const NamedArrays& inputs, const ReferenceOptions& options);

}  // namespace nestgrad::ttt
