#include "autograd/custom.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

Closed trace_closed(std::string_view what, Graph& parent, const std::vector<Spec>& specs,
                    const std::function<Tensors(const Tensors&)>& fn, Loc loc) {
  check_nesting("custom_vjp", parent, loc);
  Graph graph(GraphOptions{.parent = &parent, .hoist = false});
  Closing closing;
  {
    const GraphScope scope(graph);
    Tensors in;
    for (const Spec& s : specs) in.push_back(graph.input(s, fmt::format("input{}", in.size()), loc));
    const Tensors made = fn(in);
    check_defined("custom_vjp", what, made, loc);
    for (const Tensor& t : made) closing.outs.push_back(graph.lift(t));
    for (const Tensor& t : in) closing.carries.push_back(t.id());
  }
  if (!graph.captures().empty())
    throw GraphError(
        fmt::format("[custom_vjp] the {} uses {}, which is not among its inputs; pass it in (at {})", what,
                    describe(graph.captures()[0].outer), describe(loc)));
  return close_body(graph, closing);
}

}  // namespace

constinit const Op custom_op = {.name = "custom_vjp",
                                .doc = "A function with a derivative rule of its own.",
                                .infer =
                                    [](const OpCall& c) {
                                      const GraphBody& forward = *c.attrs.as<CustomAttrs>().forward;
                                      return forward.spec(forward.outs[0]);
                                    },
                                .vjp =
                                    [](const VjpCall& c) {
                                      Tensors in(c.in.begin(), c.in.end());
                                      in.push_back(c.out);
                                      in.push_back(c.ct);
                                      const GraphBody& rule = *c.attrs.as<CustomAttrs>().rule;
                                      return inline_body(rule, in)[uz(rule.outs[uz(c.input)])];
                                    },
                                .expand =
                                    [](std::span<const Tensor> in, const Attrs& a) {
                                      const GraphBody& forward = *a.as<CustomAttrs>().forward;
                                      return inline_body(forward, in)[uz(forward.outs[0])];
                                    }};

Tensor custom_vjp(const ForwardFn& forward, const RuleFn& rule, const Tensors& inputs, Loc loc) {
  if (inputs.empty())
    throw GraphError(fmt::format("[custom_vjp] needs at least one input (at {})", describe(loc)));
  check_defined("custom_vjp", "input", inputs, loc);
  require_function("custom_vjp", "the forward pass", forward, loc);
  require_function("custom_vjp", "the rule", rule, loc);
  std::vector<Spec> specs;
  for (const Tensor& t : inputs) specs.push_back(t.spec());
  Graph& parent = context().emit.graph ? *context().emit.graph : inputs[0].graph();
  const Closed body = trace_closed(
      "forward function", parent, specs, [&](const Tensors& in) { return Tensors{forward(in)}; }, loc);
  std::vector<Spec> rule_specs = specs;
  rule_specs.insert(rule_specs.end(), 2, body.body->spec(body.body->outs[0]));
  const Closed back = trace_closed(
      "rule", parent, rule_specs,
      [&](const Tensors& in) {
        const Tensors given(in.begin(), in.end() - 2);
        Tensors out = rule(given, in[in.size() - 2], in[in.size() - 1]);
        if (out.size() != given.size())
          throw GraphError(fmt::format("[custom_vjp] the rule returned {} cotangents for {} inputs (at {})",
                                       out.size(), given.size(), describe(loc)));
        check_defined("custom_vjp", "cotangent", out, loc);
        for (std::size_t i = 0; i < out.size(); ++i)
          if (out[i].spec() != given[i].spec())
            throw ShapeError(fmt::format("[custom_vjp] cotangent {} is {}, its input is {} (at {})", i,
                                         describe(out[i]), describe(given[i]), describe(loc)));
        return out;
      },
      loc);
  return emit(custom_op, inputs, CustomAttrs{body.body, back.body}, loc);
}

Tensors checkpoint(const std::function<Tensors()>& fn) {
  require_function("checkpoint", "what is to be computed again", fn);
  ContextGuard guard;
  context().emit.region = new_region();
  return fn();
}

}  // namespace nestgrad
