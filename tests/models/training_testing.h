// What tests of training share, on one process and on several: a text, small settings, and the checkpoint of a run.
#pragma once

#include "engine/io/file.h"
#include "engine/processes/threads.h"
#include "models/trainer.h"
#include "tests/lent_transport.h"
#include "tests/temporary_folder.h"

namespace nestgrad::testing {

inline ByteCorpus text_of_documents() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 3000; ++i)
    text.push_back(static_cast<std::uint8_t>(i % 37 > 34 ? '\n' : "abcde fgh."[(i * i / 7 + i) % 10]));
  return {text, {text.begin(), text.begin() + 600}};
}

inline TrainingOptions small_training(const std::string& layer) {
  TrainingOptions o;
  o.model = {.hidden_size = 16,
             .intermediate_size = 32,
             .num_hidden_layers = 1,
             .num_attention_heads = 2,
             .ttt_layer_type = layer,
             .mini_batch_size = 4};
  o.steps = 8, o.batch = 4, o.context = 16, o.warmup = 2, o.grains = 4;
  return o;
}

inline std::string checkpoint_of(TrainingOptions o, const ByteCorpus& corpus, int processes, int steps) {
  const TemporaryFolder folder;
  run_as_processes(processes, [&](Transport& all) {
    TrainingOptions mine = o;
    mine.processes = lent(all);
    Trainer trainer(mine, corpus);
    for (int i = 0; i < steps; ++i) trainer.step();
    trainer.save(folder / "checkpoint");
  });
  return read_file(folder / "checkpoint");
}

}  // namespace nestgrad::testing
