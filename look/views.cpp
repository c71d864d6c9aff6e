#include "look/views.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad::look {

// Each view, in the order of the page, and what a progress line calls it.
#define NESTGRAD_VIEWS(VIEW)                     \
  VIEW(patches, "patches", .of_images = true)    \
  VIEW(losses, "inner losses")                   \
  VIEW(by_step, "contributions by step")         \
  VIEW(channels, "channels")                     \
  VIEW(estimators, "estimators")                 \
  VIEW(curvature, "curvature")                   \
  VIEW(attention, "effective attention")         \
  VIEW(implicit_attention, "implicit attention") \
  VIEW(keys, "keys")                             \
  VIEW(one_token, "one token")                   \
  VIEW(graph, "the graph")                       \
  VIEW(memory, "memory")                         \
  VIEW(time, "time")                             \
  VIEW(precision, "precision")

#define NESTGRAD_DECLARE(NAME, WHAT, ...) ReportView NAME##_view(ViewContext& context);
NESTGRAD_VIEWS(NESTGRAD_DECLARE)

std::span<const View> views() {
#define NESTGRAD_ROW(NAME, WHAT, ...) {.what = WHAT, .make = NAME##_view, __VA_ARGS__},
  static constexpr View kViews[] = {NESTGRAD_VIEWS(NESTGRAD_ROW)};
  return kViews;
}

ViewContext::ViewContext(const InspectedLoop& of, const InspectionOptions& with, Inspection& result)
    : inspected(of), options(with), out(result), drawn_heads(std::min<std::int64_t>(4, of.heads())) {}

std::int64_t ViewContext::token() const {
  if (options.token >= 0) return options.token;
  if (!inspected.patches) return inspected.time() / 2;
  const InspectedLoop::Patches& p = *inspected.patches;  // in the middle of the last image
  return inspected.time() - p.rows * p.columns + p.rows / 2 * p.columns + p.columns / 2;
}

const InnerLosses& ViewContext::losses() {
  if (!losses_) losses_ = inner_losses(inspected);
  return *losses_;
}

const ImplicitAttention& ViewContext::implicit() {
  if (!implicit_) implicit_ = implicit_attention(inspected);
  return *implicit_;
}

const Channels& ViewContext::channels() {
  if (!channels_) channels_ = look::channels(inspected);
  return *channels_;
}

const MetaProgram& ViewContext::program() {
  if (!program_) program_ = meta_program(inspected);
  return *program_;
}

const Profile& ViewContext::profile() {
  if (!profile_) profile_ = program().function.plan({.device = Device::cpu()}).profile(program().inputs);
  return *profile_;
}

Series line(std::string name, const std::vector<double>& y) {
  Series out{std::move(name), {}, y};
  for (std::size_t i = 0; i < y.size(); ++i) out.x.push_back(static_cast<double>(i));
  return out;
}

Array array_of(const std::vector<double>& values) {
  return Array::of(values, {static_cast<std::int64_t>(values.size())});
}

Heatmap token_map(std::string title, std::string value_label, const Array& maps, std::int64_t head) {
  Heatmap out{.title = std::move(title),
              .x_label = "token that is learnt from",
              .y_label = "token that is answered",
              .value_label = std::move(value_label)};
  out.rows = maps.shape()[maps.shape().size() - 2];
  out.columns = maps.shape().back();
  const auto size = static_cast<std::size_t>(out.rows * out.columns);
  const auto map = maps.as<double>().subspan(static_cast<std::size_t>(head) * size, size);
  out.values = {map.begin(), map.end()};
  return out;
}

std::string head_title(const std::string& what, std::int64_t head, std::int64_t heads) {
  return heads > 1 ? fmt::format("{}, head {}", what, head) : what;
}

}  // namespace nestgrad::look
