// An inspection of the model that trains while it reads.
#include "models/end_to_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/grad.h"
#include "look/gradient_parts.h"
#include "look/inspection.h"
#include "look/views.h"

namespace nestgrad {

namespace {

using look::array_of;
using look::line;
using Arrays = std::vector<Array>;

constexpr double kRounding = 1e-11;  // of what is computed in two ways, chunk after chunk

// What is looked at, in f64; one text.
struct Numbers {
  Array initial, read;                      // loss of each token: at the first weights, as it is read
  std::vector<double> before, after;        // before the step on its chunk, and just after it
  std::vector<double> norm, clipped_norm;   // of each chunk
  Arrays full;                              // outer gradient of the first weights
  std::vector<Arrays> of_reading, of_step;  // of each chunk's own two points
};

// Shares out a program's outputs, in their order.
class Outputs {
 public:
  explicit Outputs(Arrays all) : all_(std::move(all)) {}
  Array one() { return all_[at_++]; }
  Arrays some(std::size_t count) {
    Arrays out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(one());
    return out;
  }

 private:
  Arrays all_;
  std::size_t at_ = 0;
};

Numbers numbers_of(const EndToEndConfig& config, const StateDict& params, const Array& tokens) {
  std::size_t weights = 0, chunks = 0;
  const TracedModel traced =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const EndToEndModel model(config, Params(table));
        // The text as a loop over chunks: the model itself, with the gradient of the weights before the first.
        const EndToEndReading reading = model.read(in[0]);
        std::vector<Tensor> start;
        for (std::size_t i = 0; i < table.specs().size(); ++i)
          if (table.specs()[i].name.find("feed_forward_prime") != std::string::npos)
            start.push_back(table.tensors()[i]);
        std::vector<Tensor> out{model.loss_at(model.start(1), in[0]), reading.loss};
        const std::vector<Tensor> full = grad(reading.mean_loss(), start);
        out.insert(out.end(), full.begin(), full.end());
        // The same chunk by chunk.
        const std::vector<EndToEndStep> steps = model.steps(in[0]);
        std::vector<Tensor> losses, points;
        for (const EndToEndStep& s : steps) {
          losses.push_back(s.loss);
          for (const ttt::Weights& at : {s.read, s.learnt})
            for (const Tensor& w : at.values()) points.push_back(w);
        }
        const Tensor loss = losses.size() == 1 ? losses[0] : concat(losses, 1);
        const std::vector<Tensor> parts = grad(mean(loss), points, {.allow_zero = true});
        for (const EndToEndStep& s : steps)
          out.insert(out.end(), {s.loss, s.loss_after, s.norm, s.clipped_norm});
        out.insert(out.end(), parts.begin(), parts.end());
        weights = full.size(), chunks = steps.size();
        return out;
      });
  check_fits(traced.params, params, "the checkpoint");
  StateDict wide;
  for (const auto& [name, value] : params) wide.emplace(name, value.cast(DType::f64));
  Outputs r(traced.function(traced.bind({tokens}, {&wide})));
  Numbers out;
  out.initial = r.one(), out.read = r.one();
  out.full = r.some(weights);
  for (std::size_t c = 0; c < chunks; ++c) {
    for (std::vector<double>* to : {&out.before, &out.after}) {
      const std::vector<double> own = r.one().to_vector();
      to->insert(to->end(), own.begin(), own.end());
    }
    out.norm.push_back(r.one().item());
    out.clipped_norm.push_back(r.one().item());
  }
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t points = static_cast<std::size_t>(3 * config.suffix_len);
    out.of_reading.push_back(r.some(points));
    out.of_step.push_back(r.some(points));
  }
  return out;
}

