#include "reproduce/experiments/t5_shift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "ops/ops.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

namespace {

using vision::VisionConfig;

constexpr std::int64_t kImages = 32;  // that keys are measured on
constexpr std::uint64_t kShiftStream = 0x73686966;
constexpr double kFar = 1,
                 kNear = 0.1;  // how far keys are shifted, in lengths of a usual key; for derivatives

struct Kind {
  const char *name, *mixer;
};
constexpr Kind kKinds[] = {{"softmax attention", "softmax"},
                           {"TTT, instance norm of keys", "t5-swiglu"},
                           {"TTT, layer norm of keys", "t5-norm-layer"},
                           {"TTT, no norm of keys", "t5-norm-none"}};
constexpr std::int64_t kSides[] = {4, 8, 16, 32};  // of a grid of tokens

std::string changed(const Kind& kind) { return fmt::format("change, {}", kind.name); }
std::string unforetold(const Kind& kind, int order) {
  return fmt::format("change, less {} derivative{}, {}", order, order == 1 ? "" : "s", kind.name);
}
std::string work(const Kind& kind) { return fmt::format("operations by tokens, {}", kind.name); }

// A layer without convolutions: at the border of an image they would see a shift.
vision::Mixer without_locality(const char* name) {
  vision::Mixer out = vision::mixer_named(name);
  if (auto* t5 = std::get_if<ttt::T5Attention>(&out.layer)) t5->convolutions = false;
  return out;
}

vision::MixerSizes sizes_of(std::int64_t side) {
  return {.width = 48, .heads = 2, .height = side, .image_width = side};
}

// The largest of |a - b - c ..| over the largest of |a|.
double apart(const Array& a, const std::vector<std::pair<double, Array>>& parts) {
  std::vector<double> rest = a.to_vector();
  double largest = 0, most = 0;
  for (const double x : rest) largest = std::max(largest, std::abs(x));
  for (const auto& [scale, part] : parts) {
    const std::vector<double> values = part.to_vector();
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= scale * values[i];
  }
  for (const double x : rest) most = std::max(most, std::abs(x));
  return most / largest;
}

void shift_one(const Kind& kind, const Task& task, Measured& out) {
  const vision::MixerSizes sizes = sizes_of(8);
  const Spec x{DType::f64, {2, 64, sizes.width}}, bias{DType::f64, {3 * sizes.width}};
  const TracedModel traced =
      trace_model(DType::f64, {x, bias}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const Params params(table);
        const Tensor moved = params("qkv.bias", {3 * sizes.width}, Init::zeros());
        const Tensor y = mix(in[0], params, without_locality(kind.mixer), sizes);
        const Tensor first = jvp({y}, {moved}, {in[1]}, {.allow_zero = true})[0];
        const Tensor second = jvp({first}, {moved}, {in[1]}, {.allow_zero = true})[0];
        return std::vector<Tensor>{y, first, second};
      });
  StateDict params = initial_parameters(traced.params, DType::f64, task.seed);
  const Array tokens = random_normal(x, 0, 1, task.seed, kShiftStream);
  // The same direction for all tokens; a key's numbers are about 1 here.
  Array direction = random_normal(bias, 0, 1, task.seed, kShiftStream + 1);
  const auto width = static_cast<std::size_t>(sizes.width);
  for (std::size_t i = 0; i < 3 * width; ++i)
    if (i < width || i >= 2 * width) direction.as<double>()[i] = 0;
  const auto answers = [&](double far) {
    Array moved = direction.clone();
    for (double& b : moved.as<double>()) b *= far;
    params.insert_or_assign("qkv.bias", moved);
    return traced.function(traced.bind({tokens, direction}, {&params}));
  };
  const std::vector<Array> here = answers(0), near = answers(kNear), far = answers(kFar);
  out.numbers[changed(kind)] = apart(far[0], {{1, here[0]}});
  out.numbers[unforetold(kind, 0)] = apart(near[0], {{1, here[0]}});
  out.numbers[unforetold(kind, 1)] = apart(near[0], {{1, here[0]}, {kNear, here[1]}});
  out.numbers[unforetold(kind, 2)] =
      apart(near[0], {{1, here[0]}, {kNear, here[1]}, {kNear * kNear / 2, here[2]}});
}

// Of a plan that runs one layer forward, by the number of tokens.
std::vector<double> work_of(const Kind& kind) {
  std::vector<double> out;
  for (const std::int64_t side : kSides) {
    const vision::MixerSizes sizes = sizes_of(side);
    const TracedModel traced = trace_model(
        DType::f32, {{DType::f32, {1, side * side, sizes.width}}},
        [&](ParamTable& table, const std::vector<Tensor>& in) {
          return std::vector<Tensor>{mix(in[0], Params(table), without_locality(kind.mixer), sizes)};
        });
    out.push_back(traced.function.plan().stats().flops);
  }
  return out;
}

}  // namespace

double key_shift(const vision::VisionConfig& model, const StateDict& params, const Task& task) {
  const Array images = CharacterImages::of(task.settings).held_out(0, kImages).images;
  const TracedModel traced =
      trace_model(DType::f32, {images.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        Tensor shared = constant(0.0, DType::f32), all = shared;
        for (std::int64_t block = 0; block < model.depth; ++block) {
          const Tensor keys = block_keys(in[0], Params(table), model, block);
          shared += sum(square(mean(keys, {1}))), all += sum(mean(square(keys), {1}));
        }
        return std::vector<Tensor>{shared / all};
      });
  return traced.function(traced.bind({images}, {&params}))[0].item();
}

