// What an inner loop works on: the views of a sequence, the blocks that it is cut into, and the state that is
// carried from one to the next.
#pragma once

#include <functional>
#include <memory>

#include "ttt/learner.h"

namespace nestgrad::ttt {

// What a learner is given of each token (Sun et al. 2024, section 2.3): what is learnt from (k), what is
// learnt (v), what is asked (q); and the gates of its optimiser.
struct Views {
  Tensor
      q = {},
      k = {},
      v = {};  // [batch, heads, time, dim]; q may have another length if the whole sequence is one chunk with one step
  Gates gates = {};  // [batch, heads, time, 1 or in]
  // [chunk] or undefined: token i of a chunk goes only position[i] of the way from the chunk's first weights
  // to its own (eta[i, j] = position[i] rate[j] of the published TTT layers). Of a sequence shorter than a chunk as many as it
  // has tokens will do.
  Tensor position = {};
  // Packed documents: [batch, 1, time, 1], 1 where a token begins one: there the state is the first one again, weights and
  // slots. Undefined: the sequence is one document.
  Tensor starts = {};
  // They begin at multiples of so many tokens, 1 or more, and thus with chunks: of `starts` only the first token of a chunk is looked at.
  std::int64_t alignment = 1;
};

// Tokens [begin, end) of them, as one document (without starts); position whole.
Views part(const Views& views, std::int64_t begin, std::int64_t end);

// Consecutive tokens of a sequence, as a form is given them; position cut to their number.
struct Block : Views {
  bool writes = true;          // per_chunk: does it learn
  std::vector<Tensor> offset;  // per weight, or empty: added to the weights where the gradient is taken
  // primal: position of the token before each, if its chunk did not begin with this block. Both may then be of
  // one token, [batch, 1, 1, 1].
  Tensor earlier;
  std::int64_t tokens() const { return k.dim(-2); }
};
Block block_of(const Views& views, const Policy& policy, std::int64_t begin, std::int64_t end);

// Equal parts of a block side by side, [chunks, batch, heads, tokens, ..], that write; and rows of them as one.
Block split_chunks(const Block& all, std::int64_t chunks);
Tensor join_chunks(Tensor rows);

// Calls step(begin, end) for the tokens of each chunk from token `from` on; the last chunk may be partial.
void walk_chunks(std::int64_t from, std::int64_t time, std::int64_t chunk,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& step);

// The fast weights at one moment, and what their optimiser carries besides.
struct State {
  Weights weights;
  std::vector<std::vector<FastWeight>> slots;  // of each weight

  static State start(const Learner& learner, const Weights& weights);
  std::vector<Tensor> of(std::size_t weight) const;  // the weight, then its slots
  std::vector<Tensor> flat() const;
  State with(std::span<const Tensor> flat) const;
  std::vector<std::string> names() const;  // of flat()
};

// The first state again where `starts` is 1, [batch, 1, 1, 1]; undefined: nowhere.
State begun(const State& s, const State& first, Tensor starts);

// Learner and start with only policy.trained learning; the rest are constants.
struct Trained {
  std::unique_ptr<Learner> holder;  // owns the restricted learner, if there is one
  const Learner* learner;
  State start;
};
Trained restrict_to(const Learner& learner, const State& start, const std::vector<std::string>& trained);
// The whole state again, with what those that learn have become.
State with_trained(State whole, const State& learnt, const std::vector<std::string>& trained);

Gates each(const Gates& gates, const std::function<Tensor(Tensor)>& fn);
// Gate rows as columns: of a block with one token, [.., 1, g] -> [.., g, 1]; of a chunk, their mean over its
// tokens.
Gates columns_of(const Gates& rows);
Gates chunk_gates(const Gates& rows);
// A gate that multiplies the gradient of each token as "rate" does, and that no optimiser reads: the size of what a token
// writes. Who looks at a loop gives ones, to differentiate by them. (A learner may make its rates itself, and its
// optimiser may read them: Mamba-2 forgets by its rate.)
inline constexpr const char* kWriteSize = "size of the write";
// What multiplies the gradients of a weight, [.., tokens, 1]; undefined: nothing.
Tensor rate_of(const Policy& policy, const Gates& gates, const FastWeight& weight);

}  // namespace nestgrad::ttt
