// The promise: models that train while they read give the official numbers, whatever of the official options that can be
// checked they were made with; another option is refused by name.
#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "models/end_to_end.h"
#include "models/json.h"
#include "models/traced_model.h"
#include "ops/ops.h"
#include "tests/golden_check/changed_file.h"
#include "tests/golden_check/verify.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("a model that trains while it reads, with one block that learns and with two") {
  for (const std::string name : {"end_to_end_one_suffix_block", "end_to_end_two_suffix_blocks"}) {
    CAPTURE(name);
    const GoldenReport r = verify_golden(golden(name));
    CAPTURE(r.worst_output_name);
    CAPTURE(r.worst_grad_name);
    CHECK(r.loss_error < 1e-9);
    CHECK(r.output_error < 1e-9);
    CHECK(r.worst_grad_error < 1e-9);
    CHECK(golden_verdict(golden(name), {}, 1e-9)
              .line.ends_with(r.worst_grad_name + " -"));  // nothing is decoded
    // With two blocks rounding grows from chunk to chunk: 1.7e-4 on the CPU, somewhat more where products add up in
    // another order.
    CHECK(verify_golden(golden(name), {.dtype = DType::f32}).passes(1e-3));
  }
}

TEST_CASE("negative control: one wrong number of a model that trains while it reads is noticed" *
          doctest::test_suite("slow")) {
  const std::string name = "end_to_end_two_suffix_blocks";
  const SafeTensors original = read_safetensors(golden(name));
  for (const auto& each : original.tensors) {
    const std::string& tensor = each.first;
    if (each.second.dtype() != DType::f64) continue;
    CAPTURE(tensor);
    CHECK(!verify_golden(Changed(name, [&](SafeTensors& f) { nudge(f, tensor); }).path()).passes(1e-9));
  }
  const auto refused = [&](const std::function<void(SafeTensors&)>& change) {
    return message_of<IoError>([&] { verify_golden(Changed(name, change).path()); });
  };
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["inner_rate"] = "fast"; }), "'fast', not a number"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["inner_rate"] = "0.5"; }), "its ramp says 1"));
  CHECK(contains(message_of<ConfigError>([&] {
                   verify_golden(Changed(name, [](SafeTensors& f) {
                                   std::string& config = f.metadata.at("config");
                                   const std::string field = "\"mini_batch_size\": 8";
                                   config.replace(config.find(field), field.size(), "\"mini_batch_size\": 0");
                                 }).path());
                 }),
                 "chunk must be at least 1"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["config"] = "[]"; }), "no JSON object"));
  CHECK(contains(refused([](SafeTensors& f) { f.metadata["config"] = "{}"; }), "'prime' of its 'config'"));
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.erase("tokens"); }), "has no tensor 'tokens'"));
}

namespace {

constexpr std::int64_t kBos =
    46;  // of one_suffix_block: a target of the first sequence's first and third chunk alone

// The numbers of a file like one_suffix_block with another bos_token, clip and window. They are of the library's model, which
// tests/models/end_to_end_test.cpp holds to a calculation by hand; the loss is the mean of the chunks' own means. in_tokens:
// the losses of tokens are 0 where a target does not count, too, which the official program does not do itself.
void compute_anew(SafeTensors& f, std::int64_t bos, double clip, bool in_tokens = false,
                  std::int64_t window = 12) {
  const EndToEndConfig config{.vocab_size = 61,
                              .hidden_size = 24,
                              .intermediate_size = 16,
                              .num_hidden_layers = 3,
                              .num_attention_heads = 2,
                              .suffix_len = 1,
                              .window = window,
                              .chunk = 8,
                              .rate = 0.46,
                              .clip = clip,
                              .bos_token = bos};
  StateDict params;
  for (const auto& [name, value] : f.tensors)
    if (name.starts_with("param.")) params.emplace(name.substr(6), value);
  const Array tokens = f.tensors.at("tokens");
  const TracedModel model =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
        const EndToEndReading r = EndToEndModel(config, Params(table)).read(in[0]);
        const auto sums = [](Tensor x) { return sum(reshape(x, {2, 4, 8}), {2}); };
        const Tensor of_chunks = r.counts.defined() ? sums(r.loss) / sums(r.counts) : sums(r.loss) / 8.0;
        Tensors out{reshape(mean(of_chunks), {1}), in_tokens ? r.loss : r.of_all, of_chunks, r.clipped_norm};
        for (const Tensor& w : r.last.values()) out.push_back(reshape(w, {2, 1, w.dim(1), w.dim(2)}));
        const Tensors grads = grad(mean(of_chunks), table.tensors());
        out.insert(out.end(), grads.begin(), grads.end());
        return out;
      });
  const Arrays numbers = model.function(model.bind({tokens}, {&params}));
  std::vector<std::string> names{"loss", "token_loss", "chunk_loss", "clipped_norm"};
  for (const char* w : {"w1", "w2", "w3"})
    names.push_back(
        fmt::format("inner.language_model.model.h.prime_storage.feed_forward_prime.{}.weight", w));
  for (const ParamSpec& p : model.params) names.push_back("grad." + p.name);
  for (std::size_t i = 0; i < names.size(); ++i) {
    REQUIRE(f.tensors.contains(names[i]));
    f.tensors.at(names[i]) = numbers[i];
  }
}

