// A saved op with its values gives the same bits again.
#include "tests/engine/nonfinite_programs.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("A reproducer gives the same bits again") {
  const TemporaryFolder folder;
  const auto check = [&](const Function& f, const Arrays& at) {
    const NonFinite found = found_in(f, at);
    const std::string path = folder / "nan.safetensors";
    save_reproducer(found, path);
    const Reproduction again = replay_reproducer(path);
    CHECK(again.same_bits());
    CHECK(again.saved.same_bits(found.value));
    CHECK(again.report.value.same_bits(found.value));
    CHECK(again.report.op == found.op);
    CHECK(again.report.attrs == found.attrs);
    CHECK(again.report.element == found.element);
    CHECK(again.report.element >= 0);
    CHECK(again.report.steps == found.steps);
    CHECK(again.report.within == found.within);
    CHECK(again.report.node == found.node);
    CHECK(again.report.level == found.level);
    CHECK(again.report.scope == found.scope);
    CHECK(same_bits(again.report.values, found.values));
    CHECK(again.line == describe(found.loc));
    CHECK(contains(again.graph, fmt::format(" = {}", found.op)));
    CHECK(folder.files() == 1);
    return found.op;
  };
  CHECK(check(distance_learner(), meeting_at(2)) == "div");
  CHECK(check(roots(true), {Array::of({1, 0, 0, 4}, {4})}) == "div");
  CHECK(check(reciprocals(), {Array::of({1, 2, 3, 4, 5, 0}, {2, 3})}) == "reciprocal");
  CHECK(check(trace([](Tensor x) { return exp(x); }, f32({5})), {random(f32({5}), 1, 80, 120)}) == "exp");
  // Ops whose attributes matter: which axes, which operand is transposed, which type.
  const Array huge = random(f32({3, 2}), 2, 2e38, 3e38);
  CHECK(check(trace([](Tensor x) { return sum(x, {0}, kKeep); }, f32({3, 2})), {huge}) == "sum");
  CHECK(check(trace([](Tensor x) { return matmul(x, x, {.a = true}); }, f32({3, 2})), {huge}) == "matmul");
  CHECK(check(trace([](Tensor x) { return cast(x, DType::f32); }, f64({2})), {Array::of({1, 1e300}, {2})}) ==
        "cast");
  CHECK(check(trace([](Tensor x) { return cumsum(x, 0); }, f32({3, 2})), {huge}) == "cumsum");
  // An input is given again as it was, NaN payloads too.
  CHECK(check(trace([](Tensor x) { return -x; }, f32({9})), {odd_f32()}) == "input");
}

TEST_CASE("A reproducer with other numbers gives another result: the comparison can fail") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  save_reproducer(found_in(distance_learner(), meeting_at(2)), path);
  SafeTensors file = read_safetensors(path);
  file.tensors["input1"] = Array::of({1}, {1});
  write_safetensors(path, file);
  const Reproduction again = replay_reproducer(path);
  CHECK_FALSE(again.same_bits());
  CHECK(again.report.value.at(0) == 0.5);
  CHECK(again.report.element == -1);
  CHECK(contains(again.report.str(), "is finite"));
}

TEST_CASE("Attributes survive exactly, and those of another op are refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  NonFinite report = found_in(trace([](Tensor x) { return log(pad(x, 0, 2, 1)); }, f64({3})),
                              {Array::of({1, 2, kInf}, {3}, DType::f64)});
  REQUIRE(report.op == "input");
  report.attrs = InputAttrs{"any \"text\"\nat all"};
  save_reproducer(report, path);
  CHECK(replay_reproducer(path).report.attrs == report.attrs);

  report.op = "pad";
  report.attrs = PadAttrs{0, 2, 1};
  report.values = {Array::of({1, 2, kInf}, {3}, DType::f64)};
  save_reproducer(report, path);
  CHECK(replay_reproducer(path).report.attrs == report.attrs);
  for (const char* numbers : {"", "0 2", "0 2 1 0"}) {
    SafeTensors file = read_safetensors(path);
    file.metadata["ints"] = numbers;
    write_safetensors(path, file);
    check_contains(refusal([&] { replay_reproducer(path); }, path), "not what 'pad' needs");
  }
}

