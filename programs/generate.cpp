// generate: text from a trained model, read and written byte by byte with carried inner state.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "models/sample.h"
#include "programs/given_model.h"
#include "programs/program.h"
#include "programs/programs.h"

int nestgrad::programs::generate(int argc, char** argv) {
  CLI::App app{
      "Continues a prompt with a model that train_lm trained, or a published one. "
      "The layers go on learning from what they read and write.",
      "generate"};
  std::string checkpoint, prompt, tokenizer_path;
  std::int64_t bytes = 400;
  double temperature = 0.8;
  std::uint64_t seed = 0;
  app.add_option("--checkpoint", checkpoint,
                 "Folder of a model, or its file of weights (docs/published-models.md)")
      ->required()
      ->check(not_empty);
  app.add_option("--tokenizer", tokenizer_path,
                 "tokenizer.model (default: that beside the weights, or bytes)")
      ->check(not_empty);
  app.add_option("--prompt", prompt, "Text to continue")->required();
  app.add_option("--bytes", bytes, "Bytes to write, or a few more")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--temperature", temperature, "0 takes the likeliest")
      ->check(not_negative, "NONNEGATIVE")
      ->capture_default_str();
  const CLI::Option* const seed_option =
      app.add_option("--seed", seed, "Equal seeds give equal text")->capture_default_str();
  nestgrad::add_device_option(app);
  return nestgrad::run_program(argc, argv, app, [&] {
    if (temperature == 0 && seed_option->count() > 0)
      throw CLI::ValidationError("--seed", "changes nothing at --temperature 0, which takes the likeliest");
    const nestgrad::Checkpoint model = nestgrad::given_model(checkpoint);
    const auto tokenizer = nestgrad::read_tokenizer(checkpoint, model.config.vocab_size, tokenizer_path);
    fmt::print("{}", prompt);
    const auto show = [](char c) {
      std::fputc(c, stdout);
      pass_on();  // and no more is made for a reader who has gone
    };
    nestgrad::sample_text(model.config, model.params, prompt, bytes, temperature, seed, show, *tokenizer);
    fmt::print("\n");
  });
}
