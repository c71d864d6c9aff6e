// The promise: an inner optimiser, linear or not, is its formula; what is
// not linear is refused by the forms that need it so, with the piece that is
// to blame; and gradients that are zero give steps with finite derivatives.
#include "autograd/grad.h"
#include "tests/ttt/methods.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using ttt::Per;
using Update = Policy::Update;

namespace {

std::string wrong(const Method& method, const NamedLearner& named, const Policy& policy, const Sizes& sizes,
                  int order, bool position = false,
                  const std::vector<FormChoice>& forms = {FormChoice::primal}) {
  const LoopCase loop{named, method, policy, sizes, {{"rate"}}, position};
  const std::string bad = differing(loop, numbers(loop, by_hand(), order), order, forms);
  return bad.empty() ? bad : method.name + ": " + bad;
}

}  // namespace

TEST_CASE("a gate without a name and a number that is none are refused where they are written") {
  CHECK(contains(message_of<ConfigError>([] { gate(""); }), "names no gate"));
  CHECK(contains(message_of<ConfigError>([] { gate("", "exp", [](Tensor x) { return exp(x); }); }),
                 "names no gate"));
  CHECK(contains(message_of<ConfigError>([] { ttt::InnerOptimizer().keep(NAN); }), "NaN"));
}
TEST_CASE("steps that are not linear are those made by hand, token after token, to order 2") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
  for (const Method& method : nonlinear_methods(sizes)) {
    CHECK(wrong(method, matrix_of(sizes), {.chunk = 1}, sizes, 2) == "");
    CHECK(wrong(method, perceptron("x W + b", 2, {4, 4}, tanh), {.chunk = 4}, sizes, 2) == "");
  }
}
TEST_CASE(
    "steps that are not linear, of a deep learner, read before "
    "write and with position rates, are those made by hand" *
    doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 5, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 4, 4}, tanh);
  using Read = Policy::Read;
  for (const Method& method : nonlinear_methods(sizes))
    for (const Read read : {Read::after_write, Read::before_write}) {
      CHECK(wrong(method, deep, {.chunk = 2, .read = read}, sizes, 1) == "");
      CHECK(wrong(method, deep, {.chunk = 2, .read = read}, sizes, 1, true) == "");
    }
}
TEST_CASE("one step a chunk, of any optimiser, is the one made by hand, in both recurrent forms" *
          doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner deep = perceptron("two layers", 2, {4, 6, 4}, tanh);
  std::vector<Method> methods = linear_methods(sizes);
  for (const Method& method : nonlinear_methods(sizes))
    if (method.name != "a rate of each element") methods.push_back(method);
  for (const Method& method : methods)
    CHECK(wrong(method, deep, {.chunk = 3, .update = Update::per_chunk, .steps = 2}, sizes, 1, false,
                {FormChoice::primal, FormChoice::dual}) == "");
  for (const Method& method : nonlinear_methods(sizes))
    CHECK(wrong(method, matrix_of(sizes), {.chunk = 3, .update = Update::per_chunk}, sizes, 2, false,
                {FormChoice::primal, FormChoice::dual}) == "");
}
TEST_CASE(
    "a point of the gradient that moves for all tokens alike is that of the loop by hand, in every form and chunk") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner deep = perceptron("x W + b", 2, {4, 4}, tanh);
  const std::vector<FormChoice> recurrent{FormChoice::primal, FormChoice::dual};
  for (const Method& method : evenly_moving_methods()) {
    for (const auto read : {Policy::Read::after_write, Policy::Read::before_write}) {
      CHECK(wrong(method, deep, {.chunk = 3, .read = read}, sizes, 2, false, recurrent) == "");
      CHECK(wrong(method, deep, {.chunk = 3, .read = read}, sizes, 1, true, recurrent) == "");
    }
    CHECK(wrong(method, matrix_of(sizes), {.chunk = 3, .meta = Policy::Meta::first_order}, sizes, 1, false,
                recurrent) == "");
    CHECK(wrong(method, matrix_of(sizes), {.chunk = 1}, sizes, 2, false,
                {FormChoice::primal, FormChoice::dual, FormChoice::wy}) == "");
    CHECK(wrong(method, deep, {.chunk = 3, .update = Update::per_chunk}, sizes, 1, false, recurrent) == "");
  }
}
TEST_CASE("Muon's iteration turns singular values towards one, whichever side is longer") {
  const Array x = random(f64({3, 5}), 4);
  const Function f = trace(
      [](Tensor a) {
        const Tensor wide = ttt::orthogonalize(a, ttt::muon_tuned()),
                     tall = ttt::orthogonalize(transpose(a), ttt::muon_tuned());
        return Tensors{wide, transpose(tall), newton_schulz(a, ttt::muon_tuned(), 1e-7),
                       matmul(wide, wide, {.b = true})};
      },
      x.spec());
  const Arrays out = f({x});
  CHECK(relative_error(out[0], out[1]) < 1e-12);
  CHECK(relative_error(out[0], out[2]) < 1e-11);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j) CHECK(std::abs(out[3].at(3 * i + j) - (i == j ? 1 : 0)) < 0.1);
}

