// The promise: functions are also traced, compiled and called while the program ends, by what was given to atexit() and by destructors of
// static objects that were there before the library was used; with the same bits, and without its threads. Ends with 0, or says what is wrong.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "engine/core/threads.h"
#include "engine/plan/native.h"
#include "nestgrad.h"

using namespace nestgrad;

namespace {

// Made and run at need, with all that a first call does.
std::vector<Array> made_and_run(std::int64_t n) {
  const Spec spec{DType::f32, {n, n}};
  const Function f = trace(
      [&](Tensor a, Tensor b) {
        const ScanResult r = scan(
            [](const std::vector<Tensor>& c, const std::vector<Tensor>& x) -> StepOutput {
              return {{c[0] * 0.5 + x[0]}, {}};
            },
            {sum(a, {0})}, {a});
        const Tensor y = softmax(matmul(tanh(matmul(a, b)), b) + 0.5, -1);
        return std::vector<Tensor>{y, grad(sum(square(y)), a), r.carries[0]};
      },
      spec, spec);
  return f.plan({.compile = Compile::background})
      .run({random_normal(spec, 0, 1, 1, 0), random_normal(spec, 0, 1, 1, 1)});
}

std::vector<Array> expected;
std::optional<Function> kept;

[[noreturn]] void wrong(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void check(const char* when) {
  const std::string at = when;
  try {
    const std::vector<Array> now = made_and_run(400);
    for (std::size_t i = 0; i < now.size(); ++i)
      if (!now[i].same_bits(expected[i])) wrong("other bits " + at);
    static std::int64_t others = 400;
    made_and_run(others += 8);  // whose text, with its sizes, nothing has compiled
    wait_for_compiler();
    if (ttt::system_named("ttt-linear").name != "ttt-linear") wrong("another learner " + at);
    const Array x = random_normal({DType::f32, {700, 700}}, 0, 1, 1, 2);
    if ((*kept)(x).size() != x.size()) wrong("another size " + at);
  } catch (const std::exception& e) {
    wrong(e.what() + (" " + at));
  }
  std::printf("well %s\n", when);
}

struct Static {
  ~Static() { check("in the destructor of a static object"); }
} last;

}  // namespace

int main() {
  std::atexit([] { check("in a function given to atexit()"); });
  set_thread_count(3);
  kept = trace([](Tensor x) { return exp(x) * x + tanh(x); }, Spec{DType::f32, {700, 700}});
  expected = made_and_run(400);
  check("in main");
  return 0;
}
