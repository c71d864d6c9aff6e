// Digests of what programs compute: each op's kernel, layers and their gradients in several forms, twenty
// steps of training. They are the same under every instruction set, number of threads, compiler and processor
// family; the file of expected digests says what they are.
//
//   bits                    prints them
//   bits --check FILE       compares; exit 1 and the names of those that differ
//   bits --write FILE       renews the file
//   --only TEXT             those whose name contains TEXT
//
// NESTGRAD_ISA and NESTGRAD_THREADS choose what runs. No test framework, so that it is easily built for
// another processor.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "engine/core/random.h"
#include "engine/core/threads.h"
#include "models/images/corruptions.h"
#include "models/images/glyphs.h"
#include "models/images/scenes.h"
#include "models/trainer.h"
#include "nestgrad.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/table.h"
#include "tests/digest.h"
#include "ttt/system.h"

using namespace nestgrad;
using testing::Digest;

namespace {

// ---- ops ----

Array run(const Op& op, const Attrs& attrs, const std::vector<Array>& inputs) {
  std::vector<Spec> specs;
  for (const Array& x : inputs) specs.push_back(x.spec());
  return trace([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{emit(op, in, attrs)}; },
               specs)(inputs)[0];
}

Array drawn(const Spec& spec, const OpSample::Input& from, std::uint64_t stream) {
  if (is_float(spec.dtype)) return random_uniform(spec, from.low, from.high, 1, stream);
  Array x(spec);
  const auto choices = static_cast<std::uint32_t>(from.high - from.low) + 1;
  std::uint64_t i = 0;
  for (std::int32_t& v : x.as<std::int32_t>())
    v = static_cast<std::int32_t>(from.low) +
        static_cast<std::int32_t>(random_below(choices, 1, stream, i++));
  return x;
}

// Numbers of every size: all exponents and signs, denormals, infinities, NaN.
template <class T>
Array any_bits(std::int64_t n, std::uint64_t stream) {
  Array x(dtype_of<T>(), {n});
  std::uint64_t i = 0;
  for (T& v : x.as<T>()) {
    const std::uint64_t high = random_below(0xffffffffu, 2, stream, i),
                        low = random_below(0xffffffffu, 3, stream, i);
    const std::uint64_t bits = high << 32 | low;
    std::memcpy(&v, &bits, sizeof v);
    ++i;
  }
  return x;
}

// All samples, in both floating types; of an op that works element by element also numbers of every size.
void digest_op(const Op& op, Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::size_t arity = 0;
    for (const OpSample& sample : op.samples()) {
      if (!sample.error.empty()) continue;
      std::vector<Array> inputs;
      for (const OpSample::Input& in : sample.inputs)
        inputs.push_back(drawn({in.dtype.value_or(dtype), in.shape}, in, inputs.size()));
      arity = inputs.size();
      digest.add(run(op, sample.attrs, inputs));
      // And larger, where the extents may be anything.
      if (!op.element_loop) continue;
      for (std::size_t k = 0; k < inputs.size(); ++k)
        inputs[k] = drawn({inputs[k].dtype(), {1037}}, sample.inputs[k], 10 + k);
      digest.add(run(op, sample.attrs, inputs));
    }
    if (!op.element_loop) continue;
    std::vector<Array> inputs;
    for (std::size_t k = 0; k < arity; ++k)
      inputs.push_back(dtype == DType::f32 ? any_bits<float>(2051, k) : any_bits<double>(2051, k));
    digest.add(run(op, {}, inputs));
  }
}

// ---- what has sizes of its own: products, systems, sums, random numbers ----

void digest_products(Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [m, n, k] :
         {std::array{1, 70, 300}, {70, 1, 300}, {33, 47, 5}, {16, 64, 64}, {64, 64, 16}, {70, 130, 300}})
      for (const bool a : {false, true})
        for (const bool b : {false, true}) {
          const Array x = random_normal({dtype, a ? Shape{2, k, m} : Shape{2, m, k}}, 0, 1, 1, 0),
                      y = random_normal({dtype, b ? Shape{2, n, k} : Shape{2, k, n}}, 0, 1, 1, 1);
          digest.add(run(matmul_op, MatmulAttrs{a, b}, {x, y}));
        }
}

void digest_attention(Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t window : {0, 70}) {
      const Spec rows{dtype, {2, 2, 150, 20}}, values{dtype, {2, 2, 150, 33}}, out{dtype, {2, 2, 150, 35}};
      std::vector<Array> in;
      for (const Spec& spec : {rows, rows, values}) in.push_back(random_normal(spec, 0, 1, 1, in.size()));
      in.push_back(run(causal_attention_op, CausalAttentionAttrs{window}, in));
      in.push_back(random_normal(out, 0, 1, 1, in.size()));
      digest.add(in[3]);
      digest.add(run(causal_attention_derivative_op, CausalAttentionAttrs{window}, in));
    }
}

