// Policy: how a learner is run along a sequence. Every choice is explicit; none is hidden in a learner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/error.h"

namespace nestgrad::ttt {

struct Policy {
  // The tokens of a chunk have their gradients taken at the same weights: those at its beginning.
  // 1: online. kWholeSequence: batch gradient descent.
  static constexpr std::int64_t kWholeSequence = 0;
  std::int64_t chunk = 16;

  enum class Update : std::uint8_t {
    per_token,  // one optimiser step a token, with that token's gradient (TTT, delta rule, Titans)
    per_chunk,  // one optimiser step a chunk, with the sum (or mean) of its tokens' gradients (LaCT, ViT^3)
  } update = Update::per_token;

  enum class Read : std::uint8_t {
    after_write,   // a token (per_chunk: a chunk) reads weights that have learnt from it
    before_write,  // it reads the weights as they were before
  } read = Read::after_write;

  int steps = 1;                     // optimiser steps per chunk, each with gradients of its own (per_chunk)
  bool average = false;              // the chunk's gradient is the mean over its tokens (per_chunk)
  bool ascent = false;               // climb the inner loss instead of descending
  bool query_is_key = false;         // read with k instead of q
  bool partial_chunk_writes = true;  // does a last chunk with fewer tokens write? (per_chunk)
  bool carry = false;                // the next sequence starts from the last weights, not from init()
  std::vector<std::string> trained = {};  // names of the fast weights that learn; empty: all

  // How far the outer gradient follows the learning.
  enum class Meta : std::uint8_t {
    full,  // through every inner gradient
    first_order,  // the weights that learn (trained) count as constants where an inner gradient is taken, also for gates
                  // that the learner makes of them (Learner::own_gates)
    truncated,  // what learns, weights and all that the optimiser keeps, is cut from its past every `horizon` chunks; a token that is read by itself
                // (train_step) does not know where that is, and cuts nothing
  } meta = Meta::full;
  std::int64_t horizon = 1;

  // Can a token's answer be given before the tokens after it are known? Only if the learner's predict() keeps
  // tokens apart as well: why_not_causal (ttt/derived_learner.h) says it of both.
  bool causal() const { return update == Update::per_token || read == Read::before_write; }
  // Tokens of a whole chunk in a sequence of `time` tokens, which may be shorter.
  std::int64_t chunk_of(std::int64_t time) const { return chunk == kWholeSequence ? time : chunk; }
  // Does a chunk with so many tokens write, in a sequence of `time` tokens?
  bool writes(std::int64_t tokens, std::int64_t time) const {
    return update == Update::per_token || partial_chunk_writes || tokens == chunk_of(time);
  }
  void check() const;  // ConfigError for a choice that makes no sense
  std::string str() const;
};

}  // namespace nestgrad::ttt
