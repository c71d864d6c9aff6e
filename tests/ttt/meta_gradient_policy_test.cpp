// The promise: how far the outer gradient follows the inner steps is what the policy says.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/policy_cases.h"
#include "ttt/compose.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::vector<LoopCase> meta_loops(const Sizes& sizes) {
  const NamedLearner deep = perceptron("two layers", sizes.heads, {4, 4, 4}, tanh);
  const Policy tokens{.chunk = 2, .read = Read::before_write}, online{.chunk = 1},
      chunks{.chunk = 2, .update = Update::per_chunk, .steps = 2},
      lact{.chunk = 2, .update = Update::per_chunk, .read = Read::before_write};
  return {{deep, with_gates(), tokens, sizes},
          {deep, with_gates(), chunks, sizes},
          {matrix_of(sizes), with_gates(), online, sizes},
          {deep, rung(true, false, true), tokens, sizes},
          {matrix_of(sizes), rung(true, true, true), lact, sizes},
          {deep, sgd(), tokens, sizes}};
}
std::vector<FormChoice> forms_of(const LoopCase& loop) {
  std::vector<FormChoice> out{FormChoice::primal};
  if (refusal(loop, FormChoice::dual).empty()) out.push_back(FormChoice::dual);
  return out;
}

}  // namespace

TEST_CASE(
    "first-order and truncated meta-gradients are those of the "
    "programs with stop_gradient written by hand, to order 2" *
    doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  for (LoopCase loop : meta_loops(sizes)) {
    const Arrays full = numbers(loop, by_hand(), 1);
    const std::vector<FormChoice> forms = forms_of(loop);
    CAPTURE(loop.method.name);
    CAPTURE(loop.policy.str());
    const auto check = [&](bool differs) {
      const Arrays expected = numbers(loop, by_hand(), 2, true);
      for (const FormChoice form : forms) {
        const double error = error_of(numbers(loop, in_form(form), 2, true), expected);
        CAPTURE(ttt::name(form));
        CAPTURE(loop.policy.str());
        CHECK(error < 1e-12);
      }
      bool apart = false;
      for (std::size_t i = 0; i < full.size(); ++i)
        apart = apart || relative_error(expected[i], full[i]) > 1e-3;
      CHECK(apart == differs);
    };
    loop.policy.meta = Meta::first_order;
    check(true);
    loop.policy.meta = Meta::truncated;
    for (const std::int64_t horizon : {1, 2, 3, 100}) {
      loop.policy.horizon = horizon;
      check(horizon != 100);
    }
  }
}
TEST_CASE(
    "first-order: where no gradient depends on the weights it is the full meta-gradient, in every form") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  LoopCase loop{hebbian(sizes), with_gates(), {.chunk = 2, .update = Update::per_chunk}, sizes};
  const Arrays full = numbers(loop, by_hand(), 2);
  loop.policy.meta = Meta::first_order;
  CHECK(differing(loop, full, 2,
                  {FormChoice::primal, FormChoice::dual, FormChoice::chunk_parallel, FormChoice::parallel}) ==
        "");
  loop.policy.meta = Meta::truncated;
  for (const FormChoice form : {FormChoice::chunk_parallel, FormChoice::parallel})
    CHECK(contains(refusal(loop, form), "the meta-gradient is cut between chunks"));
}

