#include "look/report/axis.h"

namespace nestgrad::drawing {

namespace {

constexpr double kLeastRange = 1e-290,
                 kLeastLogarithm = -290;  // far above the numbers that lose digits, below 1e-307

}  // namespace

std::string tick_number(double value, double scale, int digits) {
  if (value != 0 && (std::abs(value) < 1e-4 || scale >= 1e12)) {
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    return fmt::format("{:.4g}e{}", value / std::pow(10.0, exponent), exponent);
  }
  if (scale >= 1e9) return fmt::format("{:.{}g}G", value / 1e9, digits);
  if (scale >= 1e6) return fmt::format("{:.{}g}M", value / 1e6, digits);
  if (scale >= 1e4) return fmt::format("{:.{}g}k", value / 1e3, digits);
  return fmt::format("{:.{}g}", value, digits);
}

void Axis::include(double value) {
  low = std::min(low, scaled(value));
  high = std::max(high, scaled(value));
}

void Axis::finish() {
  if (low > high) low = 0, high = 1;
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high)) || high == low) {
    const double pad = log ? 0.5 : low == 0 ? 1 : std::abs(low) / 2;
    low -= pad, high += pad;
  }
  // Between such neighbours no step is a number of its own: they are drawn as the same one.
  if (!log && high - low < kLeastRange) low -= 1, high += 1;
  if (!log) return linear_ticks();
  if (high - low >= 0.7 || low < kLeastLogarithm) return log_ticks();
  // Less than 1 to 5: round linear ticks, at their logarithmic places.
  if (snap) low -= 0.03, high += 0.03;
  Axis values{
      .log = false, .about = about, .snap = false, .low = std::pow(10, low), .high = std::pow(10, high)};
  values.linear_ticks();
  ticks = std::move(values.ticks);
}

void Axis::linear_ticks() {
  const double rough = (high - low) / about, power = std::pow(10, std::floor(std::log10(rough)));
  const double m = rough / power;
  const double nice = power * (m <= 1                              ? 1
                               : m <= 2                            ? 2
                               : m <= 2.5 && !(whole && power < 2) ? 2.5
                               : m <= 5                            ? 5
                                                                   : 10);
  const double step = whole ? std::max(nice, 1.0) : nice;
  const double first = snap ? std::floor(low / step + 1e-6) : std::ceil(low / step - 1e-6);
  const double last = snap ? std::ceil(high / step - 1e-6) : std::floor(high / step + 1e-6);
  if (snap) low = first * step, high = last * step;
  const double scale = std::max(std::abs(low), std::abs(high));
  const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(scale / step))) + 2, 6, 15);
  for (double i = first; i <= last; ++i) {
    const double value = i == 0 ? 0 : i * step;  // never -0
    ticks.push_back({value, value == 0 ? "0" : tick_number(value, scale, digits)});
  }
}

// Powers of ten; every second, third ... when there are many, with 2 and 5 between them when there are few.
void Axis::log_ticks() {
  const bool few = high - low < 2.5;
  const double stride = std::max(1.0, std::ceil((high - low) / about));
  for (double power = std::floor(low); power <= std::ceil(high); power += stride)
    for (double mantissa : {1.0, 2.0, 5.0})
      if (const double value = mantissa * std::pow(10, power); mantissa == 1 || few)
        ticks.push_back({value, tick_number(value, value)});
  const auto below = [&](const Tick& tick) { return scaled(tick.value) < low - 1e-6; };
  const auto above = [&](const Tick& tick) { return scaled(tick.value) > high + 1e-6; };
  if (snap) {  // reach out to the nearest tick beyond either end
    while (ticks.size() > 1 && below(ticks[1])) ticks.erase(ticks.begin());
    while (ticks.size() > 1 && above(ticks[ticks.size() - 2])) ticks.pop_back();
    const double first = ticks.front().value, last = ticks.back().value;
    include(first);
    include(last);
  }
  std::erase_if(ticks, [&](const Tick& tick) { return below(tick) || above(tick); });
}

void draw_y_axis(Drawing& drawing, double left, double right, const Axis& y) {
  for (const Tick& tick : y.ticks) {
    const double at = y.place(tick.value);
    drawing.line("grid", left, at, right, at);
    drawing.text("tick", "end", left - 8, at + 4.5, tick.label);
  }
}

void draw_axes(Drawing& drawing, const Axis& x, const Axis& y, std::string_view x_label) {
  draw_y_axis(drawing, x.start, x.end(), y);
  for (const Tick& tick : x.ticks) {
    const double at = x.place(tick.value);
    drawing.line("axis", at, y.start, at, y.start + 5);
    drawing.text("tick", "middle", at, y.start + 20, tick.label);
  }
  drawing.line("axis", x.start, y.start, x.end(), y.start);
  drawing.text("label", "middle", x.start + x.length / 2, y.start + 42, x_label);
}

double tick_width(const Canvas& canvas, const Axis& axis) {
  double widest = 0;
  for (const Tick& tick : axis.ticks) widest = std::max(widest, text_width(canvas, tick.label));
  return widest;
}

}  // namespace nestgrad::drawing