TEST_CASE("Muon in f64 inside of f32 rounds once: value and derivative are those of f64") {
  const Array x = random(f64({4, 6}), 3), seed = random(f64({4, 6}), 4);
  const auto both = [&](DType dtype, bool in_f64) {
    const Function f = trace(
        [&](Tensor a, Tensor ct) {
          const Tensor y = ttt::orthogonalize(a, ttt::muon_published(), 1e-7, in_f64);
          return Tensors{y, grad(sum(y * ct), a)};
        },
        Spec{dtype, {4, 6}}, Spec{dtype, {4, 6}});
    return f({x.cast(DType::f32).cast(dtype), seed.cast(DType::f32).cast(dtype)});
  };
  const Arrays exact = both(DType::f64, false), inside = both(DType::f32, true),
               plain = both(DType::f32, false);
  for (const std::size_t i : {0U, 1U}) {
    CHECK(inside[i].dtype() == DType::f32);
    CHECK(inside[i].same_bits(exact[i].cast(DType::f32)));
    CHECK_FALSE(plain[i].same_bits(inside[i]));
  }
}

TEST_CASE("steps that are not linear are refused as such, and the piece that is to blame is named") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  const std::map<std::string, std::string> blamed{
      {"weight norm", "in 'weight norm'"},
      {"weight norm, detached, and decay", "in 'weight norm'"},
      {"norm of a master copy, momentum", "in 'weight norm of a master copy'"},
      {"Muon", "in 'Muon'"},
      {"Adam", "in 'Adam'"},
      {"clip per matrix", "in 'clip to 0.5 per matrix'"},
      {"normalise per column", "in 'normalise per column'"},
      {"clip over all weights, momentum", "one norm over all weights couples them"},
      {"normalise over all weights", "one norm over all weights couples them"},
      {"a rate of each element", "in 'own rates'"}};
  for (const Method& method : nonlinear_methods(sizes))
    for (const std::int64_t chunk : {1, 4}) {
      CAPTURE(method.name);
      const LoopCase loop{hebbian(sizes), method, {.chunk = chunk}, sizes};
      for (const FormChoice form : {FormChoice::dual, FormChoice::parallel, FormChoice::wy}) {
        const std::string why = refusal(loop, form);
        CAPTURE(why);
        CHECK(contains(why, "[update] the step is not linear"));
        CHECK(contains(why, blamed.at(method.name)));
      }
      CHECK(widest_form(loop) == FormChoice::primal);
    }
  const LoopCase own{matrix_of(sizes), nonlinear_methods(sizes).back(), {.chunk = 4}, sizes};
  CHECK(contains(refusal(own, FormChoice::dual), "(methods.h:"));  // the line of the piece
}

TEST_CASE("a number that is summed over the features of a gate is no number of a token's own row") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  const Method summed{"own sum", {{"size", true}}, [](const Params&) {
                        const auto fn = [](Tensor g, std::span<Tensor>, const ttt::Gates& gates) {
                          return g * sum(gates.at("size"), {-2}, kKeep);
                        };
                        return std::pair(InnerOptimizer().piece("own sum", fn), Hand());
                      }};
  const std::string why = refusal({matrix_of(sizes), summed, {.chunk = 4}, sizes}, FormChoice::dual);
  CAPTURE(why);
  CHECK(contains(why, "a value that is no gate joins the state"));
  CHECK(contains(why, "in 'own sum'"));
}

TEST_CASE(
    "a product of state and gradient, an offset, a sum over the weight and a constant are no linear steps") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  const auto refused = [&](std::function<Tensor(Tensor g, Tensor m)> fn) {
    const Method method{
        "", {}, [=](const Params&) {
          return std::pair(
              InnerOptimizer().piece(
                  "own", [=](Tensor g, std::span<Tensor> s, const ttt::Gates&) { return fn(g, s[0]); },
                  {"m"}),
              Hand());
        }};
    return refusal({matrix_of(sizes), method, {.chunk = 4}, sizes}, FormChoice::dual);
  };
  CHECK(contains(refused([](Tensor g, Tensor m) { return g * m; }),
                 "product of two values that depend on the state"));
  CHECK(contains(refused([](Tensor g, Tensor) { return g * g; }), "depend on the state"));
  CHECK(contains(refused([](Tensor g, Tensor) { return g + 1.0; }), "constant offset"));
  CHECK(contains(refused([](Tensor g, Tensor) { return 1.0 - g; }), "constant offset"));
  CHECK(contains(refused([](Tensor g, Tensor) { return 1.0 / g; }), "nonlinear function"));
  CHECK(contains(refused([](Tensor g, Tensor) { return g + sum(g, {-2}, kKeep); }), "mixes the elements"));
  CHECK(contains(refused([](Tensor g, Tensor) { return transpose(g); }), "mixes the elements"));
  CHECK(contains(refused([](Tensor g, Tensor) { return tril(g); }), "mixes the elements"));
  CHECK(contains(refused([](Tensor g, Tensor) { return matmul(g, g); }), "at %"));
  CHECK(contains(refused([](Tensor g, Tensor) { return max(g, 0.0); }), "nonlinear function"));
  CHECK(contains(refused([](Tensor g, Tensor) { return g * iota(DType::f64, {4}, 0); }), "at %"));
  CHECK(contains(refused([](Tensor g, Tensor) {
                   return select(equal(iota(DType::f64, {4, 4}, 0), iota(DType::f64, {4, 4}, 1)), g, 0.0 * g);
                 }),
                 "at %"));
}