TEST_CASE("the full meta-gradient is the first-order one and what each step's gradient adds to it" *
          doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  std::vector<Method> methods{sgd(), linear_methods(sizes)[3], linear_methods(sizes)[4],
                              rung(false, true, true)};
  for (const Method& method : nonlinear_methods(sizes))
    if (method.name == "Adam") methods.push_back(method);  // weights that are carried as they are
  for (const Method& method : methods)
    for (const Policy& policy : {Policy{.chunk = 2}, Policy{.chunk = 3, .read = Read::before_write},
                                 Policy{.chunk = 1}, Policy{.chunk = 2, .update = Update::per_chunk},
                                 Policy{.chunk = 3, .update = Update::per_chunk, .steps = 2}})
      for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
        const LoopCase loop{deep, method, policy, sizes};
        if (!refusal(loop, form).empty()) continue;
        const Function f = trace_case(loop, [&](const TracedCase& c) {
          const std::int64_t chunks = (sizes.time + policy.chunk - 1) / policy.chunk;
          std::vector<Tensor> offsets;
          for (const Tensor& w : c.start.values()) {
            Shape shape = w.shape();
            shape.insert(shape.begin(), chunks);
            offsets.push_back(probe(zeros(DType::f64, shape)));
          }
          Tensors start = c.start.values();
          for (Tensor& w : start) w = probe(w);
          Policy first = policy;
          first.meta = Meta::first_order;
          const Weights from = c.start.with(start);
          const InnerLoopResult
              with_offsets = ttt::train_along(
                  c.learner, from, c.views,
                  {.policy = policy, .form = form, .gradient_offset = offsets, .keep_points = true}),
              without = ttt::train_along(c.learner, from, c.views, {.policy = policy, .form = form}),
              cut = ttt::train_along(c.learner, from, c.views, {.policy = first, .form = form});
          const Tensors full = grad(outer_loss(values_of(without)), start),
                        direct = grad(outer_loss(values_of(cut)), start),
                        added = grad(outer_loss(values_of(with_offsets)), offsets);
          Tensors out;
          for (std::size_t i = 0; i < start.size(); ++i) {
            out.push_back(full[i]);
            out.push_back(direct[i] + sum(added[i], {0}));
            out.push_back(added[i]);
            out.push_back(slice(with_offsets.points[i], 0, 0, 1) -
                          reshape(start[i], slice(with_offsets.points[i], 0, 0, 1).shape()));
          }
          out.push_back(with_offsets.output - without.output);
          return out;
        });
        const Arrays out = f(inputs_of(f));
        CAPTURE(method.name);
        CAPTURE(policy.str());
        for (std::size_t i = 0; i + 1 < out.size(); i += 4) {
          CHECK(relative_error(out[i + 1], out[i]) < 1e-12);
          CHECK(relative_error(out[i + 2], Array::zeros(out[i + 2].dtype(), out[i + 2].shape()), 1) > 1e-3);
          for (const double x : out[i + 3].to_vector()) CHECK(x == 0);
        }
        for (const double x : out.back().to_vector()) CHECK(std::abs(x) < 1e-14);
      }
}

TEST_CASE("truncated: packed documents are cut as each alone would be, chunks counted from its own start" *
          doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 11, .dim = 4};
  const std::vector<std::vector<std::int64_t>> begins{{0, 2, 8},
                                                      {0, 6}};  // of the documents of each sequence
  std::vector<double> starts(22);
  for (std::size_t b = 0; b < 2; ++b)
    for (const std::int64_t t : begins[b]) starts[b * 11 + static_cast<std::size_t>(t)] = 1;
  for (LoopCase loop : meta_loops(sizes)) {
    loop.policy.meta = Meta::truncated;
    for (const std::int64_t horizon : {1, 2, 3})
      for (const FormChoice form : forms_of(loop)) {
        loop.policy.horizon = horizon;
        const Function f = trace_case(loop, [&](const TracedCase& c) {
          Views packed = c.views;
          packed.starts = constant(Array::of(starts, {2, 1, 11, 1}));
          packed.alignment = loop.policy.chunk;
          const auto read = [&](const Weights& start, const Views& views) {
            return ttt::train_along(c.learner, start, views, {.policy = loop.policy, .form = form}).output;
          };
          std::vector<Tensor> rows;
          for (std::size_t b = 0; b < 2; ++b) {
            std::vector<Tensor> documents;
            for (std::size_t i = 0; i < begins[b].size(); ++i) {
              const auto row = static_cast<std::int64_t>(b), from = begins[b][i],
                         to = i + 1 < begins[b].size() ? begins[b][i + 1] : sizes.time;
              const auto own = [&](Tensor x) { return slice(slice(x, 0, row, row + 1), 2, from, to); };
              Views alone = c.views;
              for (Tensor* x : {&alone.q, &alone.k, &alone.v}) *x = own(*x);
              for (auto& [name, x] : alone.gates) x = own(x);
              Tensors start = c.start.values();
              for (Tensor& w : start) w = slice(w, 0, row, row + 1);
              documents.push_back(read(c.start.with(start), alone));
            }
            rows.push_back(concat(documents, 2));
          }
          Tensors out;
          for (const Tensor& output : {read(c.start, packed), concat(rows, 0)}) {
            out.push_back(output);
            for (const Tensor& g : grad(outer_loss({output}), c.inputs, {.allow_zero = true}))
              out.push_back(g);
          }
          return out;
        });
        const Arrays got = f(inputs_of(f));
        CAPTURE(loop.method.name);
        CAPTURE(loop.policy.str());
        CAPTURE(ttt::name(form));
        const std::size_t half = got.size() / 2;
        for (std::size_t i = 0; i < half; ++i) CHECK(relative_error(got[i], got[half + i]) < 1e-11);
      }
  }
}