void leave_out(SafeTensors& f, bool in_tokens) { compute_anew(f, kBos, 0.8, in_tokens); }

void name_bos(SafeTensors& f) {
  std::string& config = f.metadata.at("config");
  config.insert(config.size() - 1, fmt::format(R"(, "bos_token_id": {})", kBos));
  f.metadata.at("labels") = "tokens[:, 1:]";
}

}  // namespace

TEST_CASE("TTT-E2E: targets that begin a text are left out where the file's numbers leave them out") {
  const std::string name = "end_to_end_one_suffix_block";
  const auto passes = [&](const std::function<void(SafeTensors&)>& change) {
    return verify_golden(Changed(name, change).path()).passes(1e-9);
  };
  for (const bool in_tokens : {false, true}) {
    CAPTURE(in_tokens);
    CHECK(passes([&](SafeTensors& f) { leave_out(f, in_tokens), name_bos(f); }));
    for (const char* tensor : {"loss", "token_loss", "chunk_loss", "clipped_norm"})
      CHECK(!passes([&](SafeTensors& f) { leave_out(f, in_tokens), name_bos(f), nudge(f, tensor); }));
    // Without the configuration's word nothing was left out.
    CHECK(!passes([&](SafeTensors& f) { leave_out(f, in_tokens); }));
  }
  CHECK(passes(name_bos));  // none was left out, whatever the configuration names
  CHECK(!passes([&](SafeTensors& f) { name_bos(f), nudge(f, "chunk_loss"); }));
  // The masked mean over all tokens is another number.
  CHECK(!passes([&](SafeTensors& f) {
    leave_out(f, true), name_bos(f);
    double total = 0;
    for (const double l : f.tensors.at("token_loss").as<double>()) total += l;
    f.tensors.at("loss").as<double>()[0] = total / 62;
  }));
  CHECK(contains(message_of<IoError>([&] {
                   verify_golden(Changed(name, [](SafeTensors& f) {
                                   std::string& config = f.metadata.at("config");
                                   config.insert(config.size() - 1, R"(, "bos_token_id": "first")");
                                   f.metadata.erase("labels");
                                 }).path());
                 }),
                 "'bos_token_id' of its 'config'"));
}

TEST_CASE("TTT-E2E: a clip_gradient of 0 or less clips nothing") {
  for (const char* clip : {"0", "0.0", "-1.0"}) {
    const auto no_clip = [&](SafeTensors& f) {
      std::string& config = f.metadata.at("config");
      const std::string field = "\"clip_gradient\": ";
      config.replace(config.find(field), field.size() + 3, field + clip);  // it is 0.8
    };
    CHECK(!verify_golden(Changed("end_to_end_one_suffix_block", no_clip).path()).passes(1e-3));
    CHECK(verify_golden(Changed("end_to_end_one_suffix_block",
                                [&](SafeTensors& f) { compute_anew(f, -1, 1e9), no_clip(f); })
                            .path())
              .passes(1e-12));
  }
}

TEST_CASE(
    "TTT-E2E: a gradient that is zero in the file is within rounding of zero, and any other is noticed") {
  // A window of one token: whatever queries and keys are, it reads itself.
  const std::string name = "end_to_end_one_suffix_block",
                    keys = "grad.language_model.model.h.blocks.seq_modeling_block.wk.weight";
  const auto one_token = [&](SafeTensors& f) {
    compute_anew(f, -1, 0.8, false, 1);
    std::string& config = f.metadata.at("config");
    const std::string field = "\"sliding_window_size\": ";
    config.replace(config.find(field), field.size() + 2, field + "1");  // it is 12
    for (const char* of : {"wq", "wk", "q_norm", "k_norm"})
      std::ranges::fill(
          f.tensors.at(fmt::format("grad.language_model.model.h.blocks.seq_modeling_block.{}.weight", of))
              .as<double>(),
          0.0);
  };
  CHECK(verify_golden(Changed(name, one_token).path()).passes(1e-12));
  // Ours is zero, the file's is not: by its own size.
  const Changed wrong(name, [&](SafeTensors& f) {
    one_token(f);
    f.tensors.at(keys).as<double>()[3] = 1e-12;
  });
  CHECK(verify_golden(wrong.path()).worst_grad_error == doctest::Approx(1));
}

namespace {

// With its configuration changed.
Changed with_config(const std::string& name, const std::function<void(nlohmann::json&)>& change) {
  return Changed(name, [&](SafeTensors& f) {
    nlohmann::json config = parse_json(f.metadata.at("config"));
    change(config);
    f.metadata.at("config") = config.dump();
  });
}

}  // namespace

