// Ops that keep the numbers: cast, stop_gradient, probe.
#include <fmt/format.h>

#include "engine/core/convert.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

int same_axis(const OpCall&, int, int axis) { return axis; }

Tensor the_input(Tensor t) { return input_of(t); }

}  // namespace

constinit const Op cast_op = {
    .name = "cast",
    .doc =
        "The same values in another element type, rounded to nearest (towards zero for integers). NaN and "
        "what is too large for an i32 are errors.",
    .infer =
        [](const OpCall& c) {
          return Spec{c.attrs.as<CastAttrs>().dtype, c.in[0].shape};
        },
    .vjp = [](const VjpCall& c) -> Tensor {
      if (!is_float(c.out.dtype()))
        throw GradError(fmt::format("[cast] no derivative passes through {}", describe(c.out)));
      return cast(c.ct, c.in[0].dtype());
    },
    .simplify = [](Tensor t) { return input_of(t).dtype() == t.dtype() ? input_of(t) : Tensor(); },
    .linear_in = [](const OpCall& c, int) { return is_float(c.in[0].dtype) && is_float(c.out.dtype); },
    .axes = same_axis,
    .cost = copy_cost,
    .cpu = [](const OpCall& c) -> OpKernel {
      return dispatch(c.in[0].dtype, [&]<class From>(From) {
        return dispatch(c.out.dtype, [&]<class To>(To) -> OpKernel {
          return [n = c.out.size()](const std::byte* const* in, std::byte* out) {
            const From* x = reinterpret_cast<const From*>(in[0]);
            To* y = reinterpret_cast<To*>(out);
            for (std::int64_t i = 0; i < n; ++i) y[i] = converted<To>(x[i], "cast");
          };
        });
      });
    },
    .describe = [](const Attrs& a) { return std::string(name(a.as<CastAttrs>().dtype)); },
    .read_attrs = attrs_from<CastAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3}}}, .attrs = CastAttrs{DType::f64}}};
    }};

constinit const Op stop_gradient_op = {.name = "stop_gradient",
                                       .doc = "The value itself; derivatives do not pass.",
                                       .infer = [](const OpCall& c) { return c.in[0]; },
                                       .why_no_derivative = "it stops gradients",
                                       .simplify = the_input,
                                       .axes = same_axis,
                                       .is_alias = true,
                                       .cost = no_cost,
                                       .cpu = copy_bytes,
                                       .samples = []() -> std::vector<OpSample> {
                                         return {{.inputs = {{{2, 3}}}}};
                                       }};

constinit const Op probe_op = {
    .name = "probe",
    .doc = "The value itself under a name of its own, to differentiate with respect to this use of it.",
    .infer = [](const OpCall& c) { return c.in[0]; },
    .vjp = [](const VjpCall& c) { return c.ct; },
    .simplify = the_input,
    .linear_in = always_linear,
    .axes = same_axis,
    .is_alias = true,
    .is_shared = false,
    .cost = no_cost,
    .cpu = copy_bytes,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3}}}}};
    }};

Tensor cast(Operand x, DType dtype) { return emit(cast_op, {x.tensor()}, CastAttrs{dtype}, x.loc); }
Tensor stop_gradient(Operand x) { return emit(stop_gradient_op, {x.tensor()}, {}, x.loc); }
Tensor probe(Operand x) { return emit(probe_op, {x.tensor()}, {}, x.loc); }

}  // namespace nestgrad
