// Causal softmax attention with rotary embeddings: the baseline sequence layer.
#pragma once

#include "ttt/layer.h"

namespace nestgrad {

class Attention {
 public:
  // The task may give keys and values of fewer heads than queries, each read by as many heads of these
  // (ttt/attention.h): k and v [batch, time, groups * width / heads]. capacity: keys and values kept while
  // stepping.
  Attention(const ttt::TTTLayerOptions& options, const Params& params, std::unique_ptr<ttt::Task> task,
            std::string name, std::int64_t capacity)
      : options_(options),
        params_(params),
        task_(std::move(task)),
        name_(std::move(name)),
        capacity_(capacity) {}
  // x [batch, time, width] -> [batch, time, width].
  Tensor operator()(Tensor x, ttt::Stream& stream) const;

 private:
  ttt::TTTLayerOptions options_;
  Params params_;
  std::unique_ptr<ttt::Task> task_;
  std::string name_;
  std::int64_t capacity_;
};

}  // namespace nestgrad
