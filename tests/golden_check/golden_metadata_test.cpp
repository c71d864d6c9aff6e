// The promise: what the metadata of a golden file say is read or refused by name, whatever it is; what they leave out is as
// the operation is defined; and a file that has a part of its numbers is held to these, and its line says so.
#include <algorithm>

#include "models/json.h"
#include "ops/ops.h"
#include "tests/golden_check/changed_file.h"
#include "tests/golden_check/verify.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Change = std::function<void(SafeTensors&)>;

Change with(const std::string& key, const std::string& value) {
  return [=](SafeTensors& f) { f.metadata[key] = value; };
}

Change without(const std::vector<std::string>& keys) {
  return [=](SafeTensors& f) {
    for (const std::string& key : keys) REQUIRE(f.metadata.erase(key) == 1);
  };
}

Change without_tensors(const std::vector<std::string>& beginnings) {
  return [=](SafeTensors& f) {
    REQUIRE(std::erase_if(f.tensors, [&](const auto& each) {
              return std::ranges::any_of(beginnings,
                                         [&](const auto& b) { return each.first.starts_with(b); });
            }) > 0);
  };
}

Change with_field(const std::string& field, const nlohmann::json& value, const std::string& of = "") {
  return [=](SafeTensors& f) {
    nlohmann::json config = parse_json(f.metadata.at("config"));
    (of.empty() ? config : config.at(of))[field] = value;
    f.metadata.at("config") = config.dump();
  };
}

GoldenReport report(const std::string& name, const Change& change) {
  return verify_golden(Changed(name, change).path());
}

bool passes(const std::string& name, const Change& change) { return report(name, change).passes(1e-9); }

// Its line without the name of the file.
std::string line(const std::string& name, const Change& change) {
  const Changed file(name, change);
  return golden_verdict(file.path(), {}, 1e-9).line.substr(file.path().size() + 1);
}

const std::string kOneBlock = "end_to_end_one_suffix_block", kTwoBlocks = "end_to_end_two_suffix_blocks";

}  // namespace

TEST_CASE("a count in the metadata that is too large, too small or no integer is refused with its bounds") {
  struct Case {
    const char *file, *key;
    std::int64_t least, most;
  };
  const std::int64_t most = std::int64_t{1} << 24;
  for (const Case& c :
       {Case{"mesa_net", "cg_iterations", 0, 256}, Case{"mesa_net", "chunk_size", 1, most},
        Case{"lact_nvs_muon", "muon_update_steps", 0, 64}, Case{"lact_sgd_plain", "chunk_size", 1, most},
        Case{"lact_prenorm", "chunk_size", 1, most}, Case{"titans_linear", "chunk_size", 1, most},
        Case{"titans_linear", "batch_size", 1, most}, Case{"titans_mlp", "momentum_order", 0, 1},
        Case{"vittt_block", "h", 1, most}, Case{"vittt_block", "w", 1, most},
        Case{"vittt_block", "dim", 1, most}, Case{"vittt_block", "num_heads", 1, most},
        Case{"t5_attention", "dim", 1, most}, Case{"t5_attention", "num_heads", 1, most}}) {
    CAPTURE(c.file);
    CAPTURE(c.key);
    for (const std::string& value : {fmt::format("{}", c.least - 1), fmt::format("{}", c.most + 1),
                                     std::string("-9"), std::string("99999999999999999999")})
      CHECK(line(c.file, with(c.key, value)) ==
            fmt::format("REFUSED '{}' in the metadata is {}, it must be at least {} and at most {}", c.key,
                        value, c.least, c.most));
    for (const char* value : {"many", "", "4.0", "1e3", " 4"})
      CHECK(line(c.file, with(c.key, value)) ==
            fmt::format("REFUSED '{}' in the metadata is '{}', not an integer", c.key, value));
  }
}

