// The promise: the table of passes is what happens, and what the documentation shows; each can be looked at.
#include "engine/plan/passes.h"

#include <fstream>
#include <sstream>

#include "autograd/custom.h"
#include "tests/autograd/deriving.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Something to do for every pass.
Function everything() {
  return trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor next = tanh(matmul(c[0], transpose(transpose(x[0]))) * 2 * 3);
              return {{next}, {exp(next) * x[0]}};
            },
            {in[0]}, {in[1]});
        const Tensor marked = checkpoint([&] { return Tensors{tanh(sin(exp(-r.ys[0])))}; })[0];
        const Tensor y = sum(square(transpose(transpose(marked)))) + sum(exp(in[0] * 2));
        Tensors out = grad(y, in);
        out.push_back(y);
        return out;
      },
      {f64({2, 3, 3}), f64({5, 2, 3, 3})});
}

}  // namespace

TEST_CASE("passes: the documentation has the table's rows, in their order") {
  const std::string text = text_of(NESTGRAD_TEST_DATA "/../docs/performance.md");
  std::size_t at = 0;
  for (const Pass& pass : passes()) {
    const std::string option = pass.option.empty() ? "" : fmt::format("`{}`", pass.option);
    const std::string row =
        fmt::format("| {} | {} | `{}` | {} |\n", pass.name, pass.sentence, pass.where, option);
    INFO(row);
    const std::size_t found = text.find(row, at);
    REQUIRE(found != std::string::npos);
    at = found;
  }
}

TEST_CASE("passes: the files that are named exist") {
  for (const Pass& pass : passes()) {
    std::stringstream names{std::string(pass.where)};
    for (std::string name; std::getline(names, name, ',');) {
      name.erase(0, name.find_first_not_of(' '));
      CAPTURE(name);
      CHECK(std::ifstream(std::string(NESTGRAD_TEST_DATA) + "/../" + name).good());
    }
  }
}

TEST_CASE("passes: each has something to do here, keeps what it says, and is shown by explain") {
  const Function f = everything();
  const std::string text = f.explain({.recompute_above = 0});
  std::size_t at = text.find("as it was traced");
  REQUIRE(at == 0);
  for (const Pass& pass : passes()) {
    if (!pass.is_on) continue;  // a decision of the compiler
    if (pass.name == "suit the backend" && default_device().is_cpu()) continue;  // which has none
    CAPTURE(pass.name);
    const std::size_t found = text.find(fmt::format("\n{}: {}", pass.name, pass.sentence), at);
    REQUIRE(found != std::string::npos);
    at = found;
    CHECK(!contains(text.substr(text.find('\n', at + 1), 16), "nothing to do"));
  }
  CHECK(contains(text.substr(at), "\nthe program\n"));
  CHECK(contains(text.substr(at), "slices 2"));
  CHECK(!contains(f.explain({.rematerialize = false}), "\nrematerialize: "));
  const Arrays in = random({f.input_spec(0), f.input_spec(1)}, 3);
  const Arrays all = f.plan({}).run(in);
  CHECK(same_bits(f.plan({.rematerialize = false}).run(in), all));
  CHECK(same_bits(f.plan({.fuse = false}).run(in), all));
  CHECK(same_bits(f.plan({.reuse = false}).run(in), all));
  CHECK(max_error(f.plan({.simplify = false}).run(in), all) < 1e-12);
  CHECK(max_error(f.plan({.slice = false}).run(in), all) < 1e-12);
}
