// The promise: whole language models give the numbers of the official implementations, gradients and decoding
// included, in either form; and a file with one wrong number is noticed.
#include "models/golden.h"

#include <cmath>
#include <filesystem>

#include "engine/io/safetensors.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::FormChoice;

namespace {

std::string golden(const std::string& name) {
  return std::string(NESTGRAD_TEST_DATA) + "/golden/" + name + ".safetensors";
}

std::vector<std::string> all_models() {
  std::vector<std::string> names;
  for (const char* learner : {"linear", "mlp"})
    for (const char* backbone : {"transformer", "mamba"})
      for (const char* rest : {"", "_remainder"})
        names.push_back(fmt::format("ttt_{}_{}{}", learner, backbone, rest));
  return names;
}

void check_all(DType dtype, FormChoice form, double tolerance) {
  for (const std::string& name : all_models()) {
    CAPTURE(name);
    const GoldenReport r = verify_golden(golden(name), dtype, form);
    CAPTURE(r.worst_grad_name);
    CHECK(r.loss_error <= tolerance);
    CHECK(r.logits_error <= tolerance);
    CHECK(r.worst_grad_error <= tolerance);
    CHECK(r.decode_error <= tolerance);
    CHECK(r.passes(tolerance));
  }
}

// A golden file with something changed, which is removed at the end.
class Changed {
 public:
  Changed(const std::string& name, const std::function<void(SafeTensors&)>& change) {
    SafeTensors file = read_safetensors(golden(name));
    change(file);
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("nestgrad-{}-{}.safetensors", name, reinterpret_cast<std::uintptr_t>(this)))
                .string();
    write_safetensors(path_, file);
  }
  ~Changed() { std::filesystem::remove(path_); }
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Moves one number by a millionth of the largest.
void nudge(SafeTensors& file, const std::string& name) {
  REQUIRE(file.tensors.contains(name));
  Array& a = file.tensors.at(name);
  a.as<double>()[a.as<double>().size() / 2] +=
      1e-6 * relative_error(a, Array::zeros(a.dtype(), a.shape()), 1);
}

}  // namespace

TEST_CASE("a model of each learner and backbone, in the form that is chosen for it") {
  for (const char* name : {"ttt_linear_transformer", "ttt_mlp_mamba_remainder"})
    CHECK(verify_golden(golden(name)).passes(1e-9));
}

TEST_SUITE("slow") {
  TEST_CASE("f64, dual form: every model within 1e-9") { check_all(DType::f64, FormChoice::dual, 1e-9); }
  TEST_CASE("f64, primal form: every model within 1e-9") { check_all(DType::f64, FormChoice::primal, 1e-9); }
  TEST_CASE("f32, dual form: every model within 2e-4") { check_all(DType::f32, FormChoice::dual, 2e-4); }
  TEST_CASE("f32, primal form: every model within 2e-4") { check_all(DType::f32, FormChoice::primal, 2e-4); }
}

TEST_CASE("negative control: one wrong number is noticed, and in the right place") {
  const std::string name = "ttt_linear_transformer";
  const auto report = [&](const std::string& tensor) {
    const Changed file(name, [&](SafeTensors& f) { nudge(f, tensor); });
    const GoldenReport r = verify_golden(file.path());
    CHECK(!r.passes(1e-9));
    return r;
  };
  CHECK(report("loss").loss_error > 1e-9);
  CHECK(report("tap.layers.1.seq_modeling_block.output").logits_error > 1e-9);
  const GoldenReport logits = report("logits");
  CHECK(logits.logits_error > 1e-9);
  CHECK(logits.decode_error > 1e-9);
  CHECK(logits.worst_grad_error < 1e-9);
  const GoldenReport grad = report("grad.model.layers.0.seq_modeling_block.W1");
  CHECK(grad.worst_grad_error > 1e-9);
  CHECK(grad.worst_grad_name == "model.layers.0.seq_modeling_block.W1");
  CHECK(grad.logits_error < 1e-9);
  report("param.model.layers.1.mlp.up_proj.weight");
  const Changed token(name, [](SafeTensors& f) {
    auto ids = f.tensors.at("input_ids").as<std::int32_t>();
    ids[3] = ids[3] == 0 ? 1 : 0;
  });
  CHECK(!verify_golden(token.path()).passes(1e-9));
  CHECK(verify_golden(Changed(name, [](SafeTensors&) {}).path()).passes(1e-9));
}

TEST_CASE("a golden number that is not finite, or of another shape, is no pass") {
  const Changed nan("ttt_linear_transformer",
                    [](SafeTensors& f) { f.tensors.at("logits").as<double>()[0] = std::nan(""); });
  CHECK(!verify_golden(nan.path()).passes(1e-9));
  const Changed shape("ttt_linear_transformer",
                      [](SafeTensors& f) { f.tensors.at("loss") = Array::zeros(DType::f64, {2}); });
  CHECK(contains(message_of<IoError>([&] { verify_golden(shape.path()); }),
                 "'loss' is f64[2], the model of this configuration gives f64[1]"));
}

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
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.erase("logits"); }), "it has no tensor 'logits'"));
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.erase("grad.model.norm.weight"); }),
                 "it has no tensor 'grad.model.norm.weight'"));
  CHECK(contains(refused([](SafeTensors& f) { f.tensors.at("input_ids") = Array::zeros(DType::i32, {24}); }),
                 "'input_ids' is i32[24]"));
  CHECK_THROWS_AS(verify_golden(golden("no_such_file")), IoError);
}

TEST_CASE(
    "a golden file that does not fit its own configuration is a ConfigError that names the field or the "
    "parameter") {
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
