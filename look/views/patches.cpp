// Of an image: where the answer at one patch comes from, and which patches the learner learns.
#include <fmt/format.h>

#include <algorithm>

#include "engine/core/index.h"
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

// The image in three channels with a frame around one of its patches; patch: none if it is not one of this image.
Array framed(const Array& image, const InspectedLoop::Patches& p, std::int64_t patch) {
  const Shape& shape = image.shape();
  const std::int64_t height = shape[0], width = shape[1], channels = shape[2], edge = height / p.rows;
  const bool here = patch >= 0 && patch < p.rows * p.columns;
  const std::int64_t top = patch / p.columns * edge, left = patch % p.columns * edge;
  constexpr float kFrame[] = {0.9f, 0.2f, 0.2f};
  Array out(DType::f32, {height, width, 3});
  for (std::int64_t i = 0; i < height * width; ++i) {
    const std::int64_t y = i / width - top, x = i % width - left;
    const bool inside = here && y >= 0 && y < edge && x >= 0 && x < edge;
    const bool on_edge = inside && (y == 0 || y == edge - 1 || x == 0 || x == edge - 1);
    for (std::int64_t c = 0; c < 3; ++c)
      out.as<float>()[static_cast<std::size_t>(3 * i + c)] =
          on_edge ? kFrame[c]
                  : image.as<float>()[static_cast<std::size_t>(channels * i + (channels == 3 ? c : 0))];
  }
  return out;
}

// What the model sees, the patch framed.
Images images_of(const InspectedLoop::Patches& p, std::int64_t patch) {
  constexpr int kEdge = 280,
                kSmallEdge = 130;  // of one image, and of one of several, in pixels of the screen
  const std::int64_t each = p.rows * p.columns;
  const auto width = static_cast<int>(p.images[0].image.shape()[1]);
  Images out{.title = p.images.size() > 1 ? "What the model sees, and is asked for" : "What the model sees",
             .scale = std::max(1, (p.images.size() > 1 ? kSmallEdge : kEdge) / width)};
  for (const InspectedLoop::Patches::Captioned& x : p.images) {
    out.tiles.push_back({.image = framed(x.image, p, patch), .caption = x.caption});
    patch -= each;
  }
  return out;
}

// Of the patches of all images, one image beside the other.
Heatmap map_of_patches(std::string title, std::string value_label, const InspectedLoop::Patches& p,
                       std::span<const double> tokens) {
  const auto behind = tokens.last(uz(p.tokens()));  // a class token stands first
  const std::int64_t count = std::ssize(p.images), columns = count * p.columns;
  Heatmap out{.title = std::move(title),
              .x_label = count > 1 ? "column of patches, image after image" : "column of patches",
              .y_label = "row of patches",
              .value_label = std::move(value_label),
              .rows = p.rows,
              .columns = columns,
              .values = std::vector<double>(behind.size())};
  for (std::int64_t i = 0; i < p.tokens(); ++i) {
    const std::int64_t image = i / (p.rows * p.columns), row = i / p.columns % p.rows;
    out.values[uz(row * columns + image * p.columns + i % p.columns)] = behind[uz(i)];
  }
  return out;
}

// Images of one size, one behind the other; one image alone is itself.
Array stacked(const std::vector<InspectedLoop::Patches::Captioned>& images) {
  const Array& first = images[0].image;
  if (images.size() == 1) return first;
  Shape shape = first.shape();
  shape.insert(shape.begin(), std::ssize(images));
  Array out(first.dtype(), shape);
  for (std::size_t i = 0; i < images.size(); ++i)
    std::ranges::copy(images[i].image.as<float>(),
                      out.as<float>().begin() + static_cast<std::ptrdiff_t>(i) * first.size());
  return out;
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
  const InspectedLoop& inspected = context.inspected;
  const InspectedLoop::Patches& p = *inspected.patches;
  const std::int64_t time = inspected.time(), first = time - p.tokens();
  const std::int64_t token = std::max(first, context.token());
  const bool one = p.images.size() == 1;
  ReportView view{
      "patches", one ? "The image, patch by patch" : "The images, patch by patch",
      "Where does the answer at a patch come from?",
      fmt::format(
          "Each token{} is a patch of {}, {} rows of {}. The maps show how much the learner's answer "
          "at the framed patch depends on the value of each patch: the size of the derivative of the "
          "one by the other (T^5, Figure 4). The learner itself has no notion of places: what it says "
          "of a patch hangs on the keys of all, in whatever order. The last map shows by how much the "
          "step on all patches{} lowers the inner loss of each.",
          first > 0 ? " but the first, the class token," : "", one ? "the image" : "one of the images",
          p.rows, p.columns, one ? "" : " that it learns from"),
      order_of_tokens(inspected)};
  Images seen = images_of(p, token - first), made{.title = "What the model makes", .scale = seen.scale};
  for (const InspectedLoop::Patches::Captioned& x : p.made) made.tiles.push_back({x.image, x.caption});
  view.pictures.push_back(std::move(seen));
  if (!made.tiles.empty()) {
    view.reading +=
        "\n\nOf views that are asked for the model sees no pixel, and no answer depends on their values.";
    view.pictures.push_back(std::move(made));
  }
  const std::span<const double> maps = context.implicit().map.as<double>();
  for (std::int64_t h = 0; h < context.drawn_heads; ++h)
    view.pictures.push_back(map_of_patches(
        head_title(fmt::format("Answer at token {}", token), h, inspected.heads()),
        "|d answer / d value| (no unit)", p, maps.subspan(uz((h * time + token) * time), uz(time))));
  const InnerLosses& losses = context.losses();
  std::vector<double> change(losses.after.size());
  std::ranges::transform(losses.after, losses.initial, change.begin(), std::minus());
  Heatmap learnt =
      map_of_patches("What the step changes", "inner loss after, minus before (no unit)", p, change);
  learnt.diverging = true;
  view.pictures.push_back(std::move(learnt));
  context.out.arrays[one ? "image" : "images"] = stacked(p.images);
  return view;
}

}  // namespace nestgrad::look