TEST_CASE("the largest counts that are read ask for no more than the file has") {
  CHECK(line("titans_linear", with("batch_size", "16777216")).starts_with("FAIL "));
  CHECK(line("lact_sgd_plain", with("chunk_size", "16777216")).starts_with("FAIL "));
  CHECK(line("titans_linear",
             [](SafeTensors& f) { f.metadata["chunk_size"] = f.metadata["batch_size"] = "16777216"; }) ==
        "REFUSED 'chunk_size' in the metadata is 16777216, of which 18 tokens have 0; 'in.decay' is for 18");
  CHECK(line(kOneBlock, with_field("sliding_window_size", 1 << 30)).starts_with("FAIL "));
  for (const char* field : {"num_hidden_layers", "intermediate_size", "vocab_size"})
    CHECK(contains(line(kOneBlock, with_field(field, 1000)), "asks for at least"));
}

TEST_CASE("a number in the metadata that makes no sense is refused by name") {
  CHECK(line("t5_attention", with("instance_norm_eps", "-1")) ==
        "REFUSED 'instance_norm_eps' in the metadata is -1, it must be at least 0");
  CHECK(line("vittt_block", with("lr", "-0.5")) ==
        "REFUSED 'lr' in the metadata is -0.5, it must be at least 0");
  CHECK(contains(line(kOneBlock, with("step_index", "-2")), "'step_index' in the metadata is -2"));
  CHECK(contains(line(kOneBlock, with("step_index", "2.5")), "its 'step_index' is 2.5, no integer"));
  for (const char* value : {"nan", "inf", "1e999", "third", ""}) {
    CHECK(line("vittt_block", with("scale", value)) ==
          fmt::format("REFUSED 'scale' in the metadata is '{}', not a number", value));
    CHECK(contains(line("delta_rule", with("q_scale", value)), "'q_scale'"));
    CHECK(contains(line(kOneBlock, with("inner_rate", value)), "'inner_rate'"));
  }
  CHECK(contains(line("delta_rule", with("q_scale", "1/sqrt(d_v)")), "REFUSED 'q_scale'"));
  CHECK(line("t5_attention", with("dim", "6")) ==
        "REFUSED 'dim' in the metadata is 6, 'in.x' has 12 features");
  CHECK(contains(line(kOneBlock, with_field("suffix_len", 0)), "'suffix_len' of its 'config' is 0"));
  CHECK(contains(line(kOneBlock, with_field("rms_norm_eps", -1)),
                 "rms_norm_eps must be finite and not negative"));
  CHECK(contains(line(kOneBlock, with_field("rope_theta", 0)), "rope_theta must be finite and positive"));
}

TEST_CASE("what the metadata leave out is as the operation is defined") {
  struct Case {
    std::string file;
    std::vector<std::string> keys;
  };
  for (const Case& c :
       {Case{"linear_attention", {"layout", "q_scale"}}, Case{"delta_rule", {"q_scale"}},
        Case{"gated_delta_rule", {"layout", "q_scale", "g"}},
        Case{"gated_linear_attention", {"layout", "gk"}},
        Case{"mesa_net", {"layout", "chunk_size", "start", "g"}}, Case{"mesa_net_exact", {"layout"}},
        Case{"titans_mlp", {"layout", "read", "loss", "activation", "momentum_order"}},
        Case{"lact_sgd_plain", {"use_momentum", "order"}}, Case{"lact_muon_momentum", {"use_momentum"}},
        Case{"lact_nvs", {"apply_range", "note"}}, Case{"vittt_block", {"dim", "num_heads", "scale", "lr"}},
        Case{"t5_attention", {"dim", "num_heads", "instance_norm_eps"}},
        Case{kOneBlock, {"inner_rate", "labels", "inner", "source"}},
        Case{kTwoBlocks, {"inner_rate", "step_index"}}}) {
    CAPTURE(c.file);
    CHECK(passes(c.file, without(c.keys)));
    CHECK(passes(c.file, [&](SafeTensors& f) {
      for (const std::string& key : c.keys) f.metadata.at(key) = "None";
    }));
  }
  // What cannot be told is asked for.
  CHECK(line("gated_linear_attention", without({"q_scale"})) ==
        "REFUSED its metadata has no 'q_scale', which files of this kind have");
  CHECK(contains(line(kOneBlock, without({"step_index"})), "its metadata has no 'step_index'"));
  const auto as_many_heads_as_tokens = [](SafeTensors& f) {
    f.metadata.erase("layout");
    f.tensors.at("in.q") = Array::zeros(DType::f64, {2, 2, 2, 5});
    f.tensors.at("in.lamb") = Array::zeros(DType::f64, {2, 5});
  };
  CHECK(contains(line("mesa_net", as_many_heads_as_tokens), "REFUSED its metadata has no 'layout'"));
  // MesaNet's heads may stand in front, too.
  CHECK(passes("mesa_net", [](SafeTensors& f) {
    f.metadata.erase("layout");
    for (auto& [name, value] : f.tensors) {
      if (contains(name, "lamb") || contains(name, "h_k")) continue;
      const bool rows = value.shape().size() == 4;
      const std::vector<int> order = rows ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 2, 1};
      value = trace([&](Tensor x) { return Tensors{permute(x, order)}; }, value.spec())({value})[0];
    }
  }));
}

