// The promise: a golden file that was made in a way that cannot be checked, or holds what nobody compares, is refused and
// says why; it neither passes nor differs.
#include <algorithm>

#include "models/json.h"
#include "ops/ops.h"
#include "tests/golden_check/changed_file.h"
#include "tests/golden_check/verify.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::FormChoice;

TEST_CASE("a file that is no golden file of a known kind is an IoError that says what is missing") {
  const auto refused = [](const std::function<void(SafeTensors&)>& change) {
    const Changed file("ttt_linear_transformer", change);
    const std::string message = message_of<IoError>([&] { verify_golden(file.path()); });
    CHECK(contains(message, file.path()));
    return message;
  };
  CHECK(contains(refused([](SafeTensors& f) { f.metadata.clear(); }), "not a golden file of a known kind"));
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.erase("input_ids"); }),
                 "not a golden file of a known kind"));
  CHECK(contains(refused([](SafeTensors& f) {
                   std::erase_if(f.tensors, [](const auto& t) {
                     return t.first != "input_ids" && !t.first.starts_with("param.");
                   });
                 }),
                 "it has no tensor 'loss', 'logits', 'tap.layers.0.seq_modeling_block.output', "
                 "'tap.layers.1.seq_modeling_block.output', and no gradients: there is nothing to compare"));
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.at("input_ids") = Array::zeros(DType::i32, {24}); }),
                 "'input_ids' is i32[24]"));
  CHECK_THROWS_AS(verify_golden(golden("no_such_file")), IoError);
}

TEST_CASE("a file that is refused has its line, which names it, and throws nothing") {
  using Kind = GoldenVerdict::Kind;
  const auto of = [](const std::string& path, GoldenOptions options = {}) {
    return golden_verdict(path, options, 1e-9);
  };
  const GoldenVerdict none = of(golden("no_such_file"));
  CHECK(none.kind == Kind::refused);
  CHECK(none.line.starts_with(golden("no_such_file") + " REFUSED "));
  const Changed empty("delta_rule", [](SafeTensors& f) { f.metadata.clear(); });
  CHECK(of(empty.path()).kind == Kind::refused);
  CHECK(contains(of(empty.path()).line, "not a golden file of a known kind"));
  const Changed misfit("ttt_linear_transformer",
                       [](SafeTensors& f) { f.tensors.erase("param.model.norm.weight"); });
  CHECK(contains(of(misfit.path()).line, "REFUSED"));
  const GoldenVerdict form = of(golden("delta_rule"), {.form = FormChoice::parallel});
  CHECK(form.kind == Kind::refused);
  CHECK(form.line.starts_with(golden("delta_rule") + " REFUSED "));
  CHECK(!contains(form.line, "\n"));
  CHECK(of(golden("delta_rule")).kind == Kind::passes);
  CHECK(of(golden("delta_rule")).line.starts_with(golden("delta_rule") + " PASS - "));
  const Changed wrong("delta_rule", [](SafeTensors& f) { nudge(f, "out.o"); });
  CHECK(of(wrong.path()).kind == Kind::differs);
  CHECK(contains(of(wrong.path()).line, " FAIL - "));
}

