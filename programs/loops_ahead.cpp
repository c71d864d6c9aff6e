// loops_ahead: compiles the loops of learners' plans, so that a machine without a compiler has them.
#include "engine/plan/loops_ahead.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/grad.h"
#include "engine/io/file.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "ttt/inner_loop.h"
#include "ttt/system.h"

using namespace nestgrad;

namespace {

struct Options {
  std::vector<std::string> learners;
  std::vector<std::int64_t> dims{64}, chunks{1, 16};
  std::int64_t batch = 1, heads = 12;
  std::string out;
  bool json = false;
};

// The loops of one learner's plans, forward alone and with its gradient.
void gather(const ttt::System& system, const ttt::ProgramSizes& sizes, std::set<std::string>& texts) {
  for (const bool backward : {false, true}) {
    const Function f = ttt::trace_system(system, sizes, DType::f32, [&](const ttt::SystemProgram& p) {
      const Tensor output = ttt::train_along(*p.learner, p.start, p.views, {.policy = p.policy}).output;
      std::vector<Tensor> out{output};
      if (!backward) return out;
      const Tensor cotangent = output.graph().input(output.spec(), "cotangent");
      for (Tensor g : vjp({output}, {cotangent}, p.inputs, {.allow_zero = true})) out.push_back(g);
      return out;
    });
    texts.merge([&] {
      const std::vector<std::string> loops = f.plan({.device = Device::cpu()}).loops();
      return std::set<std::string>(loops.begin(), loops.end());
    }());
  }
}

void run(const Options& o) {
  std::vector<std::string> names = o.learners;
  if (names.empty())
    for (const ttt::System& system : ttt::systems()) names.push_back(system.name);
  ProgressLine progress;
  std::set<std::string> texts;
  std::size_t done = 0;
  for (const std::string& name : names) {
    progress.update(name, static_cast<double>(done++) / static_cast<double>(names.size()));
    for (const std::int64_t dim : o.dims)
      for (const std::int64_t chunk : o.chunks)
        gather(ttt::system_named(name),
               {.batch = o.batch, .heads = o.heads, .dim = dim, .time = 8 * chunk, .chunk = chunk}, texts);
  }
  progress.update(fmt::format("compiling {} loops", texts.size()), 1);
  const std::string path = compile_ahead(native_target(), {texts.begin(), texts.end()}, o.out);
  if (o.json) return print_json({{"library", path}, {"loops", texts.size()}});
  fmt::print("{}: {} loops\n", printable(path), texts.size());
}

}  // namespace

int nestgrad::programs::loops_ahead(int argc, char** argv) {
  CLI::App app{
      "Compiles the elementwise loops of learners' plans, forward and backward, to a library. A machine without a\n"
      "compiler uses them with NESTGRAD_LOOPS=FOLDER and NESTGRAD_COMPILE=background.",
      "loops_ahead"};
  Options o;
  app.add_option("--learner", o.learners, "Names of learners; all of them unless given");
  app.add_option("--dim", o.dims, "Sizes of a head")->check(positive)->capture_default_str();
  app.add_option("--chunk", o.chunks, "Tokens of a chunk")->check(positive)->capture_default_str();
  app.add_option("--heads", o.heads, "Number of heads")->check(positive)->capture_default_str();
  app.add_option("--batch", o.batch, "Number of sequences")->check(positive)->capture_default_str();
  app.add_option("--out", o.out, "Folder of the library")->required()->check(not_empty);
  app.add_flag("--json", o.json, "Print the result as a JSON object");
  return run_program(argc, argv, app, [&] {
    for (const std::string& name : o.learners) {
      try {
        ttt::system_named(name);
      } catch (const ConfigError& e) {
        throw CLI::ValidationError("--learner", e.what());
      }
    }
    run(o);
  });
}