TEST_CASE("a flag is True, true or 1, or False, false or 0") {
  for (const char* yes : {"True", "true", "1"}) {
    CHECK(passes("lact_muon_plain", with("use_muon", yes)));
    CHECK(!passes("lact_sgd_plain", with("use_muon", yes)));
  }
  for (const char* no : {"False", "false", "0"}) {
    CHECK(passes("lact_sgd_plain", with("use_muon", no)));
    CHECK(!passes("lact_muon_plain", with("use_muon", no)));
  }
}

TEST_CASE("a statement of how the numbers were made, other than the one that can be checked, is refused") {
  struct Case {
    const char *file, *key;
  };
  for (const Case& c :
       {Case{"mesa_net", "start"}, Case{"mesa_net_exact", "start"}, Case{"lact_prenorm", "order"}}) {
    CAPTURE(c.file);
    CAPTURE(c.key);
    const std::string told = line(c.file, with(c.key, "otherwise"));
    CHECK(told.starts_with("REFUSED "));
    CHECK(contains(told, fmt::format("'{}' in the metadata is 'otherwise'; only", c.key)));
  }
  // Sentences for people.
  for (const char* key : {"note", "seed", "torch", "read", "loss"})
    CHECK(passes("titans_linear", with(key, "otherwise")));
}

TEST_CASE("a range of tokens has brackets and is one of the file's tokens") {
  for (const char* key : {"update_range", "apply_range"}) {
    for (const char* value :
         {"0, 12", "[0, 12", "[0 12]", "[3]", "[0, 6, 12]", "[]", "", "[0, 99999999999999999999]"})
      CHECK(line("lact_nvs", with(key, value)) ==
            fmt::format("REFUSED '{}' in the metadata is '{}', not [begin, end]", key, value));
    for (const char* value : {"[0, 19]", "[12, 0]", "[-1, 12]", "[5, 5]", "(0, 19)"})
      CHECK(line("lact_nvs", with(key, value)) ==
            fmt::format(
                "REFUSED '{}' in the metadata is '{}'; it must be [begin, end] with 0 <= begin < end <= 18, "
                "the number of tokens",
                key, value));
  }
  // In the range, but not as many rows as the file has.
  CHECK(line("lact_nvs", with("apply_range", "[1, 18]")) ==
        "REFUSED 'out.o' is f64[2,18,6], the operation gives f64[2,17,6]");
}

TEST_CASE("MesaNet that makes no step of conjugate gradients reads zeros") {
  const auto no_step = [](SafeTensors& f) {
    f.metadata.at("cg_iterations") = "0";
    std::erase_if(f.tensors, [](const auto& each) {
      return each.first.starts_with("out.h_") || each.first.starts_with("cotangent.h_");
    });
    for (auto& [name, value] : f.tensors)
      if (name == "out.o" || name.starts_with("grad.")) value = Array::zeros(DType::f64, value.shape());
  };
  CHECK(passes("mesa_net", no_step));
  CHECK(!passes("mesa_net", with("cg_iterations", "0")));
}