TEST_CASE("a damaged file of an operation is an IoError that says what is missing or wrong") {
  const auto refused = [](const std::string& name, const std::function<void(SafeTensors&)>& change) {
    const Changed file(name, change);
    const std::string message = message_of<IoError>([&] { verify_golden(file.path()); });
    CHECK(contains(message, file.path()));
    return message;
  };
  CHECK(contains(refused("delta_rule", [](SafeTensors& f) { f.metadata["op"] = "no_such"; }),
                 "there is no operation 'no_such'; there are linear_attention, delta_rule"));
  CHECK(contains(refused("delta_rule", [](SafeTensors& f) { f.tensors.erase("in.beta"); }),
                 "it has no tensor 'in.beta'"));
  CHECK(contains(
      refused("delta_rule", [](SafeTensors& f) { f.tensors.at("in.q") = Array::zeros(DType::f64, {4}); }),
      "'in.q' is f64[4]; it must have 4 axes"));
  CHECK(
      contains(refused("delta_rule",
                       [](SafeTensors& f) { f.tensors.emplace("out.extra", Array::zeros(DType::f64, {1})); }),
               "'delta_rule' has no output 'extra'"));
  CHECK(contains(
      refused("delta_rule",
              [](SafeTensors& f) { f.tensors.emplace("grad.extra", Array::zeros(DType::f64, {1})); }),
      "the operation has no such input"));
  // What is not read is no input of the operation, or not of this one: the line says so, and the numbers decide.
  const auto line = [](const std::string& op, const std::string& name, double gradient) {
    const Changed file(op, [&](SafeTensors& f) {
      f.tensors.emplace("in." + name, Array::zeros(DType::f64, {2, 20, 1}));
      f.tensors.emplace("grad." + name, Array::full(DType::f64, {2, 20, 1}, gradient));
    });
    return golden_verdict(file.path(), {}, 1e-9).line;
  };
  for (const auto& [op, name] : std::map<std::string, std::string>{
           {"delta_rule", "extra"}, {"lact_sgd_plain", "momentum"}, {"linear_attention", "beta"}}) {
    CAPTURE_BOUND(op);
    const std::string idle = line(op, name, 0), matters = line(op, name, 0.5);
    CHECK(contains(idle, " PASS "));
    CHECK(contains(idle, fmt::format("(not read: in.{})", name)));
    CHECK(contains(matters, " FAIL "));
    CHECK(contains(matters, fmt::format("(not read: in.{})", name)));
  }
  CHECK(contains(refused("linear_attention", [](SafeTensors& f) { f.metadata["normalize"] = "yes"; }),
                 "'normalize' in the metadata is 'yes', not True or False"));
  CHECK(verify_golden(
            Changed("linear_attention", [](SafeTensors& f) { f.metadata["normalize"] = "False"; }).path())
            .passes(1e-9));
  CHECK(contains(refused("lact_sgd_plain", [](SafeTensors& f) { f.metadata.erase("chunk_size"); }),
                 "its metadata has no 'chunk_size'"));
  CHECK(contains(refused("lact_sgd_plain", [](SafeTensors& f) { f.metadata["chunk_size"] = "four"; }),
                 "'chunk_size' in the metadata is 'four', not an integer"));
  CHECK(contains(refused("lact_sgd_plain", [](SafeTensors& f) { f.metadata["use_muon"] = "yes"; }),
                 "'use_muon' in the metadata is 'yes', not True or False"));
  CHECK(contains(
      message_of<FormError>([] { verify_golden(golden("mesa_net_exact"), {.form = FormChoice::dual}); }),
      "fast weight 'H_kk' is used in"));
}

TEST_CASE(
    "a golden file that does not fit its own configuration "
    "is a ConfigError that names the field or the parameter") {
  const auto refused = [](const std::function<void(SafeTensors&)>& change) {
    const Changed file("ttt_linear_transformer", change);
    return message_of<ConfigError>([&] { verify_golden(file.path()); });
  };
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.erase("param.model.norm.weight"); }),
                 "lacks the parameter 'model.norm.weight'"));
  CHECK(contains(
      refused([](SafeTensors& f) { f.tensors.emplace("param.extra", Array::zeros(DType::f64, {1})); }),
      "holds 'extra'"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["config"] = R"({"hidden_size": "wide"})"; }),
                 "field 'hidden_size' has the wrong type"));
}

