// The promise: a kernel's file is held to a reference tensor by tensor; what is off is named with its place,
// and nothing passes because its name is wrong.
#include "ttt/verification.h"

#include <cmath>
#include <limits>

#include "engine/core/nearest_name.h"
#include "tests/testing.h"
#include "ttt/policy_text.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::TensorVerdict;
using ttt::Verification;
using ttt::verify;

namespace {

// output and grad.k [batch 2, head 1, token 3, feature 2], and an input.
SafeTensors expected() {
  SafeTensors out;
  out.tensors["output"] = random(f64({2, 1, 3, 2}), 1);
  out.tensors["grad.k"] = random(f64({2, 1, 3, 2}), 2);
  out.tensors["k"] = random(f64({2, 1, 3, 2}), 3);
  for (const char* name : {"output", "grad.k", "k"})
    out.metadata[std::string("axes.") + name] = "batch head token feature";
  out.metadata["inputs"] = "k";
  return out;
}

SafeTensors changed(SafeTensors file, const std::string& name, std::int64_t at, double by) {
  file.tensors[name] = file.tensors.at(name).clone();
  file.tensors[name].as<double>()[static_cast<std::size_t>(at)] += by;
  return file;
}

TensorVerdict verdict_of(const Verification& v, const std::string& name) {
  const auto at = std::ranges::find(v.tensors, name, &TensorVerdict::name);
  REQUIRE(at != v.tensors.end());
  return *at;
}

}  // namespace

TEST_CASE("a kernel that has the reference's numbers passes, with or without its inputs") {
  SafeTensors kernel = expected();
  CHECK(verify(expected(), kernel, {}).passed());
  kernel.tensors.erase("k");
  const Verification v = verify(expected(), kernel, {.all = true});
  CHECK(v.passed());
  CHECK(v.compared == 2);
}

TEST_CASE("what is off is named with its error, its place and the tokens from which on it is") {
  const double largest = 0.5;
  SafeTensors reference = expected();
  reference.tensors["output"] = Array::full(DType::f64, {2, 1, 3, 2}, -largest);
  SafeTensors kernel = changed(changed(reference, "output", 3, 1e-3), "output", 10, -2e-3);
  const TensorVerdict v = verdict_of(verify(reference, kernel, {}), "output");
  CHECK(v.kind == TensorVerdict::Kind::differs);
  CHECK(!v.passed);
  CHECK(v.error == doctest::Approx(2e-3 / largest));
  CHECK(v.worst == "batch 1, head 0, token 2, feature 0");
  CHECK(v.theirs == doctest::Approx(-0.502));
  CHECK(v.expected == -largest);
  CHECK(v.range == "tokens 1 to 2");
  CHECK(v.share == doctest::Approx(2.0 / 12));
  CHECK(verify(reference, kernel, {.tolerance = 5e-3}).passed());
  CHECK(!verify(reference, kernel, {.tolerance = 3e-3}).passed());
}

TEST_CASE("the tolerance is that of the coarser type of the two") {
  SafeTensors kernel = changed(expected(), "output", 0, 1e-3);
  for (const auto& [type, passes] :
       {std::pair{"F64", false}, {"F32", false}, {"F16", true}, {"BF16", true}}) {
    CAPTURE_BOUND(type);
    kernel.types["output"] = type;
    CHECK(verify(expected(), kernel, {}).passed() == passes);
  }
  // As read from a file: one of bf16 becomes f32 in memory, and stays bf16 by name.
  const std::string header = R"({"output":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes += header + std::string("\x80\x3f", 2);  // 1
  const SafeTensors read = parse_safetensors(std::as_bytes(std::span(bytes)), "file");
  CHECK(read.types.at("output") == "BF16");
  SafeTensors reference;
  reference.tensors["output"] = Array::full(DType::f64, {1}, 1.01);
  CHECK(verify(reference, read, {}).passed());
  // A kernel that is more exact than its reference is no worse for it.
  SafeTensors coarse = expected();
  coarse.types["output"] = "F32";
  CHECK(verify(coarse, changed(expected(), "output", 0, 1e-6), {}).passed());
  CHECK(!verify(coarse, changed(expected(), "output", 0, 1e-2), {}).passed());
}

