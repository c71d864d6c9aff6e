// The promise: every published system that is causal is a layer
// that trains, from the starting values that it declares.
#include "models/trainer.h"
#include "tests/testing.h"
#include "ttt/system.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_SUITE("slow") {
  TEST_CASE(
      "a language model with layers of any causal system trains: no step overflows, and the loss falls") {
    std::vector<std::uint8_t> text;
    for (int i = 0; i < 4000; ++i)
      text.push_back(static_cast<std::uint8_t>("abcde fgh\n"[(i * i / 7 + i) % 10]));
    const ByteCorpus corpus{text, {text.begin(), text.begin() + 600}};
    for (const std::string& learner : layer_names()) {
      CAPTURE(learner);
      TrainingOptions options;
      options.model = {.hidden_size = 16,
                       .intermediate_size = 32,
                       .num_hidden_layers = 2,
                       .num_attention_heads = 2,
                       .ttt_layer_type = layer_type(learner),
                       .mini_batch_size = 16};
      options.steps = 40, options.batch = 4, options.context = 64, options.warmup = 5, options.lr = 1e-2;
      Trainer trainer(options, corpus);
      const double first = trainer.step().loss;
      double last = first;
      while (trainer.steps_done() < options.steps) REQUIRE_NOTHROW(last = trainer.step().loss);
      CHECK(last < 0.5 * first);
    }
  }
}