TEST_CASE("Attributes that an op cannot have are refused, whichever op it is, and never used") {
  int refused = 0;
  for (const Op* op : op_table()) {
    if (!op->read_attrs || !op->samples || !op->infer) continue;
    CAPTURE(op->name);
    for (const OpSample& sample : op->samples()) {
      std::vector<Spec> in;
      for (const OpSample::Input& each : sample.inputs)
        in.push_back({each.dtype.value_or(DType::f32), each.shape});
      const Shape numbers = sample.attrs.numbers();
      for (std::size_t i = 0; i < numbers.size(); ++i)
        for (const std::int64_t wrong : {std::int64_t{-7}, std::int64_t{7}, std::int64_t{1} << 32}) {
          Shape changed = numbers;
          changed[i] = wrong;
          const std::optional<Attrs> attrs = op->read_attrs(changed);
          try {
            if (attrs) infer(*op, in, *attrs);
            else ++refused;
          } catch (const Error&) {
            ++refused;
          }
        }
    }
  }
  CHECK(refused > 50);
}

TEST_CASE("An op with a body is saved for people, and says that it cannot be run again") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  const Function f =
      trace([](const Tensors& in) -> Tensors { return {halved_quotient(in)}; }, {f64(), f64()});
  NonFinite report;
  report.op = "custom_vjp";
  report.attrs = f.graph().node(f.outputs()[0]).attrs;
  report.values = {Array::scalar(1), Array::scalar(0)};
  report.value = Array::scalar(kInf);
  save_reproducer(report, path);
  CHECK(contains(read_safetensors(path).metadata.at("replay"), "body"));
  CHECK(read_safetensors(path).tensors.at("input1").item() == 0);
  check_contains(refusal([&] { replay_reproducer(path); }, path), "cannot be run");
}

TEST_CASE("A file that is no reproducer is refused, saying what is wrong") {
  const TemporaryFolder folder;
  const std::string path = folder / "nan.safetensors";
  save_reproducer(found_in(distance_learner(), meeting_at(1)), path);
  const SafeTensors good = read_safetensors(path);
  const auto damaged = [&](const std::function<void(SafeTensors&)>& damage) {
    SafeTensors file = good;
    damage(file);
    write_safetensors(path, file);
    return refusal([&] { replay_reproducer(path); }, path);
  };
  check_contains(damaged([](SafeTensors& f) { f.metadata.clear(); }), "no reproducer");
  check_contains(damaged([](SafeTensors& f) { f.metadata["op"] = "divide"; }), "no op 'divide'");
  check_contains(damaged([](SafeTensors& f) { f.metadata.erase("level"); }), "lack 'level'");
  check_contains(damaged([](SafeTensors& f) { f.metadata["level"] = "one"; }), "no list of numbers");
  check_contains(damaged([](SafeTensors& f) { f.metadata["level"] = "1 2"; }), "not one number");
  check_contains(damaged([](SafeTensors& f) { f.metadata["ints"] = "1,2"; }), "no list of numbers");
  check_contains(damaged([](SafeTensors& f) { f.tensors.erase("input1"); }), "'input1' is missing");
  check_contains(damaged([](SafeTensors& f) { f.tensors.erase("output"); }), "'output' is missing");
  for (const char* inputs : {"0", "1", "-1"})
    check_contains(damaged([&](SafeTensors& f) { f.metadata["inputs"] = inputs; }),
                   "inputs are not as many as");
  refusal([&] { replay_reproducer(folder / "none"); }, "none");
  refusal([&] { save_reproducer(found_in(distance_learner(), meeting_at(1)), folder / "no" + "/where"); },
          "where");
}
