// Promises of models as their authors ship them. The files in tests/published are made by the packages that make
// the published ones (make.py there), with the numbers of golden files.
#include "models/published.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "engine/io/flax_stream.h"
#include "engine/io/safetensors.h"
#include "models/checkpoint.h"
#include "models/sample.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;
namespace fs = std::filesystem;

namespace {

std::string published(const std::string& name) {
  return fmt::format("{}/published/{}", NESTGRAD_TEST_DATA, name);
}

struct Golden {
  LanguageModelConfig config;
  Array tokens, logits;
  StateDict params;
};
Golden golden(const std::string& name) {
  SafeTensors file = read_safetensors(std::string(NESTGRAD_TEST_DATA) + "/golden/" + name + ".safetensors");
  Golden out{LanguageModelConfig::from_json(file.metadata.at("config"), name),
             file.tensors.at("input_ids"),
             file.tensors.at("logits"),
             {}};
  for (const auto& [key, value] : file.tensors)
    if (key.starts_with("param.")) out.params.emplace(key.substr(6), value);
  return out;
}

Array logits_of(const Checkpoint& model, const Array& tokens) {
  const TracedModel traced = logits_model(model.config, DType::f32, tokens.spec());
  check_fits(traced.params, model.params, "the checkpoint");
  return traced.function(traced.bind({tokens}, {&model.params}))[0].cast(DType::f64);
}

// Every number is the golden's within what rounding to so many bits may do.
void check_rounded(const StateDict& params, const StateDict& exact, int bits) {
  for (const auto& [name, value] : params) {
    CAPTURE_BOUND(name);
    const std::vector<double> a = value.to_vector(), b = exact.at(name).to_vector();
    REQUIRE(value.shape() == exact.at(name).shape());
    for (std::size_t i = 0; i < a.size(); ++i)
      CHECK(std::abs(a[i] - b[i]) <= std::ldexp(std::abs(b[i]), -bits) + 1e-7);
  }
}

// A copy of a published folder, to be damaged.
struct Copy : TemporaryFolder {
  explicit Copy(const std::string& name) { fs::copy(published(name), path, fs::copy_options::recursive); }
  std::string text(const std::string& file) const { return read_file(*this / file); }
  void write(const std::string& file, const std::string& bytes) const {
    std::ofstream(path / file, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Replaces text of the same length, so that a header of safetensors stays whole.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string all = text(file);
    const auto at = all.find(from);
    REQUIRE(at != all.npos);
    write(file, all.replace(at, from.size(), to));
  }
  template <class E>
  std::string refusal(const std::string& file = "") const {
    const std::string message =
        message_of<E>([&] { read_checkpoint(file.empty() ? path.string() : *this / file); });
    CHECK(!contains(message, "\n"));
    return message;
  }
};

constexpr const char* kShard[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
constexpr const char* kIndex = "model.safetensors.index.json";

std::string refused_stream(const std::string& bytes) {
  return message_of<IoError>([&] {
    parse_flax_stream(std::as_bytes(std::span(bytes)), "file", [](const std::string&) { return true; });
  });
}
std::string refused_config(const std::string& text) {
  return message_of<ConfigError>([&] { published_config(text, "config.json"); });
}

bool has_sentencepiece() {
  try {
    read_tokenizer(published("tokenizer"), 330);
    return true;
  } catch (const ConfigError& e) {
    CHECK(contains(e.what(), "install libsentencepiece-dev"));
    return false;
  }
}

}  // namespace

TEST_CASE("a model of the PyTorch release, in two files, computes what the official implementation does") {
  const Golden wanted = golden("ttt_linear_transformer");
  const Checkpoint model = read_checkpoint(published("pytorch"));
  CHECK(model.config == wanted.config);
  CHECK(model.assumed.empty());
  CHECK(model.params.size() == wanted.params.size());
  CHECK(relative_error(logits_of(model, wanted.tokens), wanted.logits) < 2e-5);
  CHECK(read_checkpoint(published("pytorch/model.safetensors.index.json")).params.size() ==
        wanted.params.size());
}

TEST_CASE("a model of the JAX release, a stream alone, computes what the official implementation does") {
  const Golden wanted = golden("ttt_mlp_mamba");
  for (const char* path : {"jax", "jax/streaming_params"}) {
    const Checkpoint model = read_checkpoint(published(path));
    CHECK(model.config == wanted.config);
    CHECK(model.assumed == "ttt_base_lr 0.1, rms_norm_eps 1e-06, rope_theta 10000");
    for (const auto& [name, value] : wanted.params) {
      CAPTURE_BOUND(name);
      CHECK(model.params.at(name).same_bits(value.cast(DType::f32)));
    }
    CHECK(relative_error(logits_of(model, wanted.tokens), wanted.logits) < 2e-5);
  }
}

TEST_CASE("weights in bfloat16 and float16 are the same numbers, rounded, and a tied output may be there") {
  const Golden wanted = golden("ttt_linear_transformer");
  const Checkpoint model = read_checkpoint(published("pytorch_half"));
  CHECK(model.config.num_hidden_layers == 1);
  CHECK(!model.params.contains("lm_head.weight"));
  check_rounded(model.params, wanted.params, 8);
  check_rounded({{"model.norm.weight", model.params.at("model.norm.weight")}}, wanted.params, 11);  // f16

  SafeTensors file = read_safetensors(published("pytorch_half/model.safetensors"));
  const Copy copy("pytorch_half");
  file.tensors.erase("model.embed_tokens.weight");  // the other half of the tie
  write_safetensors(copy / "model.safetensors", file);
  CHECK(read_checkpoint(copy.path).params.at("model.embed_tokens.weight").shape() == Shape{61, 32});
}

TEST_CASE("what training keeps beside the parameters, moments and averages, is no part of a model") {
  const Copy copy("pytorch_half");
  SafeTensors file = read_safetensors(copy / "model.safetensors");
  const Array norm = file.tensors.at("model.norm.weight");
  for (const char* more : {"adamw.m.", "adamw.v.", "average."})
    file.tensors.emplace(std::string(more) + "model.norm.weight", norm);
  write_safetensors(copy / "model.safetensors", file);
  const StateDict read = read_checkpoint(copy.path).params,
                  expected = read_checkpoint(published("pytorch_half")).params;
  CHECK(read.size() == expected.size());
  for (const auto& [name, value] : read) {
    CAPTURE_BOUND(name);
    REQUIRE(expected.contains(name));
    CHECK(value.same_bits(expected.at(name)));
  }
}

TEST_CASE("weights in f64 are rounded to f32, and those that have more digits are named") {
  const Copy copy("pytorch_half");
  SafeTensors file = read_safetensors(copy / "model.safetensors");
  for (const char* name : {"model.norm.weight", "model.embed_tokens.weight"})
    file.tensors.at(name) = file.tensors.at(name).cast(DType::f64);
  file.tensors.at("model.norm.weight").as<double>()[3] = 1 + 1e-12;
  file.types = {};
  write_safetensors(copy / "model.safetensors", file);
  const Checkpoint model = read_checkpoint(copy.path);
  CHECK(model.rounded == std::vector<std::string>{"model.norm.weight"});
  CHECK(model.params.at("model.norm.weight").at(3) == 1);
  CHECK(read_checkpoint(published("pytorch_half")).rounded.empty());

  StateDict params{{"model.norm.weight", Array::zeros(DType::f32, {32})}};
  CHECK(contains(load_by_name(params, file.tensors, "x").str(), "; 1 rounded to f32: 'model.norm.weight'"));
  StateDict exact{{"model.norm.weight", Array::zeros(DType::f64, {32})}};
  CHECK(load_by_name(exact, file.tensors, "x").rounded.empty());
  CHECK(exact.at("model.norm.weight").at(3) == 1 + 1e-12);
  CHECK(!loses_digits(Array::of({std::nan(""), 0.5, 1e300 * 1e300}, {3}), DType::f32));
}

TEST_CASE("a training state of the JAX release: its parameters, by its own configuration") {
  const Golden wanted = golden("ttt_linear_transformer");
  const Checkpoint model = read_checkpoint(published("jax_train_state"));
  LanguageModelConfig config = wanted.config;
  config.num_hidden_layers = 1;
  config.ttt_base_lr = 0.5;
  CHECK(model.config == config);
  CHECK(model.assumed.empty());
  check_rounded(model.params, wanted.params, 8);
  CHECK(logits_of(model, wanted.tokens).shape() == wanted.logits.shape());  // nothing is missing
}

TEST_CASE(
    "what a published configuration leaves out is its release's default, what cannot be done is refused") {
  const LanguageModelConfig torch = published_config(R"({"model_type": "ttt"})", "config.json");
  CHECK(torch.vocab_size == 32000);
  CHECK(torch.hidden_size == 2048);
  CHECK(torch.num_hidden_layers == 24);
  CHECK(torch.tie_word_embeddings);
  const LanguageModelConfig jax = published_config(
      R"({"seq_modeling_block": "ttt_mlp", "conv_width": 3, "hidden_size": 768, "intermediate_size": 2048})",
      "config.json");
  CHECK(jax.ttt_layer_type == "mlp");
  CHECK((jax.use_gate && jax.share_qk && !jax.tie_word_embeddings));
  CHECK(jax.conv_kernel == 3);
  CHECK(contains(refused_config(R"({"hidden_act": "gelu"})"), "hidden_act is \"gelu\""));
  CHECK(contains(refused_config(R"({"rope_scaling": {"type": "linear"}})"), "rope_scaling is"));
  CHECK(contains(refused_config(R"({"model_type": "llama"})"), "model_type is \"llama\""));
  CHECK(contains(refused_config(R"({"num_attention_heads": 4, "num_key_value_heads": 2})"),
                 "num_key_value_heads is 2"));
  CHECK(contains(refused_config(R"({"seq_modeling_block": "self_attention"})"),
                 "seq_modeling_block is \"self_attention\""));
  CHECK(contains(refused_config("{"), "not a JSON object"));
}

TEST_CASE("a damaged model in several files is an error that names what is wrong") {
  const auto damaged = [](const auto& change) {
    const Copy copy("pytorch");
    change(copy);
    return copy.refusal<IoError>();
  };
  CHECK(contains(damaged([](const Copy& c) { fs::remove(c.path / kShard[1]); }), kShard[1]));
  CHECK(contains(damaged([](const Copy& c) { c.write(kShard[0], c.text(kShard[0]).substr(0, 9000)); }),
                 "truncated"));
  CHECK(
      contains(damaged([](const Copy& c) { c.replace(kShard[0], R"("F32")", R"("U32")"); }), "dtype 'U32'"));
  CHECK(
      contains(damaged([](const Copy& c) { c.replace(kShard[1], "ffn_norm.weight", "ffn_morm.weight"); }),
               "it lacks 'model.layers.1.ffn_norm.weight'; it also holds 'model.layers.1.ffn_morm.weight'"));
  CHECK(contains(damaged([](const Copy& c) { c.write(kIndex, "{}"); }), "no weight_map"));
  CHECK(contains(damaged([](const Copy& c) { c.write(kIndex, c.text(kIndex).substr(0, 500)); }),
                 "is not a JSON object"));
  CHECK(contains(damaged([](const Copy& c) { c.replace(kIndex, "\"model-00001", "\"../el-00001"); }),
                 "no safetensors file beside it"));
  CHECK(contains(damaged([](const Copy& c) { fs::remove(c.path / "config.json"); }), "config.json"));
  CHECK(contains(damaged([](const Copy& c) { fs::remove(c.path / kIndex); }), "holds no model"));
}

TEST_CASE("weights of another model are one error with every name") {
  const Copy copy("pytorch");
  for (const char* file : {kShard[0], kIndex})
    copy.replace(file, "layers.0.seq_norm.weight", "layers.0.seq_morm.weight");
  const Checkpoint renamed = read_checkpoint(copy.path);
  const std::string names =
      message_of<ConfigError>([&] { Decoder(renamed.config, renamed.params, DType::f32, 1); });
  CHECK(contains(names, "it lacks the parameter 'model.layers.0.seq_norm.weight'"));
  CHECK(contains(names, "it holds 'model.layers.0.seq_morm.weight'"));

  copy.replace("config.json", "\"mini_batch_size\": 8", "\"mini_batch_size\": 4");
  const Checkpoint other = read_checkpoint(copy.path);
  const std::string shapes =
      message_of<ConfigError>([&] { Decoder(other.config, other.params, DType::f32, 1); });
  CHECK(contains(shapes, "learnable_token_idx' is [8], the model wants [4]"));

  const Copy untied("pytorch_half");
  SafeTensors file = read_safetensors(untied / "model.safetensors");
  file.tensors.at("lm_head.weight") = Array::zeros(DType::f32, {61, 32});
  write_safetensors(untied / "model.safetensors", file);
  CHECK(contains(untied.refusal<ConfigError>(), "tie_word_embeddings"));
}

TEST_CASE(
    "a damaged stream of the JAX release is an error of one line, and nothing that it asks for is allocated") {
  const std::string whole = read_file(published("jax/streaming_params"));
  for (std::size_t size = 1; size < whole.size(); size += size < 400 ? 1 : 997) {
    CAPTURE(size);
    const std::string message = message_of<IoError>([&] {
      const std::string cut = whole.substr(0, size);
      const auto got = parse_flax_stream(std::as_bytes(std::span(cut)), "file", is_jax_parameter);
      // Between two arrays the stream is whole: then some are missing, of which read_checkpoint tells.
      if (got.size() < 60) throw IoError("truncated");
    });
    CHECK(contains(message, "truncated"));
  }
  const std::string name = "\x92\x91\xa1x";
  CHECK(contains(refused_stream(name + "\xc6\xff\xff\xff\xff"), "asks for 4294967295 bytes, 0 follow"));
  CHECK(contains(refused_stream("\xdd\xff\xff\xff\xff"), "does not begin a pair"));
  CHECK(contains(refused_stream("\x92\xdd\xff\xff\xff\xff"), "does not begin a pair"));
  CHECK(contains(refused_stream(std::string(1'000'000, '\x91')), "does not begin a pair"));
  CHECK(contains(refused_stream(name + "\xa1x"), "is no binary"));
  CHECK(contains(refused_stream(name + "\xc4\x01\x81"), "in pieces"));
  CHECK(contains(refused_stream(name + "\xc4\x01\x07"), "no array of flax.serialization"));
  const std::string a = std::string("\xc4\x13\xc7\x10\x01\x93\x91", 7);  // 16 bytes: [[..], "float32", ..]
  CHECK(contains(refused_stream(name + a + "\x02\xa7" + "float32" + std::string("\xc4\x04\0\0\0", 5)),
                 "has 4 bytes for float32 [2]"));
  CHECK(contains(refused_stream(name + a + "\x01\xa7" + "complex" + std::string("\xc4\x04\0\0\0", 5)),
                 "dtype 'complex'"));

  const Copy copy("jax");
  copy.replace("streaming_params", "ttt_dense_0", "ttt_sense_0");
  CHECK(contains(copy.refusal<ConfigError>(), "'model/h/0/seq_modeling_block/ttt_sense_0'"));
  copy.write("streaming_params_2", "");
  CHECK(contains(copy.refusal<ConfigError>(), "'streaming_params' and 'streaming_params_2'; give the path"));
  CHECK(contains(copy.refusal<IoError>("streaming_params_2"), "streaming_params_2: the file is empty"));
  copy.write("streaming_params_2", "\x92\x91\xa4step\xc4\x01\x07");  // of the optimiser, and no more
  CHECK(contains(copy.refusal<ConfigError>("streaming_params_2"), "there is no 'model.embed_tokens.weight'"));
  fs::rename(copy.path / "streaming_params", copy.path / "pytorch_model.bin");
  fs::remove(copy.path / "streaming_params_2");
  CHECK(contains(copy.refusal<ConfigError>(), "pytorch_model.bin, which cannot be read"));
}

TEST_CASE(
    "a parameter of the JAX release that is there twice is named twice, and one that is missing does not end the layers") {
  const Array norm = Array::zeros(DType::f32, {32});
  const std::string twice = message_of<ConfigError>([&] {
    from_jax_names({{"params/model/ln_f/kernel", norm}, {"params/params/model/ln_f/kernel", norm}}, "file");
  });
  CHECK(
      contains(twice, "'params/model/ln_f/kernel' and 'params/params/model/ln_f/kernel' are one parameter"));
  const Checkpoint whole = read_checkpoint(published("jax"));
  const std::int64_t layers = whole.config.num_hidden_layers;
  StateDict less = whole.params;
  REQUIRE(less.erase(fmt::format("model.layers.{}.seq_norm.weight", layers - 1)) == 1);
  CHECK(config_from_shapes(less, "file").num_hidden_layers == layers);
}

TEST_CASE("a pipe in the folder of a model is refused, and not waited for") {
  for (const std::string file : {"config.json", kIndex, kShard[1], "tokenizer.model"}) {
    const Copy copy("pytorch");
    fs::remove(copy.path / file);
    REQUIRE(mkfifo((copy / file).c_str(), 0600) == 0);
    const std::string refused = file == "tokenizer.model"
                                    ? message_of<IoError>([&] { read_tokenizer(copy.path, 61); })
                                    : copy.refusal<IoError>();
    CHECK_MESSAGE(contains(refused, file + ": it is a pipe"), refused);
  }
}

TEST_CASE("the first parameter that is not finite is named, with its file") {
  Checkpoint model = read_checkpoint(published("pytorch"));
  check_finite(model.params, "here");
  for (const float wrong :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    StateDict params = model.params;
    const auto spoil = [&](const std::string& name) {
      Array changed = params.at(name).clone();
      changed.as<float>()[3] = wrong;
      params.at(name) = changed;
    };
    spoil("model.norm.weight"), spoil("model.embed_tokens.weight");
    const std::string said = message_of<ValueError>([&] { check_finite(params, "here"); });
    CHECK_MESSAGE(
        contains(said, fmt::format("here: 'model.embed_tokens.weight' holds {} at its number 3", wrong)),
        said);
  }
}

TEST_CASE("bytes are tokens, and a tokenizer that does not go with the model is refused") {
  const Tokenizer& bytes = byte_tokenizer();
  CHECK(bytes.encode("a\xff") == std::vector<std::int32_t>{97, 255});
  CHECK(bytes.bytes(255) == "\xff");
  CHECK(contains(message_of<ValueError>([&] { bytes.bytes(256); }), "no token 256"));
  const TemporaryFolder empty;
  CHECK(&*read_tokenizer(empty.path, 256) == &bytes);
  std::filesystem::create_directory(empty / "run.model");  // a folder, whatever its name ends in
  CHECK(&*read_tokenizer(empty / "run.model", 256) == &bytes);
  std::filesystem::remove(empty / "run.model");
  CHECK(contains(message_of<ConfigError>([&] { read_tokenizer(empty.path, 61); }), "no tokenizer.model in"));
  std::ofstream(empty.path / "tokenizer.json") << "{}";
  CHECK(contains(message_of<ConfigError>([&] { read_tokenizer(empty.path, 61); }),
                 "tokenizer.json cannot be read"));
  // One that is given is not passed over, whatever it is called.
  std::ofstream(empty.path / "pieces") << "no tokenizer";
  for (const char* given : {"pieces", "pieces.model", ""})
    CHECK(contains(message_of<ConfigError>([&] { read_tokenizer(empty.path, 256, empty / given); }),
                   "reads bytes: leave it out"));
  for (const char* given : {"none", "none.model", ""})
    CHECK(contains(message_of<IoError>([&] { read_tokenizer(published("pytorch"), 61, empty / given); }),
                   "there is no such file"));
  if (!has_sentencepiece()) return;
  CHECK(contains(message_of<IoError>([&] { read_tokenizer(published("pytorch"), 61, empty / "pieces"); }),
                 "sentencepiece cannot read"));
  fs::copy_file(published("tokenizer/tokenizer.model"), empty / "pieces",
                fs::copy_options::overwrite_existing);
  CHECK(read_tokenizer(published("pytorch"), 330, empty / "pieces")->vocab_size() == 330);
  CHECK(contains(message_of<ConfigError>([&] { read_tokenizer(published("tokenizer"), 329); }),
                 "has 330 tokens, the model 329"));
  const std::string whole = read_file(published("tokenizer/tokenizer.model"));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(empty.path / "tokenizer.model", std::ios::trunc) << whole.substr(0, size);
    CHECK(
        contains(message_of<IoError>([&] { read_tokenizer(empty.path, 330); }), "sentencepiece cannot read"));
  }
}

TEST_CASE(
    "a sentencepiece tokenizer makes the tokens that its own package makes, and gives every byte back") {
  if (!has_sentencepiece()) return;
  for (const auto& [folder, size] : {std::pair{"tokenizer", 330}, {"pytorch", 61}}) {
    const auto tokenizer = read_tokenizer(published(folder), size);
    CHECK(tokenizer->vocab_size() == size);
    CHECK(tokenizer->end_of_text() == 2);
    for (const auto& sentence : nlohmann::json::parse(read_file(published(folder) + "/encodings.json"))) {
      const auto text = sentence["text"].get<std::string>();
      CAPTURE(text);
      const std::vector<std::int32_t> tokens = tokenizer->encode(text);
      CHECK(tokens == sentence["ids"].get<std::vector<std::int32_t>>());
      std::string back;
      for (const std::int32_t token : tokens) back += tokenizer->bytes(token);
      if (size == 330) CHECK(back == " " + text);  // every text begins a word
      CHECK(back.size() >= tokens.size() - 1);
    }
  }
}

TEST_CASE("text is drawn through the tokenizer, token by token, until there are bytes enough") {
  if (!has_sentencepiece()) return;
  const Checkpoint model = read_checkpoint(published("pytorch"));
  const auto tokenizer = read_tokenizer(published("pytorch"), model.config.vocab_size);
  std::string shown;
  const std::string text = sample_text(
      model.config, model.params, "the hidden", 30, 0, 0, [&](char c) { shown += c; }, *tokenizer);
  CHECK(shown == text);
  std::vector<std::int32_t> read = tokenizer->encode("the hidden");
  std::string wanted;
  while (wanted.size() < 30) {  // from the whole model, without a decoder
    Array tokens(DType::i32, {1, std::ssize(read)});
    std::ranges::copy(read, tokens.as<std::int32_t>().begin());
    const std::vector<double> logits = logits_of(model, tokens).to_vector();
    read.push_back(
        static_cast<std::int32_t>(std::max_element(logits.end() - 61, logits.end()) - (logits.end() - 61)));
    if (read.back() == 2) break;
    wanted += tokenizer->bytes(read.back());
  }
  CHECK(text == wanted);
  CHECK(contains(message_of<ConfigError>([&] { sample_text(model.config, model.params, "a", 3, 0, 0); }),
                 "the tokenizer has 256 tokens, the model (vocab_size) 61"));
}