void digest_systems(Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 6, 33, 70})
      for (const std::int64_t m : {1, 5, 40}) {
        const Array a = random_normal({dtype, {2, n, n}}, 0, 1, 1, 0),
                    b = random_normal({dtype, {2, n, m}}, 0, 1, 1, 1);
        for (const bool transposed : {false, true}) {
          digest.add(run(solve_op, SolveAttrs{transposed}, {a, b}));
          for (const bool unit : {false, true})
            digest.add(run(triangular_solve_op, TriangularSolveAttrs{transposed, unit}, {a, b}));
        }
      }
}

void digest_reductions(Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Array x = random_normal({dtype, {3, 37, 301}}, 0, 1, 1, 0);
    for (const char* op : {"sum", "max_over"})
      for (const std::vector<std::int64_t>& axes :
           std::vector<std::vector<std::int64_t>>{{0}, {1}, {2}, {0, 2}, {0, 1, 2}})
        digest.add(run(*find_op(op), ReduceAttrs{axes}, {x}));
  }
}

void digest_random(Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    digest.add(random_normal({dtype, {1001}}, 0.5, 2, 7, 1));
    digest.add(random_uniform({dtype, {1001}}, -1, 3, 7, 2));
  }
}

// ---- layers ----

// Outputs, last weights, and the gradient of a number that all of them have a part in.
void digest_layer(const ttt::System& system, ttt::FormChoice form, Digest& digest) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Function f =
        ttt::trace_system(system, {.batch = 2, .heads = 2, .dim = 20, .time = 22, .chunk = 8}, dtype,
                          [&](const ttt::SystemProgram& p) {
                            const ttt::InnerLoopResult r = ttt::train_along(
                                *p.learner, p.start, p.views, {.policy = p.policy, .form = form, .block = 8});
                            std::vector<Tensor> out{r.output};
                            for (const Tensor& w : r.last().values()) out.push_back(w);
                            Tensor total = sum(square(out[0]));
                            for (std::size_t i = 1; i < out.size(); ++i) total = total + sum(square(out[i]));
                            for (const Tensor& g : grad(total, p.inputs)) out.push_back(g);
                            return out;
                          });
    digest.add(f(ttt::numbers_for(f, 1)));
  }
}

// ---- training ----

ByteCorpus some_text() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 4000; ++i)
    text.push_back(static_cast<std::uint8_t>("abcde fgh\n"[(i * i / 7 + i) % 10]));
  return {text, {text.begin(), text.begin() + 600}};
}

void digest_training(const char* layer, bool mamba, Digest& digest) {
  const ByteCorpus corpus = some_text();
  TrainingOptions options;
  options.model = {.hidden_size = 24,
                   .intermediate_size = 40,
                   .num_hidden_layers = 2,
                   .num_attention_heads = 2,
                   .ttt_layer_type = layer_type(layer),
                   .mini_batch_size = 8,
                   .use_gate = mamba,
                   .share_qk = mamba,
                   .pre_conv = mamba};
  options.steps = 20, options.batch = 2, options.context = 32, options.warmup = 3, options.lr = 1e-2;
  Trainer trainer(options, corpus);
  while (trainer.steps_done() < options.steps) {
    const StepResult step = trainer.step();
    digest.add_value(step.loss), digest.add_value(step.grad_norm), digest.add_value(step.rate);
  }
  for (const auto& [name, value] : trainer.parameters()) digest.add(value);
  digest.add_value(trainer.validate(trainer.validation_windows(4)).loss);
}

// ---- images ----

void digest_images(Digest& d) {
  const LabelledImages drawn = glyphs({.size = 28, .classes = 29}, 1, 5, 40),
                       small = placed(drawn, {}, 2, 0, 50);
  for (const LabelledImages& images : {drawn, small}) d.add({images.images, images.labels});
  for (const CorruptionRow& row : corruptions()) d.add(corrupted(drawn.images, row.corruption, 3, 4));
  d.add(augmented(small.images, 5, 0, {.contrast = 0.1, .noise = 0.1}));
}

void digest_scenes(Digest& d) {
  const SceneViews views = scene_views(1, 7, 8, 3, 24);
  d.add({views.images, views.rays, views.masks});
}

// ---- all of them ----

using Digests = std::map<std::string, std::string>;

