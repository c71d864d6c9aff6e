// verify_golden: holds this library against numbers that the official implementations computed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "programs/program.h"
#include "tests/golden_check/verify.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Compares with golden files of the official implementations. Whole language models: loss, logits and "
      "block outputs,\n"
      "the gradient of every parameter, and decoding token by token. Single operations: every output, and "
      "the gradient\n"
      "with respect to every input. One line a file (errors are relative, max |a-b| / max |b|; - where there "
      "is none):\n"
      "  FILE PASS|FAIL loss_err output_err worst_grad_err worst_grad_name decode_err [form]\n"
      "       [(no gradients)|(gradients of 3 of 7 inputs)] [(not there: NAME, ..)] [(not read: NAME, ..)]\n"
      "  FILE REFUSED why (no golden file of a known kind; one that says it was made in a way that cannot be checked, with a\n"
      "       count or a number that makes no sense, or expects what nobody computes here; or nothing that this form can be\n"
      "       run with)\n"
      "A file may have a part of what files of its kind have. What its metadata leave out is as the operation is defined.\n"
      "TTT-MLP runs with the rounded constants of the official inner gradient (its gelu's slope), without which gradients\n"
      "differ by up to 2e-8; the library's own learner is exact.\n"
      "All files are tried. Exit code 1 if any does not pass.",
      "verify_golden"};
  std::vector<std::string> files;
  std::string dtype = "f64", form = "auto";
  double tolerance = 0;
  app.add_option("files", files, "Golden files (safetensors)")->required();
  app.add_option("--dtype", dtype, "Element type to compute in")
      ->check(CLI::IsMember({"f64", "f32"}))
      ->capture_default_str();
  app.add_option("--form", form, "Form of the inner loop: auto, primal, dual, parallel, wy or chunk-parallel")
      ->check(CLI::IsMember({"auto", "primal", "dual", "parallel", "wy", "chunk-parallel"}))
      ->capture_default_str();
  app.add_option("--tolerance", tolerance,
                 "Largest relative error that passes (default: 1e-9 in f64, 2e-4 in f32)")
      ->check(CLI::PositiveNumber);
  nestgrad::add_device_option(app);
  return nestgrad::run_program(argc, argv, app, [&] {
    const bool f64 = dtype == "f64";
    const double limit = tolerance > 0 ? tolerance : f64 ? 1e-9 : 2e-4;
    const nestgrad::GoldenOptions options{
        .dtype = f64 ? nestgrad::DType::f64 : nestgrad::DType::f32,
        .form = nestgrad::ttt::form_named(form == "auto" ? "automatic" : form)};
    using Kind = nestgrad::GoldenVerdict::Kind;
    std::size_t differ = 0, refused = 0;
    for (const std::string& file : files) {
      const nestgrad::GoldenVerdict verdict = nestgrad::golden_verdict(file, options, limit);
      differ += verdict.kind == Kind::differs, refused += verdict.kind == Kind::refused;
      fmt::print("{}\n", nestgrad::escaped(verdict.line));
      nestgrad::pass_on();
    }
    if (differ + refused > 0)
      throw nestgrad::ValueError(fmt::format("of {} files {} differ by more than {:g} and {} are refused",
                                             files.size(), differ, limit, refused));
  });
}
