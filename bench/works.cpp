// works: runs the works of bench/compare in nestgrad. A
// server: one JSON object a line on stdin, one on stdout.
//
//   {"do": "prepare", "work": NAME, "dtype": "f32", "folder": F, "precision": "f32", ..sizes}   traces and plans; with "folder",
//   writes
//                                       the inputs as F/in.NAME.npy -> {"first": seconds, "instructions",
//                                       "arena_mb"}
//   {"do": "check"}                     runs once, writes F/out.NAME.npy -> {"outputs": [names]}
//   {"do": "time", "runs": n}           -> {"seconds": of one run}
//   {"do": "device"}                    -> {"name": what it runs on}, as NESTGRAD_DEVICE says
//
// A failure is {"error": text}. Each work is one function below, which says what its inputs and outputs are;
// the peers (bench/peers) read the same inputs and give outputs of the same names.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/random.h"
#include "engine/io/npy.h"
#include "models/language_model.h"
#include "models/optimizer.h"
#include "models/streams.h"
#include "ttt/attention.h"
#include "ttt/inner_loop.h"
#include "ttt/layer.h"

using namespace nestgrad;

namespace {

using Json = nlohmann::json;

double seconds_of(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Normal {
  double mean = 0, stddev = 1;
};

using Run = std::function<void(const std::vector<Array>& inputs, std::vector<Array>& outputs)>;

// A traced work. Inputs that have no name in the trace (the given ones) are named by `given`, in order.
struct Work {
  Function program;
  std::vector<std::string> given, outputs;
  std::vector<Donation> donate = {};
  // Where not a replay of the program is measured, but something that gives the same: made once the inputs
  // are there.
  std::function<Run(const std::vector<Array>& inputs)> other_way = {};

  std::string input_name(std::size_t i) const {
    return i < given.size() ? given[i] : nestgrad::input_name(program.graph().node(program.inputs()[i]));
  }
};

// What the inputs of a name are drawn from: rates small (they go through a sigmoid), gains around 1, weights small.
Normal distribution(const std::string& name, bool outer_weight) {
  if (name == "rate" || name == "log_rate") return {-4, 0.5};
  if (name == "square") return {2, 0.1};  // AdamW's second moment: positive
  if (name.ends_with("norm_weight") || name.ends_with("norm.weight")) return {1, 0.1};
  return {0, outer_weight || name.starts_with("W") ? 0.1 : 1};
}

std::vector<Array> numbers_for_work(const Work& work) {
  std::vector<Array> out;
  for (std::size_t i = 0; i < work.program.inputs().size(); ++i) {
    const Spec spec = work.program.input_spec(i);
    const Normal n =
        distribution(work.input_name(i), i >= work.given.size() && work.input_name(i) != "cotangent");
    if (is_float(spec.dtype)) {
      out.push_back(random_normal(spec, n.mean, n.stddev, 1, i));
      continue;
    }
    out.emplace_back(spec);  // tokens: bytes
    const Array draw = random_normal({DType::f64, spec.shape}, 128, 40, 1, i);
    for (std::int64_t k = 0; k < spec.size(); ++k)
      out.back().as<std::int32_t>()[static_cast<std::size_t>(k)] =
          static_cast<std::int32_t>(std::min(255.0, std::max(0.0, draw.at(k))));
  }
  return out;
}

// `output`, and with "backward" its gradients with respect to `sources` under a cotangent that is an input.
std::vector<Tensor> with_gradients(const Json& sizes, Tensor output, const std::vector<Tensor>& sources) {
  std::vector<Tensor> out{output};
  if (!sizes.value("backward", false)) return out;
  const Tensor cotangent = output.graph().input(output.spec(), "cotangent");
  const std::vector<Tensor> grads = vjp({output}, {cotangent}, sources, {.allow_zero = true});
  out.insert(out.end(), grads.begin(), grads.end());
  return out;
}

// Names: "output", then grad.X of all inputs X but the cotangent.
void name_outputs(const Json& sizes, Work& work) {
  work.outputs = {"output"};
  if (!sizes.value("backward", false)) return;
  for (std::size_t i = 0; i < work.program.inputs().size(); ++i)
    if (work.input_name(i) != "cotangent") work.outputs.push_back("grad." + work.input_name(i));
}

ttt::ProgramSizes program_sizes(const Json& s) {
  return {.batch = s.at("batch"),
          .heads = s.at("heads"),
          .dim = s.at("dim"),
          .time = s.at("time"),
          .chunk = s.at("chunk")};
}

// A published system (ttt/learners/) from q, k, v and its
// raw gates to the output, in the form that is asked for.
Work system(const Json& sizes, DType dtype) {
  const ttt::System& system = ttt::system_named(sizes.at("system").get<std::string>());
  Work work;
  work.given = {"q", "k", "v"};
  for (const ttt::GateSpec& gate : system.gates) work.given.push_back("gate." + gate.name);
  if (system.position_rates) {
    work.given.emplace_back("rate");
    work.given.emplace_back("position");
  }
  ttt::InnerLoopOptions options{.form = ttt::form_named(sizes.value("form", "automatic")),
                                .block = sizes.value("block", 64),
                                .checkpoint_every = sizes.value("checkpoint_every", 0)};
  work.program = ttt::trace_system(system, program_sizes(sizes), dtype, [&](const ttt::SystemProgram& p) {
    options.policy = p.policy;
    return with_gradients(sizes, ttt::train_along(*p.learner, p.start, p.views, options).output, p.inputs);
  });
  name_outputs(sizes, work);
  return work;
}

// Causal softmax attention.
Work attention(const Json& sizes, DType dtype) {
  const ttt::ProgramSizes s = program_sizes(sizes);
  const Spec rows{dtype, {s.batch, s.heads, s.time, s.dim}};
  Work work{.given = {"q", "k", "v"}};
  work.program = trace(TraceFn([&](const std::vector<Tensor>& in) {
                         return with_gradients(sizes, ttt::attention(in[0], in[1], in[2]), in);
                       }),
                       {rows, rows, rows});
  name_outputs(sizes, work);
  return work;
}

// The gradient of a validation loss through `steps` steps of SGD on a two-layer MLP, with respect to where
// they start and to their rate: a derivative of derivatives. xs, ys: a batch a step.
Work meta_gradient(const Json& sizes, DType dtype) {
  const std::int64_t steps = sizes.at("steps"), batch = sizes.at("batch"), width = sizes.at("width");
  const Spec all{dtype, {steps, batch, width}}, one{dtype, {batch, width}}, square{dtype, {width, width}},
      number{dtype, {}};
  const auto loss = [](const Tensors& w, Tensor x, Tensor y) {
    return mean(nestgrad::square(matmul(tanh(matmul(x, w[0])), w[1]) - y));
  };
  Work work{.given = {"xs", "ys", "x", "y", "log_rate", "W1", "W2"}};
  work.program = trace(TraceFn([&](const std::vector<Tensor>& in) {
                         const Tensor rate = exp(in[4]);
                         const ScanResult r = scan(
                             [&](const Tensors& w, const Tensors& xy) -> StepOutput {
                               const Tensors g = grad(loss(w, xy[0], xy[1]), w);
                               return {{w[0] - rate * g[0], w[1] - rate * g[1]}, {}};
                             },
                             {in[5], in[6]}, {in[0], in[1]});
                         const Tensor outer = loss(r.carries, in[2], in[3]);
                         std::vector<Tensor> out{outer};
                         for (Tensor g : grad(outer, {in[4], in[5], in[6]})) out.push_back(g);
                         return out;
                       }),
                       {all, all, one, one, number, square, square});
  work.outputs = {"output", "grad.log_rate", "grad.W1", "grad.W2"};
  return work;
}

// a b, n x n: what one core can do at most.
Work product(const Json& sizes, DType dtype) {
  const Spec square{dtype, {sizes.at("n"), sizes.at("n")}};
  return {
      trace(TraceFn([](const std::vector<Tensor>& in) { return std::vector<Tensor>{matmul(in[0], in[1])}; }),
            {square, square}),
      {"a", "b"},
      {"output"}};
}

// -a, n x n: how fast a device moves memory.
Work negation(const Json& sizes, DType dtype) {
  const Spec square{dtype, {sizes.at("n"), sizes.at("n")}};
  return {trace(TraceFn([](const std::vector<Tensor>& in) { return std::vector<Tensor>{-in[0]}; }), {square}),
          {"a"},
          {"output"}};
}

// Instructions that do nearly nothing, one after the other: what a replay costs for each.
Work chain(const Json& sizes, DType dtype) {
  const std::int64_t length = sizes.at("length");
  const Spec one{dtype, {1, 1}};
  return {trace(TraceFn([&](const std::vector<Tensor>& in) {
                  Tensor x = in[0];
                  for (std::int64_t i = 0; i < length; ++i) x = matmul(x, in[1]);
                  return std::vector<Tensor>{x};
                }),
                {one, one}),
          {"a", "b"},
          {"output"}};
}

LanguageModelConfig language_model_config(const Json& s) {
  LanguageModelConfig c;
  c.hidden_size = s.at("width");
  c.intermediate_size = s.at("hidden");
  c.num_hidden_layers = s.at("layers");
  c.num_attention_heads = s.at("heads");
  c.mini_batch_size = s.at("chunk");
  c.ttt_layer_type = s.value("layer", "linear");
  return c;
}

// A whole step of training of the byte-level language model: loss, its gradient, clipping, AdamW. Given:
// tokens, rate, the two corrections of AdamW; then the parameters, and their first and second moments. With
// "gradients" the outputs are loss and gradients, which is what can be compared (a first step of AdamW is
// nearly the sign of the gradient); without, the new parameters and moments are written over the old ones.
Work training_step(const Json& sizes, DType dtype) {
  const LanguageModelConfig config = language_model_config(sizes);
  const Spec tokens{DType::i32, {sizes.at("batch"), sizes.at("time").get<std::int64_t>() + 1}};
  Work work{.given = {"tokens"}, .outputs = {"output"}};
  work.program = trace(
      TraceFn([&](const std::vector<Tensor>& in) {
        ParamTable table(in[0].graph(), dtype);
        ttt::Stream stream;
        const Tensor loss = mean(next_token_loss(config, Params(table), in[0], stream));
        const std::vector<Tensor> grads = grad(loss, table.tensors());
        std::vector<Tensor> out{loss};
        if (!sizes.value("adamw", false)) {
          for (const ParamSpec& p : table.specs()) work.outputs.push_back("grad." + p.name);
          out.insert(out.end(), grads.begin(), grads.end());
          return out;
        }
        const auto moments = [&](const std::string& name) {
          std::vector<Tensor> m;
          for (const Tensor& t : table.tensors()) m.push_back(loss.graph().input(t.spec(), name));
          return m;
        };
        const std::vector<Tensor> m = moments("moment"), v = moments("square");
        const Tensor one = constant(1.0, dtype);
        const AdamWResult r = adamw(table.specs(), table.tensors(), grads, m, v, {1e-3 * one, one, one}, {});
        for (const std::vector<Tensor>& part : {r.params, r.m, r.v})
          out.insert(out.end(), part.begin(), part.end());
        work.donate = donations(3 * table.specs().size(), 1, 1);
        return out;
      }),
      {tokens});
  return work;
}

// The TTT layer with its projections, from x to the layer's output.
Work layer(const Json& sizes, DType dtype) {
  const std::int64_t width = sizes.at("heads").get<std::int64_t>() * sizes.at("dim").get<std::int64_t>();
  ttt::TTTLayerOptions options{.width = width, .heads = sizes.at("heads")};
  options.inner.policy.chunk = sizes.at("chunk");
  Work work{.given = {"x"}};
  work.program =
      trace(TraceFn([&](const std::vector<Tensor>& in) {
              ParamTable table(in[0].graph(), dtype);
              const Params params(table);
              ttt::Stream stream;
              const ttt::TTTLayer layer(params, options, std::make_unique<ttt::ProjectedViews>(params, width),
                                        learner_system(sizes.value("layer", "linear")), "layer");
              const Tensor output = layer(in[0], stream);
              std::vector<Tensor> sources = in;
              sources.insert(sources.end(), table.tensors().begin(), table.tensors().end());
              return with_gradients(sizes, output, sources);
            }),
            {Spec{dtype, {sizes.at("batch"), sizes.at("time"), width}}});
  name_outputs(sizes, work);
  return work;
}

// Of tokens [batch, time], one token of each sequence at a time.
std::vector<std::vector<std::int32_t>> columns_of(const Array& tokens) {
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1];
  std::vector<std::vector<std::int32_t>> out(static_cast<std::size_t>(time));
  for (std::int64_t t = 0; t < time; ++t)
    for (std::int64_t b = 0; b < batch; ++b)
      out[static_cast<std::size_t>(t)].push_back(
          tokens.as<std::int32_t>()[static_cast<std::size_t>(b * time + t)]);
  return out;
}

// Streams, one for each row of tokens [batch, time], that all join before the first token.
Run reading_streams(const LanguageModelConfig& config, const StateDict& params, DType dtype,
                    const Array& tokens) {
  const auto streams = std::make_shared<Streams>(config, params, dtype);
  return [=, columns = columns_of(tokens)](const std::vector<Array>&, std::vector<Array>& outputs) {
    for (const Streams::Id id : std::vector(streams->ids())) streams->leave(id);
    for (std::size_t b = 0; b < columns[0].size(); ++b) streams->join();
    for (const std::vector<std::int32_t>& column : columns) outputs[0] = streams->step(column);
  };
}

// The language model reads token after token, with a state of constant size: logits after the last one.
Work decoding(const Json& sizes, DType dtype) {
  const LanguageModelConfig config = language_model_config(sizes);
  const std::int64_t batch = sizes.at("batch"), time = sizes.at("time");
  Work work{.given = {"tokens"}, .outputs = {"output"}};
  work.program =
      trace(TraceFn([&](const std::vector<Tensor>& in) {
              ParamTable table(in[0].graph(), dtype);
              ttt::Stream stream;
              const Tensor all = LanguageModel(config, Params(table)).logits(in[0], stream);
              return std::vector<Tensor>{reshape(slice(all, 1, time - 1, time), {batch, config.vocab_size})};
            }),
            {Spec{DType::i32, {batch, time}}});
  work.other_way = [=, program = work.program](const std::vector<Array>& inputs) -> Run {
    StateDict params;
    for (std::size_t i = 1; i < inputs.size(); ++i)
      params.emplace(input_name(program.graph().node(program.inputs()[i])), inputs[i]);
    const Array tokens = inputs[0].to(Device::cpu());
    if (sizes.value("streams", false)) return reading_streams(config, params, dtype, tokens);
    const auto decoder = std::make_shared<Decoder>(config, params, dtype, batch);
    std::vector<Array> columns;
    for (const std::vector<std::int32_t>& column : columns_of(tokens)) {
      columns.emplace_back(DType::i32, Shape{batch});
      std::ranges::copy(column, columns.back().as<std::int32_t>().begin());
    }
    return [=](const std::vector<Array>&, std::vector<Array>& outputs) {
      decoder->reset();
      for (const Array& column : columns) outputs[0] = decoder->step(column);
    };
  };
  return work;
}

Work make_work(const Json& sizes) {
  static const std::map<std::string, Work (*)(const Json&, DType)> works{
      {"system", system},   {"attention", attention}, {"meta-gradient", meta_gradient},
      {"product", product}, {"negation", negation},   {"chain", chain},
      {"layer", layer},     {"decoding", decoding},   {"training-step", training_step}};
  const std::string name = sizes.at("work");
  if (!works.contains(name)) throw ConfigError(fmt::format("[works] there is no work '{}'", name));
  return works.at(name)(sizes, sizes.at("dtype") == "f64" ? DType::f64 : DType::f32);
}

class Server {
 public:
  Json answer(const Json& request) {
    const std::string what = request.at("do");
    if (what == "device") return {{"name", default_device().description()}};
    if (what == "prepare") return prepare(request);
    if (!plan_) throw ConfigError("[works] nothing is prepared");
    if (what == "check") return check();
    if (what == "time") return time(request.at("runs"));
    throw ConfigError(fmt::format("[works] cannot do '{}'", what));
  }

