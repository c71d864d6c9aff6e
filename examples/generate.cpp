// generate: text from a trained model, read and written byte by byte with carried inner state.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "examples/common/program.h"
#include "examples/common/sample.h"
#include "models/trainer.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Continues a prompt with a model that train_lm trained. "
      "The layers go on learning from what they read and write.",
      "generate"};
  std::string checkpoint, prompt;
  std::int64_t bytes = 400;
  double temperature = 0.8;
  std::uint64_t seed = 0;
  app.add_option("--checkpoint", checkpoint, "Folder with config.json and checkpoint.safetensors")
      ->required();
  app.add_option("--prompt", prompt, "Text to continue")->required();
  app.add_option("--bytes", bytes, "Bytes to write")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--temperature", temperature, "0 takes the likeliest byte")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", seed, "Equal seeds give equal text")->capture_default_str();
  nestgrad::add_device_option(app);
  return nestgrad::run_program(argc, argv, app, [&] {
    if (prompt.empty()) throw CLI::ValidationError("--prompt", "must not be empty");
    const nestgrad::Checkpoint model = nestgrad::read_checkpoint(checkpoint);
    fmt::print("{}", prompt);
    nestgrad::sample_text(model.config, model.params, prompt, bytes, temperature, seed, [](char c) {
      std::fputc(c, stdout);
      std::fflush(stdout);
    });
    fmt::print("\n");
  });
}
