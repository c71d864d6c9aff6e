// System: a published layer as a composition: a learner, the policy by which it is run, the gates that it
// needs and what is done to its views. Each published one is a short file in ttt/learners/, listed in
// ttt/learners/catalogue.def; those of other projects are made known by register_system.
#pragma once

#include <deque>

#include "engine/run/function.h"
#include "ttt/compose.h"
#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

// A gate that a layer has to make from its input: sigmoid, softplus, .. of a learned projection.
struct GateSpec {
  std::string name = {};
  bool per_feature = false;                      // one per feature of k, else one a token
  std::function<Tensor(Tensor raw)> shape = {};  // raw [batch, heads, time, 1 or dim] -> the gate
  double bias = 0;                               // the projection's bias starts here
  std::optional<Init> drawn_bias = {};           // or, in a layer, is drawn so, one per head (and feature)
};
// The gate of what its projection leaves: `raw` without that bias, `biased` with it.
Tensor gate_from_raw(const GateSpec& gate, Tensor raw);
Tensor gate_from_biased(const GateSpec& gate, Tensor biased);

struct SystemSizes {
  std::int64_t heads = 1, dim = 0;  // of one head; keys and values alike
  std::int64_t chunk = 16;          // where the system has chunks
};

struct System {
  std::string name = {};    // as train_lm knows it
  std::string title = {};   // for people
  std::string source = {};  // paper and section or equation
  std::vector<GateSpec> gates = {};
  std::function<std::unique_ptr<Learner>(const Params& params, const SystemSizes& sizes)> learner = {};
  std::function<Policy(const SystemSizes& sizes)> policy = {};
  // q, k, v as projected and the gates -> as the inner loop sees them; identity if empty. It may make gates, erase them and
  // widen views: Longhorn makes its rates and its forgetting of one gate `beta`,
  //
  //   Tensor beta = v.gates.at("beta"), d = beta / (1.0 + beta * sum(square(v.k), {-1}, kKeep));
  //   v.gates = {{"rate", d}, {"forget", 1.0 - d * square(v.k)}};
  //
  // and RWKV-7 gives its learner three keys side by side, v.k = concat({..}, -1). Decoding calls it (and the gates'
  // shapes) for one token at a time, so it must treat each token by itself (why_tokens_meet).
  std::function<void(Views& views)> prepare = {};
  // A layer gives each token's value to the key of the token before (of the first: zeros), so that what is learnt is
  // what comes next. Everything else takes k as it is.
  bool delayed_keys = false;
  bool rotary = false;  // q and k are rotated by their position in the chunk
  // A layer rotates q and k by their place in the sequence or document (RoFormer: Su et al. 2021, section 3.2): for a
  // learner that would know nothing of the order of what it was given. Everything else takes q and k as they are, and so
  // does a model whose tokens meet their neighbours in convolutions (the Mamba-like backbone).
  bool rotary_in_sequence = false;
  bool position_rates = false;  // the published TTT layers' eta[i, j]
  // A language model has causal attention beside it, over as many tokens as a chunk has, unless it is configured
  // otherwise: within a chunk such a learner says nothing of the chunk's own tokens.
  bool attention_beside = false;
  // Why it cannot be run by a policy other than its own, in words; empty if it can. Not set: it can by any.
  std::function<std::string(const Policy& policy)> why_not = {};
};

// ConfigError if it has no learner or no policy, or a gate whose name another gate or a view has.
void check_complete(const System& system);
// What System::learner makes. ConfigError if that is null.
std::unique_ptr<Learner> learner_of(const System& system, const Params& params, const SystemSizes& sizes);

// A system in a program of its own, on inputs q, k, v, the raw gates and the outer parameters: what
// explanations, proofs and benchmarks run.
struct SystemProgram {
  std::unique_ptr<Learner> learner;
  Policy policy;
  Weights start;  // [batch, heads, ..]
  Views views;
  std::vector<Tensor> inputs;  // q, k, v, raw gates, rates and position (of some), then the outer parameters
};
struct ProgramSizes {
  std::int64_t batch = 2, heads = 2, dim = 4, time = 10, chunk = 4;
};
// fn makes the outputs.
Function trace_system(const System& system, const ProgramSizes& sizes, DType dtype,
                      const std::function<std::vector<Tensor>(const SystemProgram&)>& fn);
// The views of such a program, of its first inputs: q, k, v, the raw gates (then rates and position).
Views views_of(const System& system, std::span<const Tensor> inputs);
// Where prepare or the shape of a gate lets tokens or sequences meet, treats tokens by their place, or computes something else
// for another number of tokens or sequences, in words; empty if each token is treated by itself, which a layer that decodes needs.
std::string why_tokens_meet(const System& system, const ProgramSizes& sizes, DType dtype);
// Numbers for such a program: views and parameters around 0, the same for the same seed.
std::vector<Array> numbers_for(const Function& program, std::uint64_t seed);

// Makes a system of one's own known by its name, wherever one is taken by name: LanguageModelConfig, train_lm,
// learners, inspect, generate. To be called at the beginning of main: no other thread may be using systems()
// meanwhile. ConfigError for a system without name, learner or policy, and for a name that is taken: it says by
// whom, and where both were registered. References that system_named gave stay good.
//
//   register_system({.name = "my-memory", .learner = .., .policy = ..});
//   return programs::train_lm(argc, argv);  // knows --learner my-memory
void register_system(System system, Loc loc = Loc::current());
const std::deque<System>& systems();  // the published ones, then those registered, in their order
const System& system_named(std::string_view name);  // ConfigError for an unknown one; lists them

}  // namespace nestgrad::ttt