Digests compute(std::string_view only) {
  Digests out;
  const auto add = [&](const std::string& name, const auto& fn) {
    if (name.find(only) == std::string::npos) return;
    Digest digest;
    fn(digest);
    out.emplace(name, digest.str());
  };
  for (const Op* op : op_table())
    if (op->samples) add(fmt::format("op/{}", op->name), [&](Digest& d) { digest_op(*op, d); });
  add("sizes/products", digest_products);
  add("sizes/systems", digest_systems);
  add("sizes/attention", digest_attention);
  add("sizes/reductions", digest_reductions);
  add("random", digest_random);
  add("images/characters", digest_images);
  add("images/scenes", digest_scenes);

  using ttt::FormChoice;
  const std::pair<const char*, std::vector<FormChoice>> layers[] = {
      {"ttt-linear", {FormChoice::primal, FormChoice::dual}},
      {"ttt-mlp", {FormChoice::primal, FormChoice::dual}},
      {"linear-attention", {FormChoice::primal, FormChoice::dual, FormChoice::parallel}},
      {"delta-net", {FormChoice::dual, FormChoice::wy}},
      {"gated-delta-net", {FormChoice::wy}},
      {"kimi-delta-attention", {FormChoice::wy}},
      {"mamba-2", {FormChoice::parallel}},
      {"hope", {FormChoice::dual}},
      {"mesa-net", {FormChoice::parallel}},
      {"titans-mlp", {FormChoice::dual}},
      {"lact", {FormChoice::dual}}};
  for (const auto& [name, forms] : layers)
    for (const FormChoice form : forms)
      add(fmt::format("layer/{}/{}", name, ttt::name(form)),
          [&, name = name](Digest& d) { digest_layer(ttt::system_named(name), form, d); });
  add("training/ttt-linear", [](Digest& d) { digest_training("ttt-linear", true, d); });
  add("training/gated-delta-net", [](Digest& d) { digest_training("gated-delta-net", true, d); });
  add("training/ttt-mlp", [](Digest& d) { digest_training("ttt-mlp", false, d); });
  add("training/mamba-2", [](Digest& d) { digest_training("mamba-2", false, d); });
  return out;
}

Digests read(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw IoError(fmt::format("{}: cannot be read", path));
  Digests out;
  for (std::string name, digest; in >> name >> digest;) out.emplace(name, digest);
  return out;
}

void write(const std::string& path, const Digests& digests) {
  std::ofstream out(path);
  for (const auto& [name, digest] : digests) out << name << ' ' << digest << '\n';
  if (!out.flush()) throw IoError(fmt::format("{}: cannot be written", path));
}

int check(const std::string& path, const Digests& found, std::string_view only) {
  Digests expected = read(path);
  std::erase_if(expected, [&](const auto& e) { return e.first.find(only) == std::string::npos; });
  std::vector<std::string> wrong;
  for (const auto& [name, digest] : found) {
    const auto e = expected.find(name);
    if (e == expected.end()) wrong.push_back(name + " (new)");
    else if (e->second != digest) wrong.push_back(name);
  }
  for (const auto& [name, digest] : expected)
    if (!found.contains(name)) wrong.push_back(name + " (gone)");
  if (wrong.empty()) {
    fmt::print("bits: {} digests as expected under {}, {} threads\n", found.size(), instruction_set(),
               thread_count());
    return found.empty() ? 1 : 0;
  }
  fmt::print(
      stderr,
      "bits: {} of {} digests are not those of {} under {}, {} threads: {}\n"
      "Results must not depend on the machine, so if this is an accident, find it. If results were meant to "
      "change, renew the file with bits --write {} and say in CHANGELOG.md that and why they changed.\n",
      wrong.size(), found.size(), path, instruction_set(), thread_count(), fmt::join(wrong, ", "), path);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const auto is_known = [](const auto& o) {
    return o.first == "--check" || o.first == "--write" || o.first == "--only";
  };
  if (argc % 2 == 0 || !std::ranges::all_of(options, is_known)) {
    fmt::print(stderr, "usage: bits [--check FILE | --write FILE] [--only TEXT]\n");
    return 2;
  }
  try {
    const std::string only = options["--only"];
    const Digests digests = compute(only);
    if (const std::string path = options["--check"]; !path.empty()) return check(path, digests, only);
    if (const std::string path = options["--write"]; !path.empty()) return write(path, digests), 0;
    for (const auto& [name, digest] : digests) fmt::print("{} {}\n", name, digest);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "bits: error: {}\n", e.what());
    return 1;
  }
}
