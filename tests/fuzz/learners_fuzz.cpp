// Random learners. A learner, its optimiser, a policy and sizes are drawn; then all ways of running it have
// to give the same numbers:
//   forms       every form that the plan allows, and the loop by hand: answers, losses, the last state with
//               its slots, gradients with respect to everything, for some those of |gradient|^2
//   resume      the sequence in two parts, cut at a chunk, and two sequences one after the other
//   slices      the sequence cut among ranks, laws exchanged and states passed on, where that is not refused
//   attention   effective_attention, where it does not refuse; of packed documents too
//   decoding    token by token, from nothing but the states of the token before
//   layer       TTTLayer, whole and token by token
//   views       the claims of look/views
//   battery     conformance()
// A refusal has to be a FormError or a ConfigError. The primal form refuses nothing that is drawn, and some
// form runs everything but learners that mix tokens and make a step per token; but what counts its tokens is refused.
#include <fmt/format.h>

#include <algorithm>

#include "tests/digest.h"
#include "tests/fuzz/answers.h"
#include "tests/fuzz/loop_by_hand.h"
#include "tests/fuzz/slice_checks.h"
#include "tests/fuzz/system_checks.h"
#include "ttt/effective_attention.h"

namespace nestgrad::fuzz {

namespace {

using ttt::FormChoice;
using ttt::InnerLoopOptions;
using ttt::InnerLoopResult;
using ttt::Policy;
using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// Does fn refuse? Anything but a FormError or a ConfigError passes through.
template <class Fn>
std::string refusal(Fn fn) {
  try {
    fn();
    return "";
  } catch (const FormError& e) {
    return e.what();
  } catch (const ConfigError& e) {
    return e.what();
  }
}

// ---- forms ----

Answers by_hand(const LoopCase& loop, bool losses, int order) {
  return answers_of(
      loop,
      [&](const TracedCase& traced) {
        InnerLoopResult r = loop_by_hand(traced);
        if (!losses) r.loss_initial = {};
        return r;
      },
      order);
}

Answers up_to(int order, Answers all) {
  while (all.order.back() > order) all.names.pop_back(), all.numbers.pop_back(), all.order.pop_back();
  return all;
}

// Of a step per token: only the primal form may run it, where a chunk is one token.
bool mixes_steps(const LoopCase& l) { return l.learner.mixes && !l.per_chunk(); }

// What counts tokens gives other numbers in one form than in the other. (Where tokens meet, a chunk of as many is a learner's own
// business.) Tokens of a chunk that meet have no steps of their own.
void require_refusals(const LoopCase& l) {
  for (const FormChoice form : {FormChoice::automatic, FormChoice::primal, FormChoice::dual})
    if (refusal([&] { answers_of(l, in_form(form, false), 0); }).empty())
      throw Finding(fmt::format(
          "the {} form runs what counts tokens, or lets those meet that make a step each", name(form)));
}

// Returns whether the learner stays within bounds; if not there is nothing to compare.
bool check_forms(const LoopCase& l, int order, bool losses) {
  const int order_by_hand = l.time > 8 ? 0 : std::min(order, 1);
  const Answers hand = by_hand(l, losses, order_by_hand);
  if (hand.explode()) return false;
  const Answers primal = answers_of(l, in_form(FormChoice::primal, losses), order);
  require_same("the primal form by the loop by hand", up_to(order_by_hand, primal), hand);
  if (primal.explode()) return false;
  FormChoice chosen{};
  const auto run = [&](const TracedCase& s, FormChoice form) {
    InnerLoopResult r = in_form(form, losses)(s);
    if (form == FormChoice::automatic) chosen = r.plan.form;
    return r;
  };
  for (FormChoice form : {FormChoice::automatic, FormChoice::dual, FormChoice::parallel, FormChoice::wy,
                          FormChoice::chunk_parallel}) {
    if (form == chosen && form != FormChoice::automatic) continue;
    Answers found;
    const std::string refused = refusal([&] {
      found = answers_of(
          l, [&](const TracedCase& s) { return run(s, form); }, order);
    });
    if (refused.empty()) require_same(fmt::format("the {} form", name(form)), found, primal);
    else if (form == FormChoice::automatic && !mixes_steps(l)) throw Finding("no form runs it: " + refused);
  }
  return true;
}

// ---- parts of a sequence ----

Named outcome(Tensor output, const ttt::State& state) {
  Named out;
  out.add("the output", output);
  out.add(state);
  return out;
}

void check_resume(const LoopCase& l, int order) {
  const std::int64_t chunk = l.chunk(), chunks = (l.time + chunk - 1) / chunk;
  if (chunks < 2) return;
  const std::int64_t cut = chunk * (chunks / 2);
  const InnerLoopOptions options = options_of(l, FormChoice::automatic);
  const Answers whole = answers_of(l, [&](const TracedCase& s) {
    const InnerLoopResult r = ttt::train_along(s.learner, s.start, s.views, options);
    Named out = outcome(r.output, r.state);
    out.add_derivatives(s.inputs, order);
    return out;
  });
  const Answers parts = answers_of(l, [&](const TracedCase& s) {
    InnerLoopOptions later = options;
    later.chunks_before = constant(Array::of({static_cast<double>(cut / chunk)}, {1}));
    const InnerLoopResult a = ttt::train_along(s.learner, s.start, ttt::part(s.views, 0, cut), options),
                          b = ttt::train_along(s.learner, a.state, ttt::part(s.views, cut, l.time), later);
    Named out = outcome(concat({a.output, b.output}, 2), b.state);
    out.add_derivatives(s.inputs, order);
    return out;
  });
  require_same(fmt::format("cut after {} tokens", cut), parts, whole);
  if (!l.policy.carry) return;
  const Answers each = answers_of(l, [&](const TracedCase& s) {
    const std::vector<InnerLoopResult> r = ttt::train_along_each(
        s.learner, s.start, {ttt::part(s.views, 0, cut), ttt::part(s.views, cut, l.time)}, options);
    return outcome(concat({r[0].output, r[1].output}, 2), r[1].state);
  });
  require_same("two sequences, carried", each, up_to(0, whole));
}

// ---- effective attention ----

// Documents that begin at chunks drawn by `which`, of sequences that are longer than a chunk.
ttt::Views packed(const LoopCase& l, ttt::Views views, std::uint64_t which) {
  std::vector<double> begins;
  for (std::int64_t b = 0; b < l.batch; ++b)
    for (std::int64_t t = 0; t < l.time; ++t)
      begins.push_back(t == 0 || (t % l.chunk() == 0 && (which >> (b + t / l.chunk()) % 16 & 1) == 1) ? 1
                                                                                                      : 0);
  views.starts = constant(Array::of(begins, {l.batch, 1, l.time, 1}));
  views.alignment = l.chunk();
  return views;
}

void check_attention(const LoopCase& l, std::uint64_t documents) {
  const auto outputs = [&](const std::function<Tensor(const TracedCase&)>& fn) {
    return answers_of(l, [&](const TracedCase& s) {
      Named out;
      TracedCase with = s;
      if (documents > 0) with.views = packed(l, s.views, documents);
      out.add("the output", fn(with));
      out.add_derivatives(s.inputs, 1);
      return out;
    });
  };
  Answers found;
  const std::string refused = refusal([&] {
    found = outputs([&](const TracedCase& s) {
      return ttt::effective_attention(s.learner, s.start, s.views, l.policy).output();
    });
  });
  if (!refused.empty()) return;
  require_same("effective attention", found,
               outputs([](const TracedCase& s) { return in_form(FormChoice::primal)(s).output; }));
}

// ---- decoding ----

// One token as a program: its inputs are those of a loop of one token, the token's place, then the states.
struct Step {
  Function function;
  std::vector<std::string> states;
};

Step step_of(const LoopCase& l, ttt::Stream::Mode mode, FormChoice form) {
  Step out;
  out.function = program(l, 1, [&](const TracedCase& s) {
    ttt::Stream stream(mode);
    const Tensor slot = s.start.at(0).value.graph().input(Spec{DType::f64, {1}}, "slot");
    Tensors results{
        ttt::train_step(s.learner, s.start, s.views, slot, options_of(l, form), stream, "learner")};
    for (const ttt::Stream::State& state : stream.states()) {
      out.states.push_back(state.name);
      results.push_back(mode == ttt::Stream::Mode::step ? state.next : state.value);
    }
    return results;
  });
  return out;
}

Array token_of(const Array& rows, std::int64_t t) {
  const std::int64_t time = rows.shape()[2], dim = rows.shape()[3],
                     members = rows.shape()[0] * rows.shape()[1];
  Array out(DType::f64, {rows.shape()[0], rows.shape()[1], 1, dim});
  for (std::int64_t m = 0; m < members; ++m)
    std::copy_n(rows.as<double>().begin() + (m * time + t) * dim, dim, out.as<double>().begin() + m * dim);
  return out;
}

Arrays decoded(const LoopCase& l, const Function& whole, FormChoice form) {
  const Step initial = step_of(l, ttt::Stream::Mode::initial, form),
             step = step_of(l, ttt::Stream::Mode::step, form);
  const Arrays numbers = numbers_for(l, whole);
  const std::size_t rows = 3 + l.gates.size();
  const auto inputs = [&](std::int64_t t, const Arrays& states) {
    Arrays in = numbers;
    for (std::size_t i = 0; i < rows; ++i) in[i] = token_of(in[i], t);
    in.push_back(Array::full(DType::f64, {1}, static_cast<double>(t % l.policy.chunk)));
    in.insert(in.end(), states.begin(), states.end());
    return in;
  };
  Arrays out = initial.function(inputs(0, {})), answers;
  for (std::int64_t t = 0; t < l.time; ++t) {
    out = step.function(inputs(t, Arrays(out.begin() + 1, out.end())));
    answers.push_back(out[0]);
  }
  return answers;
}

void check_decoding(const LoopCase& l, FormChoice form) {
  const Function whole = program(l, l.time, [&](const TracedCase& s) {
    const Tensor output = in_form(FormChoice::primal)(s).output;
    Tensors tokens;
    for (std::int64_t t = 0; t < output.dim(2); ++t) tokens.push_back(slice(output, 2, t, t + 1));
    return tokens;
  });
  Answers found, wanted;
  wanted.numbers = whole(numbers_for(l, whole));
  for (std::size_t t = 0; t < wanted.numbers.size(); ++t) {
    wanted.names.push_back(fmt::format("the answer to token {}", t));
    wanted.order.push_back(0);
  }
  const bool can = l.causal();
  const std::string refused = refusal([&] { found.numbers = decoded(l, whole, form); });
  if (!refused.empty() && can) throw Finding("decoding refuses what is causal: " + refused);
  if (refused.empty() && !can) throw Finding("decoding runs what is not causal");
  if (refused.empty()) require_same(fmt::format("decoding, {} form", name(form)), found, wanted);
}

struct Asked {
  int order;  // of derivatives
  bool losses;
};
Asked draw_asked(Draws& draws) { return {draws.of<int>({0, 1, 0, 1, 0, 1, 0, 2}), draws.one_in(2)}; }

// The bits of what the form that is chosen makes of a case.
std::string bits_of(Draws& draws) {
  const Asked asked = draw_asked(draws);
  const LoopCase l = draw_loop_case(draws);
  testing::Digest digest;
  const std::string refused = refusal(
      [&] { digest.add(answers_of(l, in_form(FormChoice::automatic, asked.losses), asked.order).numbers); });
  return refused.empty() ? digest.str() : refused;
}

void check(Draws& draws) {
  const auto [order, losses] = draw_asked(draws);
  const int more = draws.below(100);  // what else is checked
  const Cut cut{draws.between(2, 3), draws.between(1, 2), draws.of<int>({0, 0, 0, 1, -1})};
  const LoopCase l = draw_loop_case(draws);
  if ((l.learner.counts && !l.learner.mixes) || (mixes_steps(l) && std::min(l.chunk(), l.time) > 1))
    return require_refusals(l);
  if (!check_forms(l, order, losses) || mixes_steps(l)) return;
  check_resume(l, std::min(order, 1));
  check_attention(l, 0);
  if (more % 3 == 0 && l.chunk() < l.time && !l.asked) check_attention(l, 1 + l.seed);
  if (l.asked) return;
  if (more % 4 == 1) check_decoding(l, FormChoice::automatic);
  if (more % 8 == 2) check_decoding(l, FormChoice::primal);
  if (!is_system(l)) return;
  if (more % 16 == 3) check_layer(l);
  if (more % 4 == 2) check_slices(l, cut, order);
  if (more % 50 == 4 && !l.learner.mixes) check_views(l);
  if (more % 25 == 5 && l.smooth()) check_battery(l);
}

}  // namespace

}  // namespace nestgrad::fuzz

int main(int argc, char** argv) {
  return nestgrad::fuzz::run_campaign(
      argc, argv, "learners_fuzz",
      "Random learners, optimisers and policies: every way of running one gives the same numbers.",
      nestgrad::fuzz::check, nestgrad::fuzz::bits_of);
}
