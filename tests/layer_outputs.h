// What a layer gives for a sequence, read at once or token by token.
#pragma once

#include "models/traced_model.h"
#include "tests/testing.h"

namespace nestgrad::testing {

// make(params): the layer, which is called as layer(x, stream). x: f64[batch, time, width], of random numbers, as
// the parameters are.
template <class Make>
Arrays layer_outputs(const Spec& x, bool by_token, Make make) {
  const TracedModel model = trace_model(DType::f64, {x}, [&](ParamTable& table, const Tensors& in) {
    const auto layer = make(Params(table));
    Tensors out;
    std::map<std::string, Tensor> carried;
    for (std::int64_t t = 0; by_token && t < x.shape[1]; ++t) {
      ttt::Stream stream(carried);
      out.push_back(layer(slice(in[0], 1, t, t + 1), stream));
      carried = stream.carried();
    }
    ttt::Stream whole;
    return Tensors{by_token ? concat(out, 1) : layer(in[0], whole)};
  });
  StateDict params;
  std::uint64_t seed = 3;
  for (const ParamSpec& p : model.params) params[p.name] = random({DType::f64, p.shape}, seed++, -0.5, 0.5);
  return model.function(model.bind({random(x, 1)}, {&params}));
}

}  // namespace nestgrad::testing