TEST_CASE("TTT-E2E: clip_gradient null clips nothing, as 0 does") {
  const auto clip = [](const nlohmann::json& value) {
    return report(kOneBlock, with_field("clip_gradient", value, "optimizer_inner"));
  };
  const GoldenReport none = clip(nullptr), zero = clip(0.0);
  CHECK(none.output_error == zero.output_error);
  CHECK(none.output_error > 1e-3);  // the file's own are clipped
}

TEST_CASE("a file with a part of the numbers is held to these, and its line tells what was not there") {
  const auto two_gradients = [](SafeTensors& f) {
    for (const char* name : {"grad.k", "grad.beta", "grad.initial_state"})
      REQUIRE(f.tensors.erase(name) == 1);
  };
  CHECK(line("delta_rule", two_gradients).ends_with(" wy (gradients of 2 of 5 inputs)"));
  CHECK(line("vittt_block", without_tensors({"grad.param.w"})).ends_with("(gradients of 5 of 8 inputs)"));
  CHECK(line("delta_rule", without_tensors({"out.final_state"})).ends_with(" (not there: out.final_state)"));
  CHECK(!contains(line("delta_rule", [](SafeTensors&) {}), "("));

  const std::string name = "ttt_linear_transformer", tap = "tap.layers.1.seq_modeling_block.output";
  CHECK(contains(line(name, without_tensors({"grad.model.layers."})), " (gradients of 2 of 38 inputs)"));
  CHECK(line(name, without_tensors({tap})).starts_with("PASS "));
  CHECK(line(name, without_tensors({tap})).ends_with(fmt::format(" (not there: {})", tap)));
  const std::string no_logits = line(name, without_tensors({"logits", "loss", "grad."}));
  CHECK(no_logits.starts_with("PASS - "));
  CHECK(no_logits.ends_with(" - - - (no gradients) (not there: loss, logits)"));
  CHECK(line(kTwoBlocks, without_tensors({"clipped_norm", "inner.", "token_loss"})).starts_with("PASS "));
  CHECK(contains(line(kTwoBlocks, without_tensors({"clipped_norm", "chunk_loss"})),
                 " (not there: chunk_loss, clipped_norm)"));
  for (const std::string& of : {name, kOneBlock}) {
    const auto scalar = [](SafeTensors& f) { f.tensors.at("loss") = f.tensors.at("loss").reshaped({}); };
    CHECK(passes(of, scalar));
    CHECK(!passes(of, [&](SafeTensors& f) { nudge(f, "loss"), scalar(f); }));
  }
  // What is there is compared.
  CHECK(!passes("delta_rule", [&](SafeTensors& f) { two_gradients(f), nudge(f, "grad.q"); }));
  CHECK(!passes(name, [&](SafeTensors& f) { f.tensors.erase("logits"), nudge(f, tap); }));
  CHECK(!passes(name, [&](SafeTensors& f) {
    without_tensors({"grad.model.layers."})(f), nudge(f, "grad.model.norm.weight");
  }));
  CHECK(!passes(kOneBlock, [](SafeTensors& f) { f.tensors.erase("chunk_loss"), nudge(f, "token_loss"); }));
}

TEST_CASE(
    "TTT-E2E: whether a target was left out is not guessed where the losses that tell it are not there") {
  const SafeTensors original = read_safetensors(golden(kOneBlock));
  const double target = original.tensors.at("tokens").at(1);
  for (const char* loss : {"token_loss", "chunk_loss"})
    CHECK(contains(line(kOneBlock,
                        [&](SafeTensors& f) {
                          with_field("bos_token_id", static_cast<std::int64_t>(target))(f);
                          f.metadata.erase("labels"), f.tensors.erase(loss);
                        }),
                   fmt::format("which is a target: without '{}' nothing says if it was left out", loss)));
}
