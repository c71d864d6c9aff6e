#include "ttt/agreement.h"

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "ops/accumulate.h"
#include "ttt/claim.h"

namespace nestgrad::ttt {

double worst_error(const Arrays& a, const Arrays& b) {
  constexpr double kRounding = 1e-6;
  double worst = a.size() == b.size() ? 0 : HUGE_VAL, largest = 1e-300;
  for (const Array& each : b)
    for (double x : each.as<double>()) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = worse(worst, relative_error(a[i], b[i], kRounding * largest));
  return worst;
}

double worst_difference_of_bits(const Arrays& a, const Arrays& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = a[i].same_bits(b[i]);
  return same ? 0 : 1;
}

Tensor outer_loss(const std::vector<Tensor>& values) {
  Tensor total;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Tensor weights = constant(random_normal(values[i].spec(), 0, 1, 77, i));
    const Tensor part = sum(values[i] * (0.5 * values[i] + weights));
    accumulate(total, part);
  }
  return total;
}

std::vector<Tensor> results_of(const InnerLoopResult& r) {
  std::vector<Tensor> out{r.output};
  for (const Tensor& w : r.last().values()) out.push_back(w);
  return out;
}

}  // namespace nestgrad::ttt