 private:
  Json prepare(const Json& request) {
    plan_.reset();
    const double first = seconds_of([&] {
      work_ = make_work(request);
      plan_ = std::make_unique<Plan>(work_.program.plan(
          {.precision = precision_named(request.value("precision", "f32")), .donate = work_.donate}));
    });
    folder_ = request.value("folder", "");
    inputs_ = numbers_for_work(work_);
    outputs_.clear();
    if (!folder_.empty())
      for (std::size_t i = 0; i < inputs_.size(); ++i)
        write_npy(fmt::format("{}/in.{}.npy", folder_, work_.input_name(i)), inputs_[i]);
    for (Array& input : inputs_) input = input.to(default_device());
    run_ = work_.other_way
               ? work_.other_way(inputs_)
               : [this](const std::vector<Array>& in, std::vector<Array>& out) { plan_->run(in, out); };
    for (const Spec& spec : plan_->output_specs()) outputs_.emplace_back(spec, default_device());
    for (const auto& [output, input] : work_.donate) outputs_[output] = inputs_[input];
    const PlanStats stats = plan_->stats();
    return {{"first", first},
            {"instructions", stats.instructions},
            {"arena_mb", static_cast<double>(stats.arena_bytes) / 1e6},
            {"recompute_factor", stats.recompute_factor}};
  }

  Json check() {
    run_(inputs_, outputs_);
    for (std::size_t i = 0; i < work_.outputs.size(); ++i)
      write_npy(fmt::format("{}/out.{}.npy", folder_, work_.outputs[i]), outputs_[i].to(Device::cpu()));
    return {{"outputs", work_.outputs}};
  }

  Json time(int runs) {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < runs; ++i) run_(inputs_, outputs_);
      default_device().synchronize();
    });
    return {{"seconds", seconds / runs}};
  }

  Work work_;
  std::unique_ptr<Plan> plan_;
  Run run_;
  std::vector<Array> inputs_, outputs_;
  std::string folder_;
};

}  // namespace

int main() {
  Server server;
  for (std::string line; std::getline(std::cin, line);) {
    Json out;
    try {
      out = server.answer(Json::parse(line));
    } catch (const std::exception& e) {
      out = {{"error", e.what()}};
    }
    std::cout << out.dump() << std::endl;
  }
}
