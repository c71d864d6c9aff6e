// Of an image: where the answer at one patch comes from, and which patches the learner learns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;

// [batch, heads, time, dim] with its tokens from the last to the first.
Array turned_round(const Array& x) {
  const std::int64_t time = x.shape()[2], dim = x.shape()[3];
  Array out(x.dtype(), x.shape());
  for (std::int64_t i = 0; i < x.size() / dim; ++i) {
    const std::int64_t to = i / time * time + (time - 1 - i % time);
    std::ranges::copy(
        x.as<double>().subspan(static_cast<std::size_t>(i * dim), static_cast<std::size_t>(dim)),
        out.as<double>().begin() + static_cast<std::ptrdiff_t>(to * dim));
  }
  return out;
}

Array answers_of(const InspectedLoop& loop) {
  return OpenProgram(
      loop, {}, [](OpenLoop& open, const Tensors&) { return Tensors{open.run(open.options).output}; })()[0];
}

// The image in three channels with a frame around one patch.
Array framed(const InspectedLoop::Patches& p, std::int64_t patch) {
  const Shape& shape = p.image.shape();
  const std::int64_t height = shape[0], width = shape[1], channels = shape[2], edge = height / p.rows;
  const std::int64_t top = patch / p.columns * edge, left = patch % p.columns * edge;
  constexpr float kFrame[] = {0.9f, 0.2f, 0.2f};
  Array out(DType::f32, {height, width, 3});
  for (std::int64_t i = 0; i < height * width; ++i) {
    const std::int64_t y = i / width - top, x = i % width - left;
    const bool inside = y >= 0 && y < edge && x >= 0 && x < edge;
    const bool on_edge = inside && (y == 0 || y == edge - 1 || x == 0 || x == edge - 1);
    for (std::int64_t c = 0; c < 3; ++c)
      out.as<float>()[static_cast<std::size_t>(3 * i + c)] =
          on_edge ? kFrame[c]
                  : p.image.as<float>()[static_cast<std::size_t>(channels * i + (channels == 3 ? c : 0))];
  }
  return out;
}

Heatmap map_of_patches(std::string title, std::string value_label, const InspectedLoop::Patches& p,
                       std::span<const double> tokens) {
  // A class token stands first.
  const auto behind = tokens.last(static_cast<std::size_t>(p.rows * p.columns));
  return {.title = std::move(title),
          .x_label = "column of patches",
          .y_label = "row of patches",
          .value_label = std::move(value_label),
          .rows = p.rows,
          .columns = p.columns,
          .values = {behind.begin(), behind.end()}};
}

}  // namespace

std::vector<Claim> order_of_tokens(const InspectedLoop& inspected) {
  InspectedLoop turned = inspected;
  for (Array* x : {&turned.q, &turned.k, &turned.v}) *x = turned_round(*x);
  for (auto& [name, rows] : turned.gates) rows = turned_round(rows);
  return {{"tokens in another order get the same answers, in that order",
           relative_distance({turned_round(answers_of(turned))}, {answers_of(inspected)}), 1e-12}};
}

ReportView patches_view(ViewContext& context) {
  constexpr int kEdge = 280;  // of the image, in pixels of the screen
  const InspectedLoop& inspected = context.inspected;
  const InspectedLoop::Patches& p = *inspected.patches;
  const std::int64_t time = inspected.time(), first = time - p.rows * p.columns;
  const std::int64_t token = std::max(first, context.token());
  ReportView view{
      "patches", "The image, patch by patch", "Where does the answer at a patch come from?",
      fmt::format(
          "Each token is a patch of the image, {} rows of {}. The maps show how much the learner's answer "
          "at the framed patch depends on the value of each patch: the size of the derivative of the "
          "one by the other (T^5, Figure 4). The learner itself has no notion of places: what it says "
          "of a patch hangs on the keys of all, in whatever order. The last map shows by how much the "
          "step on all patches lowers the inner loss of each.",
          p.rows, p.columns),
      order_of_tokens(inspected)};
  view.pictures.push_back(Images{.title = "What the model sees",
                                 .tiles = {{.image = framed(p, token - first), .caption = p.caption}},
                                 .scale = std::max(1, kEdge / static_cast<int>(p.image.shape()[1]))});
  const std::span<const double> maps = context.implicit().map.as<double>();
  for (std::int64_t h = 0; h < context.drawn_heads; ++h)
    view.pictures.push_back(map_of_patches(
        head_title(fmt::format("Answer at token {}", token), h, inspected.heads()),
        "|d answer / d value| (no unit)", p,
        maps.subspan(static_cast<std::size_t>((h * time + token) * time), static_cast<std::size_t>(time))));
  const InnerLosses& losses = context.losses();
  std::vector<double> change(losses.after.size());
  std::ranges::transform(losses.after, losses.initial, change.begin(), std::minus());
  Heatmap learnt =
      map_of_patches("What the step changes", "inner loss after, minus before (no unit)", p, change);
  learnt.diverging = true;
  view.pictures.push_back(std::move(learnt));
  context.out.arrays["image"] = p.image;
  return view;
}

}  // namespace nestgrad::look