std::vector<double> attention_of(const vision::VisionConfig& model, const StateDict& params,
                                 const Task& task) {
  const Array images = CharacterImages::of(task.settings).held_out(0, 1).images;
  const std::int64_t tokens = model.tokens(),
                     middle = model.columns() * (model.rows() / 2) + model.columns() / 2;
  const TracedModel traced =
      trace_model(DType::f32, {images.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const Tensor map = block_attention(in[0], Params(table), model, 0);
        return std::vector<Tensor>{reshape(slice(slice(map, 1, 0, 1), 2, middle, middle + 1), {tokens})};
      });
  return traced.function(traced.bind({images}, {&params}))[0].to_vector();
}

void shift_keys(const Task& task, Measured& out) {
  for (const Kind& kind : kKinds) {
    shift_one(kind, task, out);
    out.curves[work(kind)] = work_of(kind);
  }
  const vision::VisionConfig model = classifier("softmax");
  const TracedModel traced =
      trace_model(DType::f32, {{DType::f32, {1, model.height, model.image_width, model.channels}}},
                  [&](ParamTable& table, const std::vector<Tensor>& in) {
                    return std::vector<Tensor>{class_logits(in[0], Params(table), model)};
                  });
  out.numbers["key shift at the start"] =
      key_shift(model, initial_parameters(traced.params, DType::f32, task.seed), task);
}

std::function<Exact(const Results&)> shifts_hold(std::string row) {
  return [row = std::move(row)](const Results& results) {
    const std::vector<double> of_softmax = results.of(row, changed(kKinds[0]));
    if (of_softmax.empty()) return Exact{std::nullopt, "no run"};
    const double softmax = largest_of(of_softmax), instance = largest_of(results.of(row, changed(kKinds[1]))),
                 none = least_of(results.of(row, changed(kKinds[3])));
    return Exact{softmax < 1e-14 && instance < 1e-12 && none > 1e-3,
                 fmt::format("at most {:.1e} and {:.1e}, at least {:.2g}", softmax, instance, none),
                 results.seeds().size() - of_softmax.size()};
  };
}

ReportView shifts_view(const Results& results, const std::string& row, const std::vector<std::string>& maps,
                       const std::string& ttt) {
  Table table{"The same vector added to all keys (f64, relative to the largest answer)",
              {"layer", "change", "a tenth as far", "less its first derivative", "less its second"}};
  const auto most = [&](const std::string& number) {
    const std::vector<double> all = results.of(row, number);
    return all.empty() ? "" : fmt::format("{:.2g}", std::ranges::max(all));
  };
  Chart chart{.title = "Operations of a layer",
              .x_label = "tokens",
              .y_label = "operations",
              .log_x = true,
              .log_y = true};
  std::vector<double> tokens;
  for (const std::int64_t side : kSides) tokens.push_back(static_cast<double>(side * side));
  for (const Kind& kind : kKinds) {
    table.rows.push_back({kind.name, most(changed(kind)), most(unforetold(kind, 0)),
                          most(unforetold(kind, 1)), most(unforetold(kind, 2))});
    if (kind.mixer != std::string("softmax") && kind.mixer != std::string("t5-swiglu")) continue;
    if (Series line = mean_line(kind.name, tokens, results.curves(row, work(kind))); !line.x.empty())
      chart.series.push_back(std::move(line));
  }
  Table shares{"What keys have in common (squared length of their mean, over their mean squared length)",
               {"model", "share"}};
  shares.rows = {{"softmax attention at the start", mean_text(results.of(row, "key shift at the start"))},
                 {"T^5, trained", mean_text(results.of(ttt, "key shift"))}};
  std::vector<Picture> pictures{table, shares, chart};
  for (const std::string& name : maps) {
    const auto found = results.curves(name, "attention");
    if (found.empty()) continue;
    Heatmap map{.title = fmt::format("What the token in the middle takes of each: {}", name)};
    map.rows = map.columns = 8, map.values = found[0];
    if (map.values.size() != 64) throw std::out_of_range("attention of another grid");
    map.diverging = std::ranges::min(found[0]) < 0;
    pictures.push_back(std::move(map));
  }
  return {
      .id = "shifts",
      .title = "A shift of all keys",
      .question = "What do attention and a learner make of the same vector added to every key?",
      .reading =
          "softmax((k + d)' q) is softmax(k' q): d' q is the same for all keys. A learner is trained on its keys, so it "
          "sees the shift, to first and second order in d as its derivatives say (the paper's equation 8; here both "
          "derivatives are the engine's own, through the inner step). With the mean over the tokens subtracted from the "
          "keys there is no shift to see; a norm of each key alone does not take it away.\n\n"
          "The paper finds that trained softmax models make use of the freedom: their keys have a large part in common (a ratio "
          "of .5, at random weights .07, as it defines it). Here no trained softmax model is looked at: the table has one at "
          "its start, and a T^5 that was made of a trained one and trained on. The operations are those of a plan for one layer of width 48. "
          "The maps are of the first head in the first block, for the first held-out image, first seed: a learner's is what it "
          "makes of the tokens' values, and may be negative.",
      .pictures = std::move(pictures)};
}

}  // namespace nestgrad::reproduce