TEST_CASE("what a wrong tensor looks like instead is said") {
  const auto hints = [](const SafeTensors& reference, const SafeTensors& kernel, const std::string& name) {
    const TensorVerdict v = verdict_of(verify(reference, kernel, {}), name);
    CHECK(!v.passed);
    return v.hints;
  };
  using Hints = std::vector<std::string>;
  const SafeTensors good = expected();
  SafeTensors kernel = good;
  std::swap(kernel.tensors["output"], kernel.tensors["grad.k"]);
  CHECK(hints(good, kernel, "output") == Hints{"'output' and 'grad.k' look exchanged"});
  kernel = good;
  kernel.tensors["output"] = good.tensors.at("grad.k");
  CHECK(hints(good, kernel, "output") == Hints{"these are the numbers of the reference's 'grad.k'"});
  CHECK(hints(good, changed(changed(good, "output", 7, 1e-3), "output", 9, 1e-3), "output") ==
        Hints{"all of it is in batch 1"});
  CHECK(hints(good, changed(changed(good, "output", 3, 1e-3), "output", 9, 1e-3), "output").empty());
  // Stored with its last two axes exchanged.
  kernel = good;
  const Array& right = good.tensors.at("output");
  Array turned = Array::zeros(DType::f64, {2, 1, 2, 3});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t f = 0; f < 2; ++f)
        turned.as<double>()[static_cast<std::size_t>(b * 6 + f * 3 + t)] = right.at(b * 6 + t * 2 + f);
  kernel.tensors["output"] = turned;
  CHECK(hints(good, kernel, "output") ==
        Hints{"it agrees with its last two axes exchanged; they are [token feature] in the reference"});
  CHECK(contains(verify(good, kernel, {}).str(), "hint: it agrees with its last two axes exchanged"));
}

TEST_CASE(
    "a kernel's tensor that is missing, left over, misshapen, of integers or not finite is told apart") {
  using enum TensorVerdict::Kind;
  SafeTensors kernel = expected();
  kernel.tensors["grad_k"] = kernel.tensors.at("grad.k");
  kernel.tensors.erase("grad.k");
  const Verification misnamed = verify(expected(), kernel, {});
  CHECK(verdict_of(misnamed, "grad_k").kind == left_over);
  CHECK(contains(verdict_of(misnamed, "grad_k").text, "did you mean 'grad.k'?"));
  CHECK(verdict_of(misnamed, "grad.k").kind == missing);
  CHECK(!misnamed.passed());
  kernel.tensors.erase("grad_k");
  CHECK(verify(expected(), kernel, {}).passed());
  CHECK(!verify(expected(), kernel, {.all = true}).passed());
  kernel.tensors.erase("output");
  CHECK(!verify(expected(), kernel, {}).passed());  // an input alone says nothing

  const auto with = [](const Array& output) {
    SafeTensors k = expected();
    k.tensors["output"] = output;
    return verdict_of(verify(expected(), k, {}), "output");
  };
  CHECK(with(random(f64({2, 1, 2, 3}), 1)).kind == misshapen);
  CHECK(with(Array::zeros(DType::i32, {2, 1, 3, 2})).kind == wrong_type);
  for (const double broken : {std::nan(""), HUGE_VAL}) {
    const TensorVerdict v = with(changed(expected(), "output", 9, broken).tensors.at("output"));
    CHECK(v.kind == not_finite);
    CHECK(contains(v.text, "batch 1, head 0, token 1, feature 1"));
  }
  CHECK(
      contains(verdict_of(verify(expected(), changed(expected(), "k", 0, 1), {}), "k").text, "other inputs"));
}