TEST_CASE(
    "what a file expects and nobody computes is refused by name, and an input that is not read is told") {
  struct Case {
    const char *file, *tensor;
  };
  for (const Case& c :
       {Case{"ttt_linear_transformer", "tap.layers.0.mlp.output"},
        Case{"ttt_linear_transformer", "grad.model.other"}, Case{"ttt_linear_transformer", "perplexity"},
        Case{"ttt_mlp_mamba", "inner.layers.0.W1"}, Case{"ttt_linear_transformer", "grad.lm_head.bias"},
        Case{"end_to_end_one_suffix_block", "inner.language_model.model.h.blocks.feed_forward.w1.weight"},
        Case{"end_to_end_one_suffix_block", "tap.language_model.model.h.output"},
        Case{"end_to_end_one_suffix_block", "grad.language_model.lm_head.weight"},
        Case{"end_to_end_two_suffix_blocks", "unclipped_norm"}, Case{"delta_rule", "final_state"},
        Case{"delta_rule", "tap.o"}}) {
    CAPTURE(c.tensor);
    const Changed file(c.file,
                       [&](SafeTensors& f) { f.tensors.emplace(c.tensor, Array::zeros(DType::f64, {2})); });
    CHECK(contains(message_of<IoError>([&] { verify_golden(file.path()); }),
                   fmt::format("it expects '{}', and nothing is computed here", c.tensor)));
  }
  for (const Case& c :
       {Case{"ttt_linear_transformer", "labels"}, Case{"ttt_linear_transformer", "in.mask"},
        Case{"end_to_end_one_suffix_block", "position_ids"}, Case{"delta_rule", "in.extra"}}) {
    CAPTURE(c.tensor);
    const Changed file(c.file,
                       [&](SafeTensors& f) { f.tensors.emplace(c.tensor, Array::zeros(DType::f64, {2})); });
    const std::string line = golden_verdict(file.path(), {}, 1e-9).line;
    CHECK(contains(line, " PASS "));
    CHECK(line.ends_with(fmt::format("(not read: {})", c.tensor)));
  }
  const Changed cotangent("delta_rule", [](SafeTensors& f) {
    f.tensors.emplace("cotangent.extra", Array::zeros(DType::f64, {2}));
  });
  CHECK(contains(message_of<IoError>([&] { verify_golden(cotangent.path()); }),
                 "'delta_rule' has no output 'extra'"));
  // Gradients of an output that is not there to be compared.
  CHECK(
      verify_golden(Changed("delta_rule", [](SafeTensors& f) { f.tensors.erase("out.final_state"); }).path())
          .passes(1e-9));
}

namespace {

// With a field of its configuration changed.
void set_field(SafeTensors& f, const char* field, const nlohmann::json& value) {
  nlohmann::json config = parse_json(f.metadata.at("config"));
  config[field] = value;
  f.metadata.at("config") = config.dump();
}

}  // namespace

TEST_CASE("a whole model's official options that are none of ours are refused by name") {
  const std::string name = "ttt_linear_transformer";
  const auto with = [&](const char* field, const nlohmann::json& value) {
    return [=](SafeTensors& f) { set_field(f, field, value); };
  };
  const std::pair<const char*, nlohmann::json> options[] = {{"hidden_act", "gelu"},
                                                            {"rope_scaling", nlohmann::json::object()},
                                                            {"num_key_value_heads", 1},
                                                            {"model_type", "llama"}};
  for (const auto& [field, value] : options) {
    CAPTURE_BOUND(field);
    const Changed file(name, with(field, value));
    CHECK(contains(message_of<ConfigError>([&] { verify_golden(file.path()); }),
                   fmt::format("{} is {}; it can only be", field, value.dump())));
  }
  const std::pair<const char*, nlohmann::json> ours[] = {
      {"hidden_act", "silu"}, {"rope_scaling", nullptr}, {"num_key_value_heads", 2}, {"model_type", "ttt"}};
  for (const auto& [field, value] : ours)
    CHECK(verify_golden(Changed(name, with(field, value)).path()).passes(1e-9));
}

