// Validation: what a model of bytes makes of text that it was not trained on.
#pragma once

#include <optional>

#include "engine/processes/transport.h"
#include "models/documents.h"
#include "models/traced_model.h"
#include "ttt/stream.h"

namespace nestgrad {

// Averages over validation windows.
struct Validation {
  double loss = 0;  // nats per byte
  // [context]; of packed documents by the place in a document, as far as they go
  std::vector<double> loss_by_position;
  // Neither of packed documents nor of sequences that are cut in time. Per layer that is a learner, [context], averaged over
  // sequences and heads: the inner loss of each token at the sequence's first weights, before and after its own gradient step.
  struct Inner {
    std::string layer;
    std::vector<double> initial, before, after;
  };
  std::vector<Inner> inner;

  std::int64_t context = 0;
  bool packed = false;  // of packed documents
  // Of loss_by_position, fractions of the context. Nothing where no token stands there: a context of 3 has no first quarter, and
  // short documents have no last one.
  // ValueError for numbers that are no part of it.
  std::optional<double> mean_between(double from, double to) const;
};

// tokens i32 [batch, context + 1] -> loss of each next one, [batch, context]. step: how many training steps have been
// done, []; undefined where nothing is trained.
using TokenLossFn =
    std::function<Tensor(const Params& params, Tensor tokens, Tensor step, ttt::Stream& stream)>;
// The same of packed documents: places f32 [batch, context] as in PackedWindows.
using DocumentLossFn = std::function<Tensor(const Params& params, Tensor tokens, Tensor places)>;

// windows i32 [windows, context + 1], read `batch` at a time, on the default device; what is left behind the last whole
// batch is not read. The batches are shared out among processes, each of which calls it and has the result.
Validation validation_of(const TokenLossFn& losses, const StateDict& params, const Array& windows,
                         std::int64_t batch, Transport& processes);
// Documents one window at a time; the mean is over the tokens that are counted.
Validation validation_of(const DocumentLossFn& losses, const StateDict& params, const PackedWindows& windows,
                         Transport& processes);

// The same of losses that someone else has made: of batches of running text, each token's mean over the batch, and of packed
// windows, each token's.
Validation validation_of_losses(const std::vector<std::vector<double>>& batches);
Validation validation_of_losses(const std::vector<std::vector<double>>& losses, const PackedWindows& windows);

}  // namespace nestgrad