TEST_CASE("numbers that are zero but for rounding are held to the largest of their kind") {
  SafeTensors reference = expected(), kernel = expected();
  reference.tensors["grad.b"] = Array::full(DType::f64, {2}, 1e-17);
  kernel.tensors["grad.b"] = Array::full(DType::f64, {2}, -3e-17);
  CHECK(verify(reference, kernel, {}).passed());
  kernel.tensors["grad.b"] = Array::full(DType::f64, {2}, 1e-14);  // the control
  CHECK(!verify(reference, kernel, {}).passed());
}

TEST_CASE("the nearest name is suggested, and none where none is near") {
  const std::vector<std::string> names{"rate", "forget", "grad.rate", "q"};
  CHECK(nearest_name("rates", names) == "rate");
  CHECK(nearest_name("grad_rate", names) == "grad.rate");
  CHECK(nearest_name("froget", names) == "forget");
  CHECK(nearest_name("momentum", names).empty());
  CHECK(nearest_name("x", names).empty());
  CHECK(did_you_mean("x", names).empty());
}

TEST_CASE("a policy's settings are one line that reads back") {
  const ttt::Policy given{.chunk = 7,
                          .update = ttt::Policy::Update::per_chunk,
                          .read = ttt::Policy::Read::before_write,
                          .steps = 3,
                          .average = true,
                          .ascent = true,
                          .query_is_key = true,
                          .partial_chunk_writes = false,
                          .trained = {"W1", "W2"},
                          .meta = ttt::Policy::Meta::truncated,
                          .horizon = 5};
  const std::string text = ttt::settings_of(given);
  CHECK(text ==
        "chunk=7,update=per-chunk,read=before-write,steps=3,average=true,ascent=true,query_is_key=true,"
        "partial_chunk_writes=false,trained=W1+W2,meta=truncated,horizon=5");
  CHECK(ttt::settings_of(ttt::overridden({}, text)) == text);
  CHECK(ttt::settings_of(ttt::overridden(given, "trained=all,chunk=0"))
            .starts_with("chunk=0,update=per-chunk"));
  CHECK(ttt::overridden(given, "").trained == given.trained);
  // As far as a policy may go.
  const ttt::Policy long_chunks{.chunk = std::int64_t{1} << 47, .horizon = std::numeric_limits<int>::max()};
  const ttt::Policy back = ttt::overridden({}, ttt::settings_of(long_chunks));
  CHECK(back.chunk == long_chunks.chunk);
  CHECK(back.horizon == long_chunks.horizon);
  for (const char* wrong : {"chunk", "chunk=", "chunk=-1", "chunk=x", "steps=0", "update=sometimes",
                            "meta=", "=3", ",", "chunk=4,", "chunk=4,chunk=8", "trained=", "trained=W1+"}) {
    CAPTURE(wrong);
    message_of<ConfigError>([&] { ttt::overridden({}, wrong); });
  }
}

TEST_CASE("a reference that is not finite holds nothing, and hides nothing else") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const SafeTensors reference = changed(expected(), "output", 3, bad);
    const TensorVerdict v = verdict_of(verify(reference, expected(), {}), "output");
    CHECK(!v.passed);
    CHECK(contains(v.text, "the reference is"));
  }
  // An infinity elsewhere among the gradients is no excuse for a wrong one.
  SafeTensors reference = expected();
  reference.tensors["grad.v"] = Array::full(DType::f64, {1}, std::numeric_limits<double>::infinity());
  CHECK(!verdict_of(verify(reference, changed(expected(), "grad.k", 0, 1), {}), "grad.k").passed);
  CHECK(contains(message_of<ConfigError>([] { verify(expected(), expected(), {.tolerance = std::nan("")}); }),
                 "tolerance must be 0 or positive"));
}

TEST_CASE("a tensor without numbers proves nothing") {
  SafeTensors empty;
  empty.tensors["output"] = Array::zeros(DType::f64, {0, 4});
  CHECK(!verify(empty, empty, {}).passed());
}
