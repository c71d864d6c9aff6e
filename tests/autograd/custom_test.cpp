// A derivative rule of one's own, and recomputation of a region.
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// x^3 whose derivative is declared to be 5 x^2, so that the rule's use shows.
Tensor cube(Tensor x) {
  return custom_vjp(
      [](const Tensors& in) { return in[0] * square(in[0]); },
      [](const Tensors& in, Tensor, Tensor ct) -> Tensors { return {ct * 5.0 * square(in[0])}; }, {x});
}

// exp through its output: y' = y.
Tensor own_exp(Tensor x) {
  return custom_vjp([](const Tensors& in) { return exp(in[0]); },
                    [](const Tensors&, Tensor y, Tensor ct) -> Tensors { return {ct * y}; }, {x});
}

}  // namespace

TEST_CASE("custom_vjp runs its forward function and differentiates by its rule, to any order") {
  const Function f = trace(
      [](Tensor x) -> Tensors {
        const Tensor y = sum(cube(x)), dy = grad(y, x), ddy = grad(sum(dy), x);
        return {y, dy, ddy, grad(sum(ddy), x)};
      },
      f64({2}));
  const Arrays out = f(std::vector<Array>{Array::of({2, 3}, {2})});
  CHECK(out[0].item() == 8 + 27);
  CHECK(out[1].to_vector() == std::vector<double>{20, 45});
  CHECK(out[2].to_vector() == std::vector<double>{20, 30});  // the rule's own derivative
  CHECK(out[3].to_vector() == std::vector<double>{10, 10});
}

TEST_CASE("A right rule agrees with the derived one at orders 1 to 3, in a scan too") {
  const std::vector<Spec> specs{f64({2}), f64({3, 2})};
  for (const bool looped : {false, true})
    for (int order = 0; order <= 3; ++order) {
      const auto build = [&](Tensor (*fn)(Tensor)) {
        return derivative(
            [&, fn](const Tensors& in) {
              if (!looped) return sum(fn(sin(in[1]) * in[0]));
              return sum(scan(
                             [&](const Tensors& c, const Tensors& x) -> StepOutput {
                               return {{fn(0.3 * c[0] * x[0]) * in[0]}, {}};
                             },
                             {in[0]}, {in[1]})
                             .carries[0]);
            },
            specs, order);
      };
      const Arrays at = random(specs, 6);
      CHECK(max_error(build(own_exp)(at), build([](Tensor x) { return exp(x); })(at)) < 1e-13);
    }
}

TEST_CASE("a rule that does not pass its cotangent on has no jvp") {
  const auto jvp_of = [](const std::function<Tensor(Tensor ct)>& rule) {
    return message_of<GradError>([&] {
      trace(
          [&](Tensor x) {
            const Tensor y =
                custom_vjp([](const Tensors& in) { return in[0] * 1.0; },
                           [&](const Tensors&, Tensor, Tensor ct) -> Tensors { return {rule(ct)}; }, {x});
            return jvp({y}, {x}, {x})[0];
          },
          f64({2}));
    });
  };
  for (const auto& why : {jvp_of([](Tensor ct) { return ct + stop_gradient(2.0 * ct); }),
                          jvp_of([](Tensor ct) { return stop_gradient(3.0 * ct); })})
    CHECK_MESSAGE((contains(why, "does not pass its cotangent on") && contains(why, "stop_gradient")), why);
  CHECK(contains(jvp_of([](Tensor ct) { return ct + sign(ct); }), "sign f64[2]"));
  CHECK(
      contains(jvp_of([](Tensor ct) { return ct + cast(cast(ct, DType::i32), DType::f64); }), "cast i32[2]"));
}

TEST_CASE("a rule that clips its cotangent works in grad and vjp, and has no jvp") {
  const auto with_rule = [](const std::function<Tensor(Tensor)>& rule) {
    return [rule](Tensor x) {
      return custom_vjp([](const Tensors& in) { return in[0] * 1.0; },
                        [rule](const Tensors&, Tensor, Tensor ct) -> Tensors { return {rule(ct)}; }, {x});
    };
  };
  const auto clipped = with_rule([](Tensor ct) { return clip(ct, -1.0, 1.0); });
  const auto by_norm = with_rule([](Tensor ct) { return ct / max(norm(ct, {0}), 1.0); });
  const auto tripled = with_rule([](Tensor ct) { return 3.0 * ct; });
  const Array at = Array::of({1, 2}, {2});
  const auto slope = [&](const std::function<Tensor(Tensor)>& fn) {
    return trace([&](Tensor x) { return grad(5.0 * sum(fn(x)), x); }, f64({2}))(at).to_vector();
  };
  CHECK(slope(clipped) == std::vector<double>{1, 1});
  CHECK(slope(by_norm)[0] == doctest::Approx(std::sqrt(0.5)).epsilon(1e-14));
  const auto forward = [&](const std::function<Tensor(Tensor)>& fn) {
    return trace([&](Tensor x) { return jvp({fn(x)}, {x}, {x})[0]; }, f64({2}))(at).to_vector();
  };
  CHECK(forward(tripled) == std::vector<double>{3, 6});
  for (const auto& fn : {clipped, by_norm}) {
    const std::string text = message_of<GradError>([&] { forward(fn); });
    CHECK(contains(text, "[jvp] a derivative rule between x and y"));
    CHECK(contains(text, "custom_test.cpp:"));
  }
}

