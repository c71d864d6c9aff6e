#include "tests/fuzz/slice_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "autograd/grad.h"
#include "engine/processes/threads.h"
#include "ops/accumulate.h"
#include "ops/collectives.h"
#include "tests/fuzz/answers.h"
#include "tests/fuzz/system_checks.h"
#include "tests/lent_transport.h"
#include "ttt/slices.h"

namespace nestgrad::fuzz {

namespace {

using ttt::SliceForm;
using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

std::size_t rows_of(const LoopCase& l) { return 3 + l.gates.size(); }

// The answers, then derivatives by the inputs, of a loss to which each token adds its own. ranks: the tokens are a slice.
Named answered(const TracedCase& s, Tensor answers, int order, const ProcessGroup* ranks) {
  Named out;
  out.add("the answers", answers);
  const auto of_all = [&](Tensor x) { return ranks ? all_sum(x, *ranks) : x; };
  Tensor y = of_all(sum(square(answers) * 0.5 + sin(3.0 * answers)));
  for (int n = 1; n <= order; ++n) {
    const Tensors g = grad(y, s.inputs, {.allow_zero = true});
    Tensor own_squares, squares;
    for (std::size_t i = 0; i < g.size(); ++i) {
      out.add(fmt::format("derivative {} by {}", n, input_name(s.inputs[i].graph().node(s.inputs[i].id()))),
              g[i], n);
      const Tensor part = sum(square(g[i]));
      accumulate(i < rows_of(s.loop) ? own_squares : squares, part);
    }
    y = of_all(own_squares);
    accumulate(y, squares);
  }
  return out;
}

// Tokens [begin, end) of rows [batch, heads, time, dim].
Array tokens_of(const Array& rows, std::int64_t begin, std::int64_t end) {
  const Shape& shape = rows.shape();
  Array out(DType::f64, {shape[0], shape[1], end - begin, shape[3]});
  for (std::int64_t m = 0; m < shape[0] * shape[1]; ++m)
    std::copy_n(rows.as<double>().begin() + (m * shape[2] + begin) * shape[3], (end - begin) * shape[3],
                out.as<double>().begin() + m * (end - begin) * shape[3]);
  return out;
}

// What the ranks answer, each of its slice, as answers about the whole.
Answers sliced(const LoopCase& l, int slices, SliceForm form, int order, const Answers& whole,
               const Arrays& numbers) {
  const std::int64_t tokens = l.time / slices;
  Answers out = whole;
  for (std::size_t i = 0; i < out.numbers.size(); ++i) out.numbers[i] = out.numbers[i].clone();
  std::mutex mutex;
  run_as_processes(slices, [&](Transport& rank) {
    const ProcessGroup group(testing::lent(rank));
    const Function f = program(
        l, tokens,
        [&](const TracedCase& s) {
          const Tensor answers = ttt::train_along_slices(
              s.learner, s.start, s.views, options_of(l, ttt::FormChoice::automatic), group, form);
          return answered(s, answers, order, &group).values;
        },
        &group);
    const std::int64_t begin = rank.rank() * tokens, end = begin + tokens;
    Arrays in = numbers;
    for (std::size_t i = 0; i < rows_of(l); ++i) in[i] = tokens_of(in[i], begin, end);
    const Arrays got = f(in);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < got.size(); ++i) {
      Array& all = out.numbers[i];
      const Shape &part = got[i].shape(), &shape = all.shape();
      if (part == shape) {
        all = got[i];
        continue;
      }
      for (std::int64_t m = 0; m < shape[0] * shape[1]; ++m)
        std::copy_n(got[i].as<double>().begin() + m * tokens * shape[3], tokens * shape[3],
                    all.as<double>().begin() + (m * l.time + begin) * shape[3]);
    }
  });
  return out;
}

// Why this is not taken, empty if it is.
std::string refusal(const LoopCase& l, int slices, SliceForm form) {
  std::string why;
  program(l, l.time / slices, [&](const TracedCase& s) {
    try {
      ttt::choose_slices(system_of(l), {s.views.k.dim(1), s.views.k.dim(3)}, s.learner, s.start, s.views,
                         options_of(l, ttt::FormChoice::automatic), slices, "random", form);
    } catch (const ConfigError& e) {
      why = e.what();
    }
    return Tensors{s.views.k};
  });
  return why;
}

}  // namespace

void check_slices(const LoopCase& given, const Cut& cut, int order) {
  LoopCase l = given;
  const std::int64_t chunk = l.policy.chunk == ttt::Policy::kWholeSequence ? 3 : l.policy.chunk;
  const std::int64_t tokens = std::max<std::int64_t>(1, cut.chunks * chunk + cut.more);
  l.time = cut.slices * tokens;
  if (l.time > 24) return;
  Arrays numbers;
  Answers whole;
  const Function f = program(l, l.time, [&](const TracedCase& s) {
    const Named named = answered(s, in_form(ttt::FormChoice::automatic)(s).output, order, nullptr);
    whole.names = named.names, whole.order = named.order;
    return named.values;
  });
  numbers = numbers_for(l, f);
  whole.numbers = f(numbers);
  if (whole.explode()) return;
  for (const SliceForm form : {SliceForm::exchange, SliceForm::pipeline}) {
    const std::string refused = refusal(l, cut.slices, form);
    const bool is_whole = l.policy.chunk != ttt::Policy::kWholeSequence && tokens % l.policy.chunk == 0;
    if (!refused.empty() && form == SliceForm::pipeline && is_whole)
      throw Finding("slices of whole chunks are not passed on: " + refused);
    if (refused.empty())
      require_same(fmt::format("{} slices of {} tokens, {}", cut.slices, tokens, name(form)),
                   sliced(l, cut.slices, form, order, whole, numbers), whole);
  }
}

}  // namespace nestgrad::fuzz
