#include "models/vision/noise_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/ops.h"

namespace nestgrad::vision {

NoiseSchedule NoiseSchedule::linear(std::int64_t levels) {
  constexpr std::int64_t kTooFew = 20;  // the last beta would be 1
  constexpr std::int64_t kTooMany = 1'000'000;
  if (levels <= kTooFew)
    throw ConfigError(
        fmt::format("[noise] a linear schedule needs more than {} levels, not {}", kTooFew, levels));
  if (levels > kTooMany)
    throw ConfigError(
        fmt::format("[noise] a linear schedule has at most {} levels, not {}", kTooMany, levels));
  const double scale = 1000.0 / static_cast<double>(levels), first = 1e-4 * scale, last = 0.02 * scale;
  std::vector<double> kept;
  double product = 1;
  for (std::int64_t t = 0; t < levels; ++t) {
    const double place = static_cast<double>(t) / static_cast<double>(levels - 1);
    product *= 1 - (first + (last - first) * place);
    kept.push_back(product);
  }
  return NoiseSchedule(std::move(kept));
}

NoiseSchedule::NoiseSchedule(std::vector<double> kept) : kept_(std::move(kept)) {
  double before = 1;
  for (const double k : kept_) {
    if (!(k > 0 && k < before))
      throw ConfigError(
          fmt::format("[noise] what is kept of an image must fall from level to level and stay "
                      "between 0 and 1; {} follows {}",
                      k, before));
    before = k;
  }
  if (kept_.empty()) throw ConfigError("[noise] a schedule needs a level");
}

double NoiseSchedule::kept(std::int64_t level) const {
  if (level < 0 || level >= levels())
    throw ValueError(fmt::format("[noise] there is no level {}, there are {}", level, levels()));
  return kept_[static_cast<std::size_t>(level)];
}

Tensor NoiseSchedule::noisy(Tensor images, Tensor noise, Tensor levels) const {
  if (levels.dtype() != DType::i32 || levels.shape() != Shape{images.dim(0)} || noise.spec() != images.spec())
    throw ShapeError(fmt::format(
        "[noise] images are {}, noise {}, levels {}; noise must be like images, levels i32[{}]",
        to_string(images.spec()), to_string(noise.spec()), to_string(levels.spec()), images.dim(0)));
  Shape spread(static_cast<std::size_t>(images.rank()), 1);
  spread[0] = images.dim(0);
  const auto of_level = [&](double (*fn)(double kept)) {
    std::vector<double> table;
    for (const double k : kept_) table.push_back(fn(k));
    return reshape(gather(constant(Array::of(table, {this->levels()}, images.dtype())), levels), spread);
  };
  return images * of_level([](double k) { return std::sqrt(k); }) +
         noise * of_level([](double k) { return std::sqrt(1 - k); });
}

std::vector<std::int64_t> NoiseSchedule::spaced(std::int64_t steps) const {
  if (steps < 1 || steps > levels())
    throw ConfigError(
        fmt::format("[noise] {} steps of sampling; there are {} levels, and one is needed", steps, levels()));
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < steps; ++i)
    out.push_back(steps == 1 ? levels() - 1 : (levels() - 1) * (steps - 1 - i) / (steps - 1));
  return out;
}

namespace {

// What all images of a batch are told alike.
Array repeated(std::int32_t value, std::int64_t batch) { return Array::full(DType::i32, {batch}, value); }

Array checked(Array eps, const Array& x) {
  if (eps.spec() != x.spec())
    throw ShapeError(fmt::format("[sampling] eps is {}, it must be like the images, {}",
                                 to_string(eps.spec()), to_string(x.spec())));
  return eps;
}

Array guided_eps(const EpsFunction& eps, const Array& x, std::int64_t level, const Array& labels,
                 const SamplingOptions& o) {
  const std::int64_t batch = x.shape()[0];
  const Array levels = repeated(static_cast<std::int32_t>(level), batch);
  Array out = checked(eps(x, levels, labels), x);
  if (o.guidance == 1) return out;
  const Array without = checked(eps(x, levels, repeated(o.no_label, batch)), x);
  out = std::move(out).unshared();
  dispatch(x.dtype(), [&]<class T>(T) {
    const auto of_none = without.as<T>();
    auto e = out.as<T>();
    for (std::size_t i = 0; i < e.size(); ++i)
      e[i] = static_cast<T>(of_none[i] + o.guidance * (static_cast<double>(e[i]) - of_none[i]));
  });
  return out;
}

}  // namespace

Array sample_ddim(const EpsFunction& eps, const NoiseSchedule& schedule, const Array& noise,
                  const Array& labels, const SamplingOptions& o) {
  if (!is_float(noise.dtype()) || noise.shape().empty())
    throw ShapeError(
        fmt::format("[sampling] noise is {}, it must be f32 or f64 [batch, ..]", to_string(noise.spec())));
  if (labels.spec() != Spec{DType::i32, {noise.shape()[0]}})
    throw ShapeError(fmt::format("[sampling] labels are {}, they must be i32[{}]", to_string(labels.spec()),
                                 noise.shape()[0]));
  if (o.guidance != 1 && o.no_label < 0)
    throw ConfigError("[sampling] guidance needs the label that stands for none; give no_label");
  require_function("sampling", "what predicts the noise", eps);
  if (!(o.clip >= 0))
    throw ConfigError(fmt::format("[sampling] clip must be positive, or 0 for none; it is {}", o.clip));
  Array x = noise.clone();
  const std::vector<std::int64_t> levels = schedule.spaced(o.steps);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Array e = guided_eps(eps, x, levels[i], labels, o);
    const double now = schedule.kept(levels[i]),
                 next = i + 1 < levels.size() ? schedule.kept(levels[i + 1]) : 1;
    const double signal = std::sqrt(now), spread = std::sqrt(1 - now);
    dispatch(x.dtype(), [&]<class T>(T) {
      auto at = x.as<T>();
      const auto predicted = e.as<T>();
      for (std::size_t j = 0; j < at.size(); ++j) {
        double image = (at[j] - spread * predicted[j]) / signal, left = predicted[j];
        if (o.clip > 0 && std::fabs(image) > o.clip) {  // the noise that fits the image that is held
          image = std::clamp(image, -o.clip, o.clip);
          left = (at[j] - signal * image) / spread;
        }
        at[j] = static_cast<T>(std::sqrt(next) * image + std::sqrt(1 - next) * left);
      }
    });
  }
  return x;
}

}  // namespace nestgrad::vision
