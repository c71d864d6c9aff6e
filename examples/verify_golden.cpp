// verify_golden: holds this library against numbers that the official implementations computed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "examples/common/program.h"
#include "models/golden.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Compares whole language models with golden files of the official implementations: loss, logits, the "
      "gradient of\n"
      "every parameter, and decoding token by token. One line a file:\n"
      "  FILE PASS|FAIL loss_err logits_err worst_grad_err worst_grad_name decode_err     (relative, max "
      "|a-b| / max |b|)\n"
      "Exit code 1 if any file fails.",
      "verify_golden"};
  std::vector<std::string> files;
  std::string dtype = "f64", form = "auto";
  double tolerance = 0;
  app.add_option("files", files, "Golden files (safetensors)")->required();
  app.add_option("--dtype", dtype, "Element type to compute in")
      ->check(CLI::IsMember({"f64", "f32"}))
      ->capture_default_str();
  app.add_option("--form", form, "Form of the inner loop")
      ->check(CLI::IsMember({"auto", "dual", "primal"}))
      ->capture_default_str();
  app.add_option("--tolerance", tolerance,
                 "Largest relative error that passes (default: 1e-9 in f64, 2e-4 in f32)")
      ->check(CLI::PositiveNumber);
  return nestgrad::run_program(argc, argv, app, [&] {
    using nestgrad::ttt::FormChoice;
    const bool f64 = dtype == "f64";
    const double limit = tolerance > 0 ? tolerance : f64 ? 1e-9 : 2e-4;
    const FormChoice choice = form == "dual"     ? FormChoice::dual
                              : form == "primal" ? FormChoice::primal
                                                 : FormChoice::automatic;
    std::size_t failed = 0;
    for (const std::string& file : files) {
      const nestgrad::GoldenReport r =
          nestgrad::verify_golden(file, f64 ? nestgrad::DType::f64 : nestgrad::DType::f32, choice);
      const bool pass = r.passes(limit);
      failed += pass ? 0 : 1;
      fmt::print("{} {} {:.1e} {:.1e} {:.1e} {} {:.1e}\n", file, pass ? "PASS" : "FAIL", r.loss_error,
                 r.logits_error, r.worst_grad_error, r.worst_grad_name, r.decode_error);
      std::fflush(stdout);
    }
    if (failed)
      throw nestgrad::ValueError(
          fmt::format("{} of {} files differ by more than {:g}", failed, files.size(), limit));
  });
}
