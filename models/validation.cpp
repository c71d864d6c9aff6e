#include "models/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nestgrad {

namespace {

constexpr DType kType = DType::f32;

constexpr std::string_view kInnerLoss = ".inner_loss_";

// Names of the layers that showed their inner loss, in the order of their numbers.
std::vector<std::string> layers_that_learn(const std::map<std::string, Tensor>& taps) {
  const std::string end = std::string(kInnerLoss) + "before";
  std::vector<std::string> out;
  for (const auto& [name, value] : taps)
    if (name.ends_with(end)) out.push_back(name.substr(0, name.size() - end.size()));
  std::ranges::stable_sort(out, {}, [](const std::string& name) { return name.size(); });
  return out;
}

// Row i of rows of this width.
auto row(const auto& all, std::int64_t i, std::int64_t width) {
  return all.subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
}

// layers.0 of layers.0.seq_modeling_block.
std::string shown_name(const std::string& layer) {
  return layer.substr(0, std::min(layer.size(), layer.find(".seq_modeling_block")));
}

// ShapeError, or ValueError for places that a window does not have.
void check(const PackedWindows& windows) {
  const Shape tokens = windows.tokens.defined() ? windows.tokens.shape() : Shape{};
  const auto is = [](const Array& a, DType dtype, const Shape& shape) {
    return a.defined() && a.dtype() == dtype && a.shape() == shape;
  };
  const Shape rows = tokens.size() == 2 ? Shape{tokens[0], tokens[1] - 1} : Shape{};
  if (tokens.size() != 2 || rows[0] < 1 || rows[1] < 1 || windows.tokens.dtype() != DType::i32 ||
      !is(windows.places, DType::f32, rows) || !is(windows.counted, DType::f32, rows)) {
    const auto text = [](const Array& a) { return a.defined() ? to_string(a.spec()) : "nothing"; };
    throw ShapeError(fmt::format(
        "[validation] packed windows are tokens {}, places {}, counted {}; they must be i32 [windows, context + 1] and twice f32 "
        "[windows, context], as packed_validation() gives them",
        text(windows.tokens), text(windows.places), text(windows.counted)));
  }
  for (const float place : windows.places.as<float>())
    if (!(place >= 0 && place < static_cast<float>(rows[1]) && place == std::floor(place)))
      throw ValueError(fmt::format(
          "[validation] a token stands at place {} of its document, in windows of {}", place, rows[1]));
}

}  // namespace

std::optional<double> Validation::mean_between(double from, double to) const {
  if (!(from >= 0 && from <= to && to <= 1))
    throw ValueError(fmt::format(
        "[validation] from {} to {} is no part of a context; give two numbers from 0 to 1, the smaller first",
        from, to));
  const auto place = [&](double part) {
    const auto at = static_cast<std::int64_t>(part * static_cast<double>(context));
    return loss_by_position.begin() + std::min(at, std::ssize(loss_by_position));
  };
  const auto first = place(from), last = place(to);
  if (first == last) return std::nullopt;
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

Validation validation_of(const TokenLossFn& losses, const StateDict& params, const Array& windows,
                         std::int64_t batch, Transport& processes) {
  require_function("validation", "what makes the losses", losses);
  if (!windows.defined() || windows.dtype() != DType::i32 || windows.shape().size() != 2 ||
      windows.shape()[1] < 2)
    throw ShapeError(fmt::format("[validation] windows are {}; they must be i32 [windows, context + 1]",
                                 windows.defined() ? to_string(windows.spec()) : "nothing"));
  const std::int64_t count = windows.shape()[0], width = windows.shape()[1];
  if (batch < 1 || batch > count)
    throw ConfigError(fmt::format("[validation] {} windows at a time are to be read of {}; give 1 to {}",
                                  batch, count, count));
  std::vector<std::string> layers;
  const TracedModel model = trace_model(
      kType, {Spec{DType::i32, {batch, width}}}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        stream.track_inner_loss = true;
        std::vector<Tensor> out{mean(losses(Params(table), in[0], {}, stream), {0})};
        layers = layers_that_learn(stream.taps());
        for (const std::string& layer : layers)
          for (const char* which : {"initial", "before", "after"})
            out.push_back(mean(stream.taps().at(fmt::format("{}{}{}", layer, kInnerLoss, which)), {0, 1}));
        return out;
      });
  std::vector<Array> inputs = model.bind({Array(DType::i32, {batch, width})}, {&params});
  Plan plan = model.function.plan();
  std::vector<std::vector<double>> sums(plan.output_specs().size(),
                                        std::vector<double>(static_cast<std::size_t>(width - 1), 0.0));
  const std::int64_t batches = count / batch;
  const auto of_batch = [&](std::int64_t b) {
    const auto all = windows.as<std::int32_t>();
    std::ranges::copy(
        all.subspan(static_cast<std::size_t>(b * batch * width), static_cast<std::size_t>(batch * width)),
        inputs[0].as<std::int32_t>().begin());
    std::vector<double> numbers;
    for (const Array& out : plan.run(inputs))
      for (const double x : out.to_vector()) numbers.push_back(x);
    return numbers;
  };
  for (const std::vector<double>& numbers : processes.shared_out(batches, of_batch)) {
    auto number = numbers.begin();
    for (std::vector<double>& sum : sums)
      for (double& s : sum) s += *number++ / static_cast<double>(batches);
  }
  Validation result;
  result.loss_by_position = sums[0];
  result.context = width - 1;
  result.loss = result.mean_between(0, 1).value_or(0);
  for (std::size_t i = 0; i < layers.size(); ++i)
    result.inner.push_back({shown_name(layers[i]), sums[1 + 3 * i], sums[2 + 3 * i], sums[3 + 3 * i]});
  return result;
}