TEST_CASE("custom_vjp with several inputs: each gets the cotangent that the rule returns for it") {
  const Function f = trace(
      [](Tensor a, Tensor b) -> Tensors {
        const Tensor y = custom_vjp([](const Tensors& in) { return matmul(in[0], in[1]); },
                                    [](const Tensors& in, Tensor, Tensor ct) -> Tensors {
                                      return {2.0 * in[0] * sum(ct), 3.0 * in[1] * sum(ct)};
                                    },
                                    {a, b});
        return grad(sum(y), {b, a});
      },
      f64({1, 2}), f64({2, 1}));
  const Arrays out = f({Array::of({1, 2}, {1, 2}), Array::of({3, 4}, {2, 1})});
  CHECK(out[0].to_vector() == std::vector<double>{9, 12});
  CHECK(out[1].to_vector() == std::vector<double>{2, 4});
}

TEST_CASE("custom_vjp with several inputs: each derivative can be differentiated in each input") {
  const auto slopes = [](const ForwardFn& fn) {
    const Function f = trace(
        [&](Tensor a, Tensor b) -> Tensors {
          Tensors out = grad(sum(fn({a, b})), {a, b});
          for (Tensor second : grad(sum(out[0] * out[1]), {a, b})) out.push_back(second);
          return out;
        },
        f64({2}), f64({2}));
    return f(random({f64({2}), f64({2})}, 4));
  };
  const ForwardFn product = [](const Tensors& in) { return square(in[0]) * sin(in[1]); };
  CHECK(max_error(slopes([&](const Tensors& in) {
                    return custom_vjp(
                        product,
                        [](const Tensors& x, Tensor, Tensor ct) -> Tensors {
                          return {2.0 * x[0] * sin(x[1]) * ct, square(x[0]) * cos(x[1]) * ct};
                        },
                        in);
                  }),
                  slopes(product)) < 1e-14);
}

TEST_CASE("custom_vjp refuses captured tensors and wrong cotangents") {
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64({2})), w = g.input(f64({2}), "w");
  const ForwardFn twice = [](const Tensors& in) { return 2.0 * in[0]; };
  CHECK(contains(message_of<GraphError>([&] {
                   custom_vjp([&](const Tensors& in) { return in[0] * w; },
                              [](const Tensors&, Tensor, Tensor ct) -> Tensors { return {ct}; }, {x});
                 }),
                 "not among its inputs"));
  CHECK(contains(message_of<GraphError>([&] {
                   custom_vjp(twice, [&](const Tensors&, Tensor, Tensor ct) -> Tensors { return {ct * w}; },
                              {x});
                 }),
                 "the rule uses"));
  // Even when only what follows from the captured tensor is used, or nothing else is.
  message_of<GraphError>([&] {
    custom_vjp([&](const Tensors& in) { return in[0] * sin(w); },
               [](const Tensors&, Tensor, Tensor ct) -> Tensors { return {ct}; }, {x});
  });
  message_of<GraphError>([&] {
    custom_vjp([&](const Tensors&) { return w; },
               [](const Tensors&, Tensor, Tensor ct) -> Tensors { return {ct}; }, {x});
  });
  CHECK(contains(message_of<ShapeError>([&] {
                   custom_vjp(twice, [](const Tensors&, Tensor, Tensor ct) -> Tensors { return {sum(ct)}; },
                              {x});
                 }),
                 "sum f64[] (custom_test.cpp:"));
  CHECK(contains(message_of<GraphError>([&] {
                   custom_vjp(twice, [](const Tensors&, Tensor, Tensor) -> Tensors { return {}; }, {x});
                 }),
                 "0 cotangents for 1 inputs"));
  message_of<GraphError>(
      [&] { custom_vjp(twice, [](const Tensors&, Tensor, Tensor ct) -> Tensors { return {ct}; }, {}); });
}

namespace {

// A deep chain of wide layers: much to keep, little to carry.
Tensor layers(Tensor x, const Tensors& w, bool regions) {
  for (const Tensor& layer : w) {
    const auto block = [&] { return Tensors{x + tanh(matmul(tanh(matmul(x, layer)), transpose(layer)))}; };
    x = regions ? checkpoint(block)[0] : block()[0];
  }
  return mean(square(x));
}

std::vector<Spec> layer_specs() {
  std::vector<Spec> specs{f64({8, 4})};
  specs.insert(specs.end(), 6, f64({4, 64}));
  return specs;
}

Scalar network(bool regions) {
  return [=](const Tensors& in) { return layers(in[0], Tensors(in.begin() + 1, in.end()), regions); };
}

}  // namespace