// Gradients of weights [1, in, out], three a block, in the layout of the parameters: w1, w2, w3 [blocks, in, out].
Arrays stacked(const Arrays& of_blocks) {
  Arrays out;
  for (std::size_t j = 0; j < 3; ++j) {
    std::vector<double> all;
    for (std::size_t i = j; i < of_blocks.size(); i += 3) {
      const std::vector<double> own = of_blocks[i].to_vector();
      all.insert(all.end(), own.begin(), own.end());
    }
    const Shape& one = of_blocks[j].shape();
    out.push_back(Array::of(all, {static_cast<std::int64_t>(of_blocks.size() / 3), one[1], one[2]}));
  }
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b, std::size_t count) {
  double out = 0;
  for (std::size_t i = 0; i < count; ++i)
    out = worse(out, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
  return out;
}

ReportView losses_view(const Numbers& n, std::int64_t chunk, Inspection& page) {
  const std::vector<double> initial = n.initial.to_vector(), read = n.read.to_vector();
  ReportView view{
      "losses", "The loss, token by token", "Does the model learn while it reads?",
      "Inner and outer loss are the same here: the loss of the next token. It is shown with the weights from before the "
      "first token, with those that the chunks before have left, and with those just after the step on the token's own "
      "chunk. Where the second line falls below the first, the model has learnt from earlier chunks; the third says what "
      "a step does to the tokens that it is made of, which no token ever reads."};
  view.claims = {{"in the first chunk the loss is that at the first weights",
                  largest_difference(n.before, initial, static_cast<std::size_t>(chunk)), kRounding},
                 {"chunk by chunk the losses are those of the whole text",
                  largest_difference(n.before, read, read.size()), kRounding}};
  view.pictures = {Chart{"Loss",
                         "token",
                         "loss (nats per token)",
                         {line("at the first weights", initial), line("as it is read", n.before),
                          line("after the step on its chunk", n.after)}}};
  page.arrays["loss_initial"] = array_of(initial);
  page.arrays["loss_before"] = array_of(n.before);
  page.arrays["loss_after"] = array_of(n.after);
  return view;
}

ReportView by_step_view(const Numbers& n, Inspection& page) {
  const double full = look::norm(n.full);
  const auto along = [&](const Arrays& part) { return full > 0 ? look::dot(part, n.full) / full : 0.0; };
  Arrays first_order = stacked(n.of_reading[0]);
  for (std::size_t c = 1; c < n.of_reading.size(); ++c)
    first_order = look::plus(first_order, stacked(n.of_reading[c]));
  Arrays all = first_order;
  std::vector<std::string> names{"first order"};
  std::vector<double> projection{along(first_order)}, steps, norms;
  for (std::size_t c = 0; c < n.of_step.size(); ++c) {
    const Arrays own = stacked(n.of_step[c]);
    all = look::plus(all, own);
    names.push_back(fmt::format("step {}", c));
    steps.push_back(along(own));
    norms.push_back(look::norm(own));
  }
  projection.insert(projection.end(), steps.begin(), steps.end());
  ReportView view{
      "by-step",
      "The meta-gradient by inner step",
      "Which inner steps shape the outer gradient?",
      "The outer gradient of the weights before the first token has a part that treats every inner gradient as a "
      "constant (first order) and one part for each step, -rate H lambda, clipping included: how the loss moves because "
      "that step's gradient would have been another one. The last step is read by no token: its part is zero.\n\n"
      "Projection: how much a part contributes in the direction of the full gradient; negative bars pull against it. All "
      "bars add up to the norm of the full gradient, which is that of the loop over chunks that the model trains with.",
      {{"first-order term + one term per inner step = full meta-gradient",
        look::relative_distance(all, n.full), kRounding}}};
  view.pictures = {Bars{"Projection on the full gradient",
                        "outer loss per weight (nats per token)",
                        names,
                        {{"projection", projection}}},
                   Bars{"The terms of the steps alone",
                        "in the same unit",
                        {names.begin() + 1, names.end()},
                        {{"projection", steps}, {"norm", norms}}}};
  view.preformatted = fmt::format("full {:.6g} = first order {:.6g} + steps {:.6g}   (projections)\n", full,
                                  projection[0], std::accumulate(steps.begin(), steps.end(), 0.0));
  page.arrays["step_projection"] = array_of(steps);
  page.arrays["step_norm"] = array_of(norms);
  return view;
}

ReportView gradients_view(const Numbers& n, double clip, Inspection& page) {
  double error = 0;
  for (std::size_t c = 0; c < n.norm.size(); ++c)
    error = worse(error, std::abs(n.clipped_norm[c] - std::min(n.norm[c], clip)) / clip);
  ReportView view{
      "inner-gradients",
      "The inner gradients",
      "How large are the steps, and which of them are clipped?",
      "The norm of each chunk's gradient, over all prime MLPs together, and what clipping leaves of it. A step moves the "
      "weights by the rate times that.",
      {{"what is left is the smaller of norm and clip", error, kRounding}}};
  view.pictures = {Chart{.title = "Norm of the inner gradient",
                         .x_label = "chunk",
                         .y_label = "norm (nats per weight)",
                         .series = {line("before clipping", n.norm), line("clipped", n.clipped_norm)},
                         .reference_lines = {{"clip", clip}}}};
  page.arrays["inner_gradient_norm"] = array_of(n.norm);
  page.arrays["inner_gradient_clipped_norm"] = array_of(n.clipped_norm);
  return view;
}

}  // namespace

Inspection inspect_end_to_end(const Checkpoint& checkpoint, const Array& tokens,
                              const InspectionOptions& options) {
  if (checkpoint.config.ttt_layer_type != kEndToEnd)
    throw ConfigError(
        fmt::format("[inspect] a model of '{}' layers does not learn as a whole; inspect a layer of it",
                    checkpoint.config.ttt_layer_type));
  if (tokens.dtype() != DType::i32 || tokens.shape().size() != 2 || tokens.shape()[0] != 1 ||
      tokens.shape()[1] < 2)
    throw ShapeError(fmt::format(
        "[inspect] tokens are {}; they must be i32[1, time + 1], one sequence of at least two tokens",
        to_string(tokens.spec())));
  EndToEndConfig config = end_to_end_config(checkpoint.config);
  config.suffix_len = config.learning_blocks();
  const auto report = [&](const char* what, double done) {
    if (options.progress) options.progress(what, done);
  };
  Inspection out;
  out.title = "A look inside a language model that trains while it reads";
  const std::int64_t time = tokens.shape()[1] - 1;
  out.subtitle = fmt::format("{} tokens, chunks of {}, {} of {} blocks learn", time, config.chunk,
                             config.suffix_len, config.num_hidden_layers);
  report("inner steps", 0);
  const Numbers n = numbers_of(config, checkpoint.params, tokens);
  const auto log_rate = checkpoint.params.find("inner_log_rate");
  out.facts = {{"inner steps", std::to_string(n.norm.size())},
               {"inner rate", fmt::format("{:.4g}, learned", std::exp(log_rate->second.at(0)))},
               {"clip", fmt::format("{}", config.clip)},
               {"window of attention", std::to_string(config.window)},
               {"outer loss", "nats per token"},
               {"numbers", "f64, but for the precision view"}};
  out.views = {losses_view(n, config.chunk, out), by_step_view(n, out), gradients_view(n, config.clip, out)};
  report("precision", 0.5);
  const look::PrecisionProbe probe = model_precision(checkpoint, tokens);
  out.views.push_back(look::view_of(probe));
  report("done", 1);
  return out;
}

}  // namespace nestgrad