Validation validation_of(const DocumentLossFn& losses, const StateDict& params, const PackedWindows& windows,
                         Transport& processes) {
  require_function("validation", "what makes the losses", losses);
  check(windows);
  const std::int64_t count = windows.tokens.shape()[0], context = windows.tokens.shape()[1] - 1;
  const TracedModel model =
      trace_model(kType, {Spec{DType::i32, {1, context + 1}}, Spec{kType, {1, context}}},
                  [&](ParamTable& table, const std::vector<Tensor>& in) {
                    return std::vector<Tensor>{losses(Params(table), in[0], in[1])};
                  });
  std::vector<Array> inputs =
      model.bind({Array(DType::i32, {1, context + 1}), Array(kType, {1, context})}, {&params});
  Plan plan = model.function.plan();
  const auto losses_of = [&](std::int64_t i) {
    std::ranges::copy(row(windows.tokens.as<std::int32_t>(), i, context + 1),
                      inputs[0].as<std::int32_t>().begin());
    std::ranges::copy(row(windows.places.as<float>(), i, context), inputs[1].as<float>().begin());
    return plan.run(inputs)[0].to_vector();
  };
  return validation_of_losses(processes.shared_out(count, losses_of), windows);
}

Validation validation_of_losses(const std::vector<std::vector<double>>& batches) {
  Validation out;
  for (const std::vector<double>& numbers : batches) {
    out.loss_by_position.resize(numbers.size());
    for (std::size_t t = 0; t < numbers.size(); ++t)
      out.loss_by_position[t] += numbers[t] / static_cast<double>(batches.size());
  }
  out.context = std::ssize(out.loss_by_position);
  out.loss = out.mean_between(0, 1).value_or(0);
  return out;
}

Validation validation_of_losses(const std::vector<std::vector<double>>& all, const PackedWindows& windows) {
  check(windows);
  const std::int64_t count = windows.tokens.shape()[0], context = windows.tokens.shape()[1] - 1;
  if (std::ssize(all) != count ||
      std::ranges::any_of(all, [&](const std::vector<double>& loss) { return std::ssize(loss) != context; }))
    throw ShapeError(
        fmt::format("[validation] losses are of {} windows; they must be those of {}, {} numbers each",
                    all.size(), count, context));
  std::vector<double> sums(static_cast<std::size_t>(context)), counts(sums.size());
  Validation out;
  out.context = context;
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto places = row(windows.places.as<float>(), i, context),
               counted = row(windows.counted.as<float>(), i, context);
    const std::vector<double>& loss = all[static_cast<std::size_t>(i)];
    for (std::size_t t = 0; t < loss.size(); ++t) {
      if (counted[t] == 0) continue;
      const auto place = static_cast<std::size_t>(places[t]);
      sums[place] += loss[t], counts[place] += 1;
      out.loss += loss[t], total += 1;
    }
  }
  if (total == 0)
    throw ValueError(
        "[validation] no token of these windows counts (PackedWindows::counted is 0 everywhere); mark those whose "
        "loss is asked for with 1");
  out.packed = true;
  out.loss /= total;
  for (std::size_t place = 0; place < sums.size() && counts[place] > 0; ++place)
    out.loss_by_position.push_back(sums[place] / counts[place]);
  return out;
}

}  // namespace nestgrad
