#include "look/training_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad {

namespace {

std::vector<double> smooth(const std::vector<double>& y, std::size_t half_width) {
  std::vector<double> out(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t from = i > half_width ? i - half_width : 0, to = std::min(y.size(), i + half_width + 1);
    double sum = 0;
    for (std::size_t k = from; k < to; ++k) sum += y[k];
    out[i] = sum / static_cast<double>(to - from);
  }
  return out;
}

Series by_position(std::string name, const std::vector<double>& y) {
  Series s{std::move(name), {}, smooth(y, 8)};
  for (std::size_t i = 0; i < y.size(); ++i) s.x.push_back(static_cast<double>(i));
  return s;
}

}  // namespace

Chart position_chart(const TrainingResults& r) {
  return {"Validation loss by position",
          r.validation.packed ? "position in its document (bytes)" : "position in the context (bytes)",
          "loss (nats per byte)",
          {by_position("validation loss", r.validation.loss_by_position)},
          {{"bigram", r.bigram}}};
}

Chart inner_chart(const Validation::Inner& layer) {
  return {"Inner loss, " + layer.layer,
          "position in the context (bytes)",
          "inner loss (of a token, in units of its task)",
          {by_position("at the first weights", layer.initial), by_position("before the step", layer.before),
           by_position("after the step", layer.after)}};
}

std::string training_report(const std::string& subtitle,
                            const std::vector<std::pair<std::string, std::string>>& facts,
                            const std::vector<Metric>& metrics, const TrainingResults& r) {
  Series curve{"training loss", {}, {}};
  for (const Metric& m : metrics) curve.x.push_back(static_cast<double>(m.step)), curve.y.push_back(m.loss);
  curve.y = smooth(curve.y, std::max<std::size_t>(1, metrics.size() / 100));

  std::vector<ReportView> views{
      {.id = "training",
       .title = "Training",
       .question = "How far did the outer training get?",
       .reading = "Loss of each training batch, smoothed. The dotted "
                  "line is a bigram model of the same training text.",
       .pictures = {Chart{
           "Training curve", "step", "loss (nats per byte)", {curve}, {{"bigram", r.bigram}}}}},
      {.id = "positions",
       .title = "It learns while it reads",
       .question = "Does the loss fall as the model reads on?",
       .reading =
           fmt::format("Validation loss by position in the {}, smoothed over 17 bytes. All weights that the "
                       "outer training found are fixed here; what falls from left to right is what the "
                       "layers learn from the text in front of them.",
                       r.validation.packed ? "document" : "context"),
       .pictures = {position_chart(r)}}};
  ReportView inner{
      .id = "inner-loss",
      .title = "The inner loss",
      .question = "Does each layer get better at its own task?",
      .reading =
          "Each layer trains a small model on the sequence. Its self-supervised loss on each token with the "
          "weights from before the first token, and "
          "just before and just after the gradient step on that token (Sun et al. 2024, Figure 4)."};
  for (const Validation::Inner& layer : r.validation.inner) inner.pictures.push_back(inner_chart(layer));
  if (!inner.pictures.empty()) views.push_back(inner);
  const bool failed = !r.why_no_sample.empty();
  if (failed || !r.sample.empty())
    views.push_back(
        {.id = "sample",
         .title = "A sample",
         .question = "What does it write?",
         .reading =
             failed ? "The model was to read the beginning of the validation text and to go on, which failed."
                    : "The model read the beginning of the validation text and wrote what "
                      "follows the mark, byte by byte with carried inner state, at temperature 0.8.",
         .preformatted = failed ? r.why_no_sample : r.prompt + "▌" + r.sample});
  return html_report("nestgrad: a language model that learns while it reads", subtitle, facts, views);
}

}  // namespace nestgrad