TEST_CASE("a token of padding, whose looking up has officially no gradient, is refused where it occurs") {
  const std::string name = "ttt_linear_transformer";
  const SafeTensors original = read_safetensors(golden(name));
  const auto ids = original.tensors.at("input_ids").as<std::int32_t>();
  std::int32_t absent = 0;
  while (std::ranges::count(ids, absent) > 0) ++absent;
  const std::int32_t there = ids[5];
  REQUIRE(absent < 61);
  const auto with = [&](const nlohmann::json& token, bool gradients = true) {
    return Changed(name, [&, gradients](SafeTensors& f) {
      set_field(f, "pad_token_id", token);
      if (!gradients) std::erase_if(f.tensors, [](const auto& t) { return t.first.starts_with("grad."); });
    });
  };
  for (const std::int32_t token : {there, there - 61})  // torch counts from the end, too
    CHECK(contains(message_of<IoError>([&] { verify_golden(with(token).path()); }),
                   fmt::format("'pad_token_id' of its 'config' is {}, and the token occurs", token)));
  CHECK(contains(message_of<IoError>([&] { verify_golden(with("none").path()); }), "\"none\", no token"));
  CHECK(verify_golden(with(there, false).path()).passes(1e-9));
  CHECK(verify_golden(with(absent).path()).passes(1e-9));
  CHECK(verify_golden(with(nullptr).path()).passes(1e-9));
}

TEST_CASE("the output matrix of a tied model may stand beside its embedding, or in its place") {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  const auto report = [](const std::function<void(SafeTensors&)>& change) {
    return verify_golden(Changed("ttt_linear_transformer", change).path());
  };
  const auto both = [&](SafeTensors& f) {
    for (const std::string of : {"param.", "grad."}) {
      const Array& numbers = f.tensors.at(of + embedding);
      f.tensors[of + head] = Array::of(numbers.to_vector(), numbers.shape());  // of its own: nudge moves one
    }
  };
  CHECK(report([&](SafeTensors& f) {
          f.tensors["param." + head] = f.tensors.at("param." + embedding);
        }).passes(1e-9));
  CHECK(report(both).passes(1e-9));
  const GoldenReport nudged = report([&](SafeTensors& f) { both(f), nudge(f, "grad." + head); });
  CHECK(!nudged.passes(1e-9));
  CHECK(nudged.worst_grad_name == head);
  const GoldenReport beside = report([&](SafeTensors& f) { both(f), nudge(f, "grad." + embedding); });
  CHECK(beside.worst_grad_name == embedding);
  const auto alone = [&](SafeTensors& f) {
    both(f);
    for (const char* of : {"param.", "grad."}) f.tensors.erase(of + embedding);
  };
  CHECK(report(alone).passes(1e-9));
  CHECK(!report([&](SafeTensors& f) { alone(f), nudge(f, "grad." + head); }).passes(1e-9));
  CHECK(contains(
      message_of<ConfigError>([&] { report([&](SafeTensors& f) { both(f), nudge(f, "param." + head); }); }),
      "'param.lm_head.weight' is not 'param.model.embed_tokens.weight', which tie_word_embeddings says"));
}

TEST_CASE("an operation that says what changes its numbers and is not known is refused by name") {
  const auto with = [](const char* name, const char* key, const char* value) {
    return Changed(name, [=](SafeTensors& f) { f.metadata[key] = value; });
  };
  struct Case {
    const char *file, *key, *refused, *known;
  };
  for (const Case& c :
       {Case{"gated_delta_rule", "layout", "BTHD", "B T H D"},
        Case{"delta_rule", "layout", "H B T D", "B H T D"},
        Case{"titans_mlp", "layout", "[B, H, T, D]", "B H T D"},
        Case{"mesa_net", "start", "x0 = q / (diag(H) + lamb)", "x0 = 0"},
        Case{"lact_sgd_plain", "order", "update then apply", "apply then update; last chunk only applied"}}) {
    CAPTURE(c.file);
    const Changed other = with(c.file, c.key, c.refused);
    CHECK(contains(message_of<IoError>([&] { verify_golden(other.path()); }),
                   fmt::format("'{}' in the metadata is '{}'; only '", c.key, c.refused)));
    CHECK(verify_golden(with(c.file, c.key, c.known).path()).passes(1e-9));
  }
  for (const char* range : {"(0, 18)", "[0,18]", "( 0 , 18 )"})
    CHECK(verify_golden(with("lact_nvs", "apply_range", range).path()).passes(1e-9));
}
