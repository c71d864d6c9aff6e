// The promise: numbers are bound to inputs by their names, and what is missing, misspelt or of another shape is
// named; and parameters are asked for in one order, whichever compiler made the program.
#include "models/traced_model.h"

#include "tests/models/model_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

TracedModel affine() {
  return trace_model(DType::f64, {f64({2, 3})}, [](ParamTable& table, const Tensors& in) {
    const Params params(table);
    const Tensor weight = params("layer.weight", {3, 4});
    return Tensors{matmul(in[0], weight) + params("layer.bias", {4})};
  });
}

}  // namespace

TEST_CASE("values are bound by name; the last source counts, and what is not asked for may be there") {
  const TracedModel model = affine();
  const Array x = random(f64({2, 3}), 1), weight = random(f64({3, 4}), 2), bias = random(f64({4}), 3);
  const StateDict first{{"layer.weight", bias}, {"layer.bias", bias}, {"other", x}},
      second{{"layer.weight", weight}};
  CHECK(same_bits(model.bind({x}, {&first, &second}), {x, weight, bias}));
}

TEST_CASE("of values that do not fit, all are named with their shapes, and what was probably meant") {
  const TracedModel model = affine();
  const auto refused = [&](const StateDict& values) {
    return message_of<ConfigError>([&] { model.bind({Array::zeros(DType::f64, {2, 3})}, {&values}); });
  };
  const Array four = Array::zeros(DType::f64, {4});
  const std::string text =
      refused({{"layer.wieght", Array::zeros(DType::f64, {3, 4})}, {"layer.bias", four.cast(DType::f32)}});
  CHECK(contains(text, "it lacks the value 'layer.weight' f64[3,4]"));
  CHECK(contains(text, "it holds 'layer.wieght' f64[3,4], which the model has no place for"));
  CHECK(contains(text, "is 'layer.wieght' meant for 'layer.weight'?"));
  CHECK(contains(text, "'layer.bias' is f32[4], the model wants f64[4]"));
  CHECK(contains(refused({}), "it lacks the value 'layer.bias' f64[4] and 'layer.weight' f64[3,4]"));
  const StateDict far{{"layer.bias", four}, {"x", four}};
  CHECK_FALSE(contains(refused(far), "meant for"));
}

TEST_CASE("parameters of another model are named with their shapes, the first few of many") {
  std::vector<ParamSpec> params;
  for (int i = 0; i < 9; ++i) params.push_back({fmt::format("p{}", i), {i + 1}, {}});
  const auto refused = [&](const StateDict& values) {
    return message_of<ConfigError>([&] { check_fits(params, values, "the file"); });
  };
  const std::string text = refused({{"elsewhere", Array::zeros(DType::f32, {2, 2})}});
  CHECK(contains(text, "the file does not fit the model"));
  CHECK(contains(text,
                 "it lacks the parameter 'p0' [1], 'p1' [2], 'p2' [3], 'p3' [4], 'p4' [5], 'p5' [6] "
                 "and 3 more"));
  CHECK(contains(text, "it holds 'elsewhere' [2,2]"));
}

TEST_CASE("parameters are numbered in one order, whatever the compiler") {
  LanguageModelConfig config = small_model("lact-low-rank", Backbone::mamba);
  config.num_hidden_layers = 1;
  std::string names;
  for (ParamSpec& p : logits_model(config, DType::f64, i32({1, 4})).params)
    names += p.name.substr(p.name.rfind("layers.0.") == 6 ? 15 : 0) + "\n";
  CHECK(names == R"(seq_modeling_block.q_proj.weight
seq_modeling_block.v_proj.weight
seq_modeling_block.conv_q.weight
seq_modeling_block.conv_q.bias
seq_modeling_block.conv_k.weight
seq_modeling_block.conv_k.bias
seq_modeling_block.W0.right
seq_modeling_block.W0.left
seq_modeling_block.W1.right
seq_modeling_block.W1.left
seq_modeling_block.W2.right
seq_modeling_block.W2.left
model.embed_tokens.weight
conv.norm.weight
conv.conv.bias
conv.conv.weight
seq_norm.weight
seq_modeling_block.gates.rate.W0.bias
seq_modeling_block.gates.rate.W0.weight
seq_modeling_block.gates.rate.W1.bias
seq_modeling_block.gates.rate.W1.weight
seq_modeling_block.gates.rate.W2.bias
seq_modeling_block.gates.rate.W2.weight
seq_modeling_block.gates.momentum.bias
seq_modeling_block.gates.momentum.weight
seq_modeling_block.post_norm.bias
seq_modeling_block.post_norm.weight
seq_modeling_block.g_proj.weight
seq_modeling_block.o_proj.weight
ffn_norm.weight
mlp.gate_proj.weight
mlp.up_proj.weight
mlp.down_proj.weight
model.norm.weight
)");
}
