// Where keys, queries, values and answers lie.
#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows of batch entry 0 and one head.
Rows rows_of(const Array& x, std::int64_t head) {
  const std::int64_t time = x.shape()[2], dim = x.shape()[3];
  return Eigen::Map<const Rows>(x.as<double>().data() + head * time * dim, time, dim);
}

Array to_array(const Rows& rows) {
  Array out(DType::f64, {rows.rows(), rows.cols()});
  Eigen::Map<Rows>(out.as<double>().data(), rows.rows(), rows.cols()) = rows;
  return out;
}

struct Projection {
  KeyStatistics::Plane plane;
  double variance_error = 0;
};

// Two principal components of both together.
Projection project(const Rows& a, const Rows& b) {
  Rows all(a.rows() + b.rows(), a.cols());
  all << a, b;
  const Eigen::RowVectorXd mean = all.colwise().mean();
  all.rowwise() -= mean;
  const Eigen::MatrixXd covariance = all.transpose() * all / static_cast<double>(all.rows());
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance);
  const Eigen::Index dim = covariance.rows(), kept = std::min<Eigen::Index>(2, dim);
  Rows axes = Rows::Zero(dim, 2);
  for (Eigen::Index i = 0; i < kept; ++i) {
    axes.col(i) = solver.eigenvectors().col(dim - 1 - i);
    Eigen::Index largest = 0;  // the sign of an axis is free: its largest entry is positive
    axes.col(i).cwiseAbs().maxCoeff(&largest);
    if (axes(largest, i) < 0) axes.col(i) = -axes.col(i);
  }
  const Rows placed = all * axes;
  const double total = covariance.trace(), shown = placed.squaredNorm() / static_cast<double>(all.rows()),
               expected = solver.eigenvalues().tail(kept).sum();
  Projection out;
  out.plane = {to_array(placed.topRows(a.rows())), to_array(placed.bottomRows(b.rows())),
               total == 0 ? 0 : shown / total};
  out.variance_error = total == 0 ? 0 : std::abs(shown - expected) / total;
  return out;
}

}  // namespace

KeyStatistics key_statistics(const InspectedLoop& inspected) {
  const Array output = OpenProgram(inspected, {}, [](OpenLoop& loop, const std::vector<Tensor>&) {
    return std::vector<Tensor>{loop.run(loop.options).output};
  })()[0];
  KeyStatistics out;
  double variance_error = 0, beyond = 0;
  for (std::int64_t head = 0; head < inspected.heads(); ++head) {
    const Rows k = rows_of(inspected.k, head);
    const double mean_norm = k.rowwise().norm().mean();
    out.shift.push_back(mean_norm == 0 ? 0 : k.colwise().mean().norm() / mean_norm);
    beyond = worse(beyond, out.shift.back() - 1);
    const auto add = [&](std::vector<KeyStatistics::Plane>& planes, const Array& a, const Array& b) {
      if (a.shape()[3] != b.shape()[3]) return;
      const Projection both = project(rows_of(a, head), rows_of(b, head));
      planes.push_back(both.plane);
      variance_error = worse(variance_error, both.variance_error);
    };
    add(out.queries_keys, inspected.q, inspected.k);
    add(out.values_outputs, inspected.v, output);
  }
  out.claims = {{"the shift ratio is at most 1", worse(0.0, beyond), 1e-12},
                {"the plane shows the variance of the two largest eigenvalues", variance_error, 1e-12}};
  return out;
}

ReportView keys_view(ViewContext& context) {
  const InspectedLoop& inspected = context.inspected;
  const KeyStatistics r = key_statistics(inspected);
  ReportView view{
      "keys", "Keys, queries, values, answers", "Do queries ask where keys have been learnt?",
      "Two principal components of queries and keys together, and of values and answers together. A "
      "learner can only answer well where queries lie among the keys it was trained on.\n\n"
      "Shift ratio |mean k| / mean |k|: 0 when keys lie around the origin, 1 when all are the same.",
      r.claims};
  const auto column = [](const Array& plane, std::int64_t which) {
    std::vector<double> out;
    for (std::int64_t i = 0; i < plane.shape()[0]; ++i) out.push_back(plane.at(2 * i + which));
    return out;
  };
  const auto picture = [&](const std::string& title, const KeyStatistics::Plane& plane,
                           const std::string& first, const std::string& second) {
    return Points{.title = fmt::format("{} ({:.0f} % of the variance)", title, 100 * plane.explained),
                  .x_label = "component 1 (no unit)",
                  .y_label = "component 2 (no unit)",
                  .groups = {{first, column(plane.first, 0), column(plane.first, 1)},
                             {second, column(plane.second, 0), column(plane.second, 1)}}};
  };
  for (std::int64_t h = 0; h < context.drawn_heads; ++h) {
    const auto at = static_cast<std::size_t>(h);
    if (!r.queries_keys.empty())
      view.pictures.push_back(picture(head_title("Queries and keys", h, inspected.heads()),
                                      r.queries_keys[at], "queries", "keys"));
    if (!r.values_outputs.empty())
      view.pictures.push_back(picture(head_title("Values and answers", h, inspected.heads()),
                                      r.values_outputs[at], "values", "answers"));
  }
  const auto missing = [&](const auto& planes, const char* what, std::int64_t a, std::int64_t b) {
    if (planes.empty())
      view.preformatted += fmt::format("{} have {} and {} features: there is no plane of both\n", what, a, b);
  };
  missing(r.queries_keys, "queries and keys", inspected.q.shape()[3], inspected.k.shape()[3]);
  missing(r.values_outputs, "values and answers", inspected.v.shape()[3], inspected.cotangent.shape()[3]);
  for (std::size_t h = 0; h < r.shift.size(); ++h)
    view.preformatted += fmt::format("key shift ratio, head {}: {:.3f}\n", h, r.shift[h]);
  context.out.arrays["key_shift_ratio"] = array_of(r.shift);
  return view;
}

}  // namespace nestgrad::look