TEST_CASE(
    "TTT-E2E: an official option that is none of ours is refused by name, and says if it was left out") {
  const std::string name = "end_to_end_one_suffix_block";
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change) {
    const Changed file = with_config(name, change);
    const std::string message = message_of<IoError>([&] { verify_golden(file.path()); });
    CHECK(!contains(message, "known kind"));
    return message;
  };
  struct Case {
    const char* field;
    nlohmann::json value, known;
  };
  const Case cases[] = {{"prime", false, true},
                        {"qk_norm", false, true},
                        {"pre_norm", false, true},
                        {"post_norm", false, true},
                        {"tie_word_embeddings", false, true},
                        {"train_mode", "pretrain", "meta"},
                        {"seq_modeling_block", "self_attention", "SWA"},
                        {"feed_forward_prime", "mlp", "swiglu"},
                        {"resid_pdrop", 0.1, 0.0},
                        {"embd_pdrop", 0.1, 0.0},
                        {"attn_pdrop", 0.1, 0.0}};
  for (const Case& c : cases) {
    CAPTURE(c.field);
    CHECK(contains(refused([&](nlohmann::json& j) { j[c.field] = c.value; }),
                   fmt::format("'{}' of its 'config' is {}; only {} can be checked", c.field, c.value.dump(),
                               c.known.dump())));
  }
  CHECK(contains(refused([](nlohmann::json& j) { j["optimizer_inner"]["optimizer_type"] = "adamw"; }),
                 "'optimizer_type' of its 'config' is \"adamw\"; only \"sgd\" can be checked"));
  CHECK(contains(refused([](nlohmann::json& j) { j["optimizer_inner"] = nullptr; }), "'optimizer_inner'"));
  CHECK(contains(refused([](nlohmann::json& j) { j.erase("train_mode"); }),
                 "is \"pretrain\", as it is officially where it is left out; only \"meta\""));
  CHECK(
      contains(refused([](nlohmann::json& j) { j.erase("hidden_size"); }), "'hidden_size' of its 'config'"));
}

TEST_CASE("TTT-E2E: what learns is what spec_inner names, by whatever pattern") {
  using Patterns = std::vector<std::string>;
  const auto with = [](const nlohmann::json& spec) {
    return with_config("end_to_end_two_suffix_blocks", [&](nlohmann::json& j) { j["spec_inner"] = spec; });
  };
  for (const nlohmann::json& spec : std::vector<nlohmann::json>{
           Patterns{"language_model.**.feed_forward_prime.*.weight"},
           Patterns{"language_model.model.h.suffix_blocks.feed_forward_prime.w*.weight"},
           Patterns{"**.w1.nothing", "**.feed_forward_prime.w1.**", "**.feed_forward_prime.w3.*",
                    "**.*_prime.w2.weight"},
       }) {
    CAPTURE(spec.dump());
    CHECK(verify_golden(with(spec).path()).passes(1e-9));
  }
  std::vector<nlohmann::json> others;
  others.emplace_back("**.feed_forward_prime.**");  // no list
  for (const Patterns& list : {
           Patterns{"**"},
           Patterns{},
           Patterns{"**.feed_forward_prime.w2.**"},
           Patterns{"**.feed_forward_prime"},
           Patterns{"**.prime_storage.feed_forward_prime.**"},
           Patterns{"**.suffix_blocks.**.weight"},
           Patterns{"**.feed_forward_prime.**", "**.wte.**"},
           Patterns{"**.feed_forward_prime.**", "**.prefix_blocks.ffn_norm.**"},
       })
    others.emplace_back(list);
  for (const nlohmann::json& spec : others) {
    CAPTURE(spec.dump());
    CHECK(contains(message_of<IoError>([&] { verify_golden(with(spec).path()); }),
                   fmt::format("'spec_inner' of its 'config' is {}; only what names", spec.dump())));
  }
}

TEST_CASE("TTT-E2E: a field that is left out is what it is officially") {
  const auto without = [](const std::string& name, const std::vector<std::string>& fields) {
    return with_config(name, [&](nlohmann::json& j) {
      for (const std::string& field : fields) REQUIRE(j.erase(field) == 1);
    });
  };
  CHECK(verify_golden(without("end_to_end_one_suffix_block",
                              {"qk_norm", "pre_norm", "post_norm", "feed_forward_prime", "resid_pdrop",
                               "embd_pdrop", "attn_pdrop", "rms_norm_eps", "rope_theta"})
                          .path())
            .passes(1e-9));
  CHECK(verify_golden(without("end_to_end_two_suffix_blocks", {"ilr_init", "ilr_warmup_steps"}).path())
            .passes(1e-9));
  CHECK(!verify_golden(without("end_to_end_two_suffix_blocks", {"rope_theta"}).path())
             .passes(1e-9));  // it is 500000
  const Changed no_clip("end_to_end_one_suffix_block", [](SafeTensors& f) {
    compute_anew(f, -1, 0);
    nlohmann::json config = parse_json(f.metadata.at("config"));
    config["optimizer_inner"].erase("clip_gradient");
    f.metadata.at("config") = config.dump();
  });
  CHECK(verify_golden(no_clip.path()).passes(1e-12));
}
