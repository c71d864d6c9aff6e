// An axis with round ticks, linear or logarithmic.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "look/report/drawing.h"

namespace nestgrad::drawing {

// 0.25, 1500, 20k, 3e-5: `scale` decides on k, M and G, so that one axis can keep to one of them.
std::string tick_number(double value, double scale, int digits = 6);

struct Tick {
  double value;
  std::string label;
};

// What it can show, where that falls on the page, and its ticks.
struct Axis {
  bool log;
  int about;                                // how many ticks are wanted
  bool snap;                                // whether the range ends on ticks
  bool whole = false;                       // ticks at whole numbers only
  double low = INFINITY, high = -INFINITY;  // log10 of the values when log
  double start = 0, length = 0;             // on the page
  std::vector<Tick> ticks = {};

  bool shows(double value) const { return drawable(value) && (!log || value > 1e-300); }
  double scaled(double value) const { return log ? std::log10(value) : value; }
  double place(double value) const { return start + (scaled(value) - low) / (high - low) * length; }
  double end() const { return start + length; }
  void include(double value);
  void finish();  // after the last include(): fixes range and ticks

 private:
  void linear_ticks();
  void log_ticks();
};

// The frame of a plot: grid, ticks and labels. y.start is the bottom of the plot.
void draw_axes(Drawing& drawing, const Axis& x, const Axis& y, std::string_view x_label);
void draw_y_axis(Drawing& drawing, double left, double right, const Axis& y);
// Of the widest label of a tick.
double tick_width(const Canvas& canvas, const Axis& axis);

}  // namespace nestgrad::drawing
