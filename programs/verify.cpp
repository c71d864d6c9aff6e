// verify: a kernel's numbers held to those of a reference.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "ttt/verification.h"

using namespace nestgrad;

namespace {

using Json = nlohmann::ordered_json;
using Kind = ttt::TensorVerdict::Kind;

std::string_view text_of(Kind kind) {
  switch (kind) {
    case Kind::agrees:
      return "agrees";
    case Kind::differs:
      return "differs";
    case Kind::not_finite:
      return "not finite";
    case Kind::misshapen:
      return "misshapen";
    case Kind::wrong_type:
      return "wrong type";
    case Kind::missing:
      return "missing";
    case Kind::left_over:
      break;
  }
  return "left over";
}

Json to_json(const ttt::Verification& v) {
  Json tensors = Json::object();
  for (const ttt::TensorVerdict& t : v.tensors) {
    Json& one = tensors[t.name] = {{"verdict", text_of(t.kind)}, {"passed", t.passed}, {"text", t.text}};
    if (!t.hints.empty()) one["hints"] = t.hints;
    if (t.kind != Kind::agrees && t.kind != Kind::differs) continue;
    one.update({{"error", t.error},
                {"tolerance", t.tolerance},
                {"worst", t.worst},
                {"theirs", t.theirs},
                {"expected", t.expected},
                {"beyond", t.range},
                {"share", t.share}});
  }
  return {{"passed", v.passed()}, {"compared", v.compared}, {"tensors", tensors}};
}

}  // namespace

int nestgrad::programs::verify(int argc, char** argv) {
  CLI::App app{
      "Compares a kernel's numbers with those that `reference` wrote, under the same names: of each tensor how\n"
      "far it is off, where most, and from which token on. Exit code 1 if one is beyond the tolerance,\n"
      "misshapen, not finite or not in the reference, or if there is no output to compare.",
      "verify"};
  std::string reference, kernel;
  ttt::VerifyOptions options;
  bool json = false;
  app.add_option("--reference", reference, "File that `reference` wrote")->required()->check(not_empty);
  app.add_option("--kernel", kernel, "File with the kernel's outputs, and its inputs if you like")
      ->required()
      ->check(not_empty);
  app.add_option("--tolerance", options.tolerance,
                 "Largest max |a-b| / max |b| that passes (default, by the coarser of the types of both: f64 "
                 "1e-9, f32 2e-4, f16 and bf16 2e-2)")
      ->check(positive, "POSITIVE");
  app.add_flag("--all", options.all, "An output that the kernel's file does not have fails");
  app.add_flag("--json", json, "Last line of output: the results as one JSON object");
  return run_program(argc, argv, app, [&] {
    const ttt::Verification v = ttt::verify(read_safetensors(reference), read_safetensors(kernel), options);
    fmt::print("{}", escaped(v.str()));
    if (json) print_json(to_json(v));
    if (!v.passed())
      throw ValueError(fmt::format("{} does not agree with {}", printable(kernel), printable(reference)));
  });
}