TEST_CASE("checkpoint() gives the same bits at orders 0 to 2 and a smaller arena") {
  const Arrays at = random(layer_specs(), 12, -.3, .3);
  for (int order = 0; order <= 2; ++order) {
    CAPTURE(order);
    const Function plain = derivative(network(false), layer_specs(), order),
                   regions = derivative(network(true), layer_specs(), order);
    CHECK(same_bits(regions(at), plain(at)));
    if (order == 1) CHECK(regions.plan().stats().arena_bytes < plain.plan().stats().arena_bytes * 2 / 3);
  }
}

TEST_CASE("checkpoint() recomputes what is inside a region once, and not its outputs") {
  const auto plan = [](bool regions) {
    return trace(
               [&](const Tensors& in) -> Tensors {
                 Tensors out = grad(network(regions)(in), in);
                 out.push_back(network(regions)(in));
                 return out;
               },
               layer_specs())
        .plan({.fuse = false})
        .str();
  };
  // Per layer: two products forward and four backward; a region recomputes the two, whose results the rules
  // of tanh read, and not the sum that it returns.
  CHECK(count(plan(false), " matmul ") == 6 * 6);
  CHECK(count(plan(true), " matmul ") == 6 * 8);
  CHECK(count(plan(true), " add ") == count(plan(false), " add "));
}

TEST_CASE(
    "checkpoint() inside a function that is called with tensors is kept, each call by itself, with a smaller arena") {
  const Function f = trace([](const Tensors& in) { return Tensors{network(true)(in)}; }, layer_specs());
  const Function plain = derivative(network(false), layer_specs(), 1),
                 called = derivative([&](const Tensors&in) { return f(in)[0]; }, layer_specs(), 1);
  const Arrays at = random(layer_specs(), 12, -.3, .3);
  CHECK(same_bits(called(at), plain(at)));
  CHECK(called.plan().stats().arena_bytes ==
        derivative(network(true), layer_specs(), 1).plan().stats().arena_bytes);
  CHECK(called.plan().stats().arena_bytes < plain.plan().stats().arena_bytes * 2 / 3);
  // The scopes, too, and two calls have no region in common.
  const Function block = trace(
      [](Tensor x) {
        return checkpoint([&] {
          const Scope scope("block");
          return Tensors{tanh(x)};
        })[0];
      },
      f64({3}));
  Graph g;
  const GraphScope open(g);
  const Scope model("model");
  const Tensor once = block(std::vector{g.input(f64({3}), "x")})[0], twice = block(std::vector{once})[0];
  CHECK(g.node(once.id()).scope.str() == "model/block");
  CHECK(g.node(once.id()).region != 0);
  CHECK(g.node(twice.id()).region != 0);
  CHECK(g.node(once.id()).region != g.node(twice.id()).region);
}

TEST_CASE("checkpoint() around nested learning gives the same bits") {
  const std::vector<Spec> specs{f64({4, 3}), f64({4, 3}), f64({3, 3})};
  for (int order = 1; order <= 2; ++order) {
    const auto build = [&](bool regions) {
      return derivative(
          [&](const Tensors& in) {
            Tensor w = in[2];
            for (int step = 0; step < 3; ++step) {
              const auto update = [&] {
                return Tensors{w - 0.1 * grad(sum(square(tanh(matmul(in[0], w)) - in[1])), w)};
              };
              w = regions ? checkpoint(update)[0] : update()[0];
            }
            return sum(square(w));
          },
          specs, order);
    };
    const Arrays at = random(specs, 2);
    CHECK(same_bits(build(true)(at), build(false)(at)));
  }
}

TEST_CASE("checkpoint() around and inside scans gives the same bits") {
  const auto specs = learner_specs(5);
  for (int order = 1; order <= 2; ++order) {
    const Arrays at = random(specs, 2);
    const Arrays plain = derivative([](const Tensors& in) { return learner(in, as_scan); }, specs, order)(at);
    const Function around = derivative(
        [](const Tensors& in) { return checkpoint([&] { return Tensors{learner(in, as_scan)}; })[0]; }, specs,
        order);
    const Function inside = derivative(
        [](const Tensors& in) {
          return learner(in,
                         [](const StepFn& step, const Tensors& init, const Tensors& xs, ScanOptions options) {
                           return scan(
                               [&](const Tensors& c, const Tensors& x) -> StepOutput {
                                 StepOutput next;
                                 checkpoint([&] {
                                   next = step(c, x);
                                   return next.carries;
                                 });
                                 return next;
                               },
                               init, xs, options);
                         });
        },
        specs, order);
    CHECK(same_bits(around(at), plain));
    CHECK(same_bits(inside(at), plain));
    CHECK(same_bits(around.plan({.checkpoint_every = 2}).run(at), plain));
  }
}
