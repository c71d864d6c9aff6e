// Random programs of the engine, with their derivatives up to the third order; compare.h says what is
// compared. At the end of a campaign of 2000 cases or more every op of the table, and every kind of step,
// must have been in one.
#include <fmt/format.h>

#include <set>

#include "tests/digest.h"
#include "tests/fuzz/campaign.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/random_graph.h"

namespace nestgrad::fuzz {

namespace {

struct Coverage {
  long cases = 0, derivatives = 0, skipped = 0, on_cuda = 0;
  std::set<std::string> ops;
};
Coverage covered;

void check(Draws& draws) {
  const Subject s = random_subject(draws);
  draws.say(s.f.str());
  ++covered.cases;
  for_each_node(s.f.graph().nodes(), [](const GraphNode& n) { covered.ops.emplace(n.op->name); });
  const Arrays in = numbers_for(s.specs, draws.seed(), draws.one_in(3));
  check_texts(s);
  check_plans(s, in, draws);
  check_replays(s, in, draws);
  check_nonfinite(s, in);
  if (Device::cuda_count() > 0 && draws.one_in(6)) {
    check_cuda(s, in, draws);
    ++covered.on_cuda;
  }
  if (s.orders > 1 && s.exact_gradients)
    ++(check_derivatives(s, draws.seed()) ? covered.derivatives : covered.skipped);
}

// The bits of a program's values and derivatives.
std::string bits_of(Draws& draws) {
  const Subject s = random_subject(draws);
  ++covered.cases;
  testing::Digest digest;
  digest.add(s.f(numbers_for(s.specs, draws.seed(), draws.one_in(3))));
  return digest.str();
}

// What a long campaign never met.
int report(int code) {
  if (covered.cases < 2000 || covered.ops.empty()) return code;
  fmt::print(
      "{} programs ran on CUDA; the derivatives of {} were "
      "held against differences, of {} nothing could be said\n",
      covered.on_cuda, covered.derivatives, covered.skipped);
  std::string missing;
  for (const Op* op : op_table())
    if (!covered.ops.contains(std::string(op->name))) missing += fmt::format(" {}", op->name);
  for (const auto& [kind, times] : RandomGraph::made())
    if (times == 0) missing += fmt::format(" {}", kind);
  if (missing.empty()) return code;
  fmt::print("never in a program:{}\n", missing);
  return 1;
}

}  // namespace

}  // namespace nestgrad::fuzz

int main(int argc, char** argv) {
  using namespace nestgrad::fuzz;
  return report(
      run_campaign(argc, argv, "programs_fuzz",
                   "Random programs, with derivatives, run in every way that there is. After 2000 cases "
                   "every op of the table must have been in one.",
                   check, bits_of));
}
