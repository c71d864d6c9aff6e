// The outer gradient in f32 beside f64.
#include <fmt/format.h>

#include <cmath>

#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Arrays = std::vector<Array>;

}  // namespace

PrecisionProbe compare_precision(const std::vector<std::string>& names, const std::vector<Array>& low,
                                 const std::vector<Array>& high) {
  if (names.size() != low.size() || names.size() != high.size())
    throw ShapeError(fmt::format("[precision] {} names, {} tensors in f32, {} in f64", names.size(),
                                 low.size(), high.size()));
  PrecisionProbe out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (low[i].shape() != high[i].shape())
      throw ShapeError(fmt::format("[precision] '{}' is {} in f32 and {} in f64", names[i],
                                   to_string(low[i].spec()), to_string(high[i].spec())));
    const Arrays a{low[i]}, b{high[i]};
    const bool zero = norm(a) == 0 && norm(b) == 0;
    out.entries.push_back({names[i], norm(b), zero ? 1 : cosine(a, b),
                           zero ? 0 : relative_error(low[i].cast(DType::f64), high[i])});
    // A cosine that does not exist is worse than any that does.
    const auto rank = [](const PrecisionProbe::Entry& e) { return std::isnan(e.cosine) ? -2 : e.cosine; };
    if (rank(out.entries[i]) < rank(out.entries[out.worst])) out.worst = i;
  }
  out.cosine = cosine(low, high);
  return out;
}

PrecisionProbe precision(const InspectedLoop& inspected) {
  const MetaProgram low = meta_program(inspected, DType::f32), high = meta_program(inspected);
  const Arrays a = low.function(low.inputs), b = high.function(high.inputs);
  const auto gradients = [](const auto& all) {
    return std::vector(all.begin() + 1, all.end());  // without the loss
  };
  return compare_precision(gradients(high.outputs), gradients(a), gradients(b));
}

std::string PrecisionProbe::str() const {
  if (entries.empty()) return "no tensors\n";
  std::string out = fmt::format("gradient in f32 against f64: 1 - cosine {:.2e}; worst {}\n", 1 - cosine,
                                entries[worst].name);
  for (const Entry& e : entries)
    out += fmt::format("  {:<32} 1 - cosine {:>9.2e}  largest error {:>9.2e}  norm {:.3g}\n", e.name,
                       1 - e.cosine, e.error, e.norm);
  return out;
}

ReportView view_of(const PrecisionProbe& r) {
  ReportView view{"precision", "Precision", "Is f32 enough for this gradient?",
                  "The same outer gradient in f32 and in f64. 1 - cosine says how far the direction is off; "
                  "the worst tensor is the first suspect when training in f32 goes wrong."};
  Table table{.title = "f32 against f64",
              .columns = {"tensor", "norm, f64", "1 - cosine", "largest relative error"}};
  for (const auto& e : r.entries)
    table.rows.push_back(
        {e.name, format_number(e.norm), format_number(1 - e.cosine), format_number(e.error)});
  view.pictures = {table};
  if (!r.entries.empty())
    view.preformatted = fmt::format("all tensors as one vector: 1 - cosine = {:.2e}; worst: {}\n",
                                    1 - r.cosine, r.entries[r.worst].name);
  return view;
}

ReportView precision_view(ViewContext& context) {
  return view_of(context.options.precision ? context.options.precision() : precision(context.inspected));
}

}  // namespace nestgrad::look