namespace {

// Finite values and derivatives to order 2 on inputs changed by `spoil`; the primal form's where others are
// valid too.
std::string not_finite(const LoopCase& loop, const std::vector<FormChoice>& forms,
                       const std::function<void(Arrays&)>& spoil) {
  std::string out;
  Arrays first;
  for (const FormChoice form : forms) {
    const Function f = derivatives(loop, in_form(form), 2, true);
    Arrays in = inputs_of(f);
    spoil(in);
    const Arrays found = f(in);
    std::size_t bad = 0;
    for (const Array& a : found)
      for (const double x : a.to_vector()) bad += !std::isfinite(x);
    if (bad) out += fmt::format("{}: {} are not finite; ", ttt::name(form), bad);
    if (first.empty()) first = found;
    else if (bad == 0 && !(max_error(found, first) < 1e-10))
      out += fmt::format("{} is off by {:.2g}; ", ttt::name(form), max_error(found, first));
  }
  return out;
}
void clear(Array& a) { a = Array::zeros(a.dtype(), a.shape()); }
// Token t of x [batch, heads, time, dim], set to zero.
void clear_token(Array& x, std::int64_t t) {
  x = x.clone();
  const std::int64_t time = x.shape()[2], dim = x.shape()[3];
  for (std::int64_t s = 0; s < x.shape()[0] * x.shape()[1]; ++s)
    for (std::int64_t d = 0; d < dim; ++d)
      x.as<double>()[static_cast<std::size_t>((s * time + t) * dim + d)] = 0;
}

}  // namespace

TEST_SUITE("slow") {
  TEST_CASE(
      "zero keys, zero values, zero gates and zero weights give finite values and derivatives to order 2") {
    const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};
    std::vector<Method> methods = nonlinear_methods(sizes);
    for (const Method& method : linear_methods(sizes)) methods.push_back(method);
    for (const Method& method : methods)
      for (const bool per_chunk : {false, true}) {
        const Policy policy{.chunk = 2, .update = per_chunk ? Update::per_chunk : Update::per_token};
        for (const NamedLearner& named : {matrix_of(sizes), hebbian(sizes)}) {
          const LoopCase loop{named, method, policy, sizes};
          CAPTURE(method.name);
          CAPTURE(per_chunk);
          std::vector<FormChoice> forms{FormChoice::primal};
          if (refusal(loop, FormChoice::dual).empty()) forms.push_back(FormChoice::dual);
          if (refusal(loop, FormChoice::parallel).empty()) forms.push_back(FormChoice::parallel);
          if (per_chunk && refusal(loop, FormChoice::chunk_parallel).empty())
            forms.push_back(FormChoice::chunk_parallel);
          CHECK(not_finite(loop, forms, [](Arrays& in) { clear_token(in[1], 0); }) == "");
          CHECK(not_finite(loop, forms, [](Arrays& in) { clear_token(in[1], 2), clear_token(in[1], 3); }) ==
                "");
          CHECK(not_finite(loop, forms, [](Arrays& in) { clear(in[1]), clear(in[2]); }) == "");
          CHECK(not_finite(loop, forms, [](Arrays& in) { clear(in[2]), clear(in.back()); }) == "");
          CHECK(not_finite(loop, forms, [](Arrays& in) {
                  for (Array& a : in) clear(a);
                }) == "");
        }
      }
  }
}

TEST_CASE(
    "a masked chunk, whose values are what the learner says of its keys, leaves the weights where they are") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  for (const Method& method : nonlinear_methods(sizes)) {
    if (contains(method.name, "norm") && contains(method.name, "weight"))
      continue;  // rescales by 1 / (1 + eps)
    CAPTURE(method.name);
    const LoopCase loop{matrix_of(sizes), method, {.chunk = 4, .update = Update::per_chunk}, sizes};
    const Function f = trace_case(loop, [&](const TracedCase& c) {
      Views masked = c.views;
      masked.v = stop_gradient(c.learner.predict(c.start, c.views.k));
      const InnerLoopResult r = ttt::train_along(c.learner, c.start, masked, {.policy = c.loop.policy});
      const Tensor w = r.last()["W"];
      Tensors out{w, c.start["W"]};
      Tensor y = sum(square(r.output));
      for (int n = 0; n < 2; ++n) {
        const Tensors g = grad(y, c.inputs, {.allow_zero = true});
        out.insert(out.end(), g.begin(), g.end());
        y = sum(square(g[1])) + sum(square(g.back()));
      }
      return out;
    });
    const Arrays out = f(inputs_of(f));
    CHECK(relative_error(out[0], out[1]) < 1e-4);
    for (const Array& a : out)
      for (const double x : a.to_vector()) CHECK(std::isfinite(x));
  }
}
