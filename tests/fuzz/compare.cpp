#include "tests/fuzz/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "engine/core/random.h"
#include "engine/plan/arena.h"
#include "engine/run/interpreter.h"
#include "tests/temporary_folder.h"

namespace nestgrad::fuzz {

namespace {

bool same_number(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
}

// Same bits, but that a NaN is any NaN.
void require_same(const std::string& what, const Arrays& found, const Arrays& expected) {
  for (std::size_t k = 0; k < expected.size(); ++k) {
    if (found[k].same_bits(expected[k])) continue;
    if (found[k].spec() != expected[k].spec())
      throw Finding(fmt::format("{}: output {} is {}, not {}", what, k, to_string(found[k].spec()),
                                to_string(expected[k].spec())));
    for (std::int64_t i = 0; i < expected[k].size(); ++i)
      if (!same_number(found[k].at(i), expected[k].at(i)))
        throw Finding(fmt::format("{}: output {}, element {} is {}, not {}: off by {:.3g}", what, k, i,
                                  found[k].at(i), expected[k].at(i), found[k].at(i) - expected[k].at(i)));
  }
}

// The largest difference, in terms of the largest number or 1; infinite where only one is NaN or infinite.
double difference(const Array& a, const Array& b) {
  double worst = 0, scale = 1;
  for (std::int64_t i = 0; i < b.size(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isfinite(y)) scale = std::max(scale, std::abs(y));
    if (std::isfinite(x) && std::isfinite(y)) worst = std::max(worst, std::abs(x - y));
    else if (!(std::isnan(x) && std::isnan(y)) && x != y) return std::numeric_limits<double>::infinity();
  }
  return worst / scale;
}

// Each number moved by a few units in the last place.
Arrays moved(const Arrays& in, bool narrow, std::uint64_t seed) {
  Arrays out;
  for (const Array& a : in) {
    out.push_back(a.clone());
    if (!is_float(a.dtype())) continue;
    const double size = narrow ? 1e-6 : 1e-14;
    const Array by = random_uniform({DType::f64, a.shape()}, -size, size, seed, out.size());
    dispatch(a.dtype(), [&]<class T>(T) {
      for (std::int64_t i = 0; i < a.size(); ++i)
        out.back().as<T>()[static_cast<std::size_t>(i)] += static_cast<T>(by.at(i));
    });
  }
  return out;
}

// Equal to rounding, as far as the program allows: it may blow up a rounding error, and where it compares
// numbers one of them may decide. So small changes of the inputs tell how far apart outputs may be.
void require_close(const Subject& s, const Arrays& in, const std::string& what, const Arrays& found,
                   const Arrays& expected) {
  const double tolerance = s.narrow ? 1e-4 : 1e-11;
  std::optional<std::vector<Arrays>> nearby;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const double off = difference(found[k], expected[k]);
    if (off <= tolerance) continue;
    if (first_nonfinite(s.f, in)) return;  // where zeros of another sign were divided by
    if (!nearby) {
      nearby.emplace();
      for (std::uint64_t seed = 0; seed < 4; ++seed)
        nearby->push_back(interpret(s.f, moved(in, s.narrow, seed)));
    }
    double allowed = tolerance;
    for (const Arrays& other : *nearby) allowed = std::max(allowed, 1000 * difference(other[k], expected[k]));
    if (off > allowed)
      throw Finding(fmt::format("{}: output {} differs by {:.3g}; small changes of the inputs by {:.3g}",
                                what, k, off, allowed / 1000));
  }
}

std::string named(const PlanOptions& o) {
  return fmt::format(
      "plan: simplify {}, reuse {}, fuse {}, rematerialize {} above {}, slice {}, checkpoint_every {}, "
      "memory_budget {}, workers {}, device {}",
      o.simplify, o.reuse, o.fuse, o.rematerialize, o.recompute_above, o.slice,
      o.checkpoint_every.value_or(-1), o.memory_budget, o.workers, o.device.name());
}

// What goes wrong in making or running the plan is said with its options.
Arrays run_plan(const Subject& s, const PlanOptions& o, const std::function<Arrays(Plan&)>& run) {
  try {
    Plan plan = s.f.plan(o);
    return run(plan);
  } catch (const Error& e) {
    throw Finding(fmt::format("{}: {}", named(o), e.what()));
  }
}

PlanOptions some_options(Draws& draws) {
  PlanOptions o{.simplify = !draws.one_in(2),
                .reuse = !draws.one_in(2),
                .fuse = !draws.one_in(2),
                .rematerialize = !draws.one_in(2),
                .recompute_above = draws.one_in(2) ? 0 : PlanOptions().recompute_above,
                .slice = !draws.one_in(2),
                .device = Device::cpu(),
                .workers = draws.below(4)};
  if (const int every = draws.below(5); every > 0) o.checkpoint_every = every - 1;
  return o;
}

// The same numbers as these options have, in the plainest way.
PlanOptions plain(const PlanOptions& o) {
  return {.simplify = o.simplify,
          .reuse = false,
          .fuse = false,
          .rematerialize = false,
          .slice = o.slice,
          .checkpoint_every = 0,
          .device = o.device,
          .workers = 1};
}

void check_arena(const Plan& plan) {
  const std::vector<BufferInfo> buffers = plan.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    for (std::size_t j = i + 1; j < buffers.size(); ++j) {
      const BufferInfo &a = buffers[i], &b = buffers[j];
      const bool together = a.first <= b.last && b.first <= a.last;
      if (together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
        throw Finding(fmt::format("buffers {} and {} of a plan overlap while both live", i, j));
    }
  for (const BufferInfo& b : buffers)
    if (b.offset + b.bytes > plan.stats().arena_bytes || b.offset % kArenaAlignment != 0)
      throw Finding(fmt::format("a buffer at {} of {} bytes does not fit into the arena", b.offset, b.bytes));
}

// An output by itself: what only the others need is dead.
void check_output_alone(const Subject& s, const Arrays& in, const Arrays& expected, Draws& draws) {
  const auto k = static_cast<std::size_t>(draws.below(static_cast<int>(expected.size())));
  const Function alone =
      trace([&](const Tensors& x) { return Tensors{s.f(std::span<const Tensor>(x))[k]}; }, s.specs);
  Arrays found = expected;
  found[k] = alone.plan(some_options(draws)).run(in)[0];
  require_close(s, in, fmt::format("output {} alone", k), found, expected);
}

// Into outputs that are there already.
Arrays run_into(Plan& plan, const Arrays& in) {
  Arrays out;
  for (const Spec& spec : plan.output_specs()) out.push_back(Array::full(spec.dtype, spec.shape, 77));
  plan.run(std::span<const Array>(in), std::span(out));
  return out;
}

// Outputs written over inputs of their spec: the same numbers, all other inputs untouched.
void check_donated(const Subject& s, const Arrays& in, PlanOptions o, const Arrays& expected, Draws& draws) {
  std::vector<char> is_donated(in.size(), 0);
  std::string text;
  for (std::size_t k = 0; k < expected.size(); ++k)
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (is_donated[i] || in[i].spec() != expected[k].spec() || draws.one_in(3)) continue;
      is_donated[i] = 1;
      o.donate.push_back({.output = k, .input = i});
      text += fmt::format(", output {} over input {}", k, i);
      break;
    }
  if (o.donate.empty()) return;
  Arrays given;
  for (const Array& a : in) given.push_back(a.clone());
  require_same(named(o) + text, run_plan(s, o, [&](Plan& plan) { return plan.run(given); }), expected);
  for (std::size_t i = 0; i < in.size(); ++i)
    if (!is_donated[i] && !given[i].same_bits(in[i]))
      throw Finding(fmt::format("{}{}: input {} was written over", named(o), text, i));
}

}  // namespace

Arrays run_eagerly(const TraceFn& fn, const Arrays& in) {
  Graph eager(GraphMode::eager);
  const GraphScope scope(eager);
  Tensors inputs;
  for (const Array& a : in) inputs.push_back(eager.input(a));
  Arrays out;
  for (const Tensor& t : fn(inputs)) out.push_back(eager.node(t.id()).value);
  return out;
}

Arrays numbers_for(const std::vector<Spec>& specs, std::uint64_t seed, bool tied) {
  Arrays out;
  for (const Spec& spec : specs) {
    Array a = random_uniform({DType::f64, spec.shape}, -1, 1, seed, out.size());
    for (double& x : a.as<double>())
      if (spec.dtype == DType::i32) x = std::floor(3.5 * x);
      else if (tied) x = std::floor(1.5 * x + 0.5);
    out.push_back(a.cast(spec.dtype));
  }
  return out;
}

void check_texts(const Subject& s) {
  const std::string text = s.f.str();
  if (trace(s.fn, s.specs).str() != text) throw Finding("traced again, the program prints another text");
  if (s.f.dot().empty()) throw Finding("the graph has no picture");
  const Outline drawn = outline(s.f);
  std::size_t nodes = 0;
  for (const Outline::Group& g : drawn.groups) nodes += g.nodes.size();
  if (nodes != drawn.nodes || nodes != s.f.live_nodes())
    throw Finding(fmt::format("the outline has {} nodes, and says {}; {} are live", nodes, drawn.nodes,
                              s.f.live_nodes()));
  // What is said about a derivative agrees with grad.
  trace(
      [&](const Tensors& in) {
        const Tensors out = s.fn(in);
        const Tensor y = out[out.size() - s.orders];
        for (const Tensor& x : in) {
          if (!is_float(x.dtype())) continue;
          const Disconnection said = why_disconnected(y, x);
          if (said.str().empty()) throw Finding("why_disconnected says nothing");
          bool has_derivative = true;
          try {
            grad(y, {x});
          } catch (const GradError&) {
            has_derivative = false;
          }
          if (said.connected != has_derivative)
            throw Finding(
                fmt::format("grad {}, but: {}", has_derivative ? "passes" : "does not", said.str()));
        }
        return out;
      },
      s.specs);
}

void check_plans(const Subject& s, const Arrays& in, Draws& draws) {
  const Arrays expected = interpret(s.f, in);
  const Arrays eagerly = run_eagerly(s.fn, in);
  if (s.has_bodies) require_close(s, in, "an eager graph", eagerly, expected);
  else require_same("an eager graph", eagerly, expected);
  const Function inlined = trace([&](const Tensors& x) { return s.f(std::span<const Tensor>(x)); }, s.specs);
  require_same("inlined into another function", interpret(inlined, in), expected);
  check_output_alone(s, in, expected, draws);
  std::map<std::pair<bool, bool>, Arrays> known;
  do {
    PlanOptions o = some_options(draws);
    const PlanOptions base = plain(o);
    Arrays& plainly = known[{base.simplify, base.slice}];
    if (plainly.empty()) {
      plainly = run_plan(s, base, [&](Plan& plan) { return plan.run(in); });
      if (base.simplify || base.slice) require_close(s, in, named(base), plainly, expected);
      else require_same(named(base), plainly, expected);
    }
    std::size_t arena = 0;
    const Arrays found = run_plan(s, o, [&](Plan& plan) {
      check_arena(plan);
      arena = plan.stats().arena_bytes;
      return run_into(plan, in);
    });
    require_same(named(o), found, plainly);
    if (draws.one_in(2)) check_donated(s, in, o, plainly, draws);
    if (draws.one_in(3)) {
      o.memory_budget = 1 + arena * static_cast<std::size_t>(draws.between(1, 10)) / 10;
      try {
        require_same(named(o), s.f.plan(o).run(in), plainly);
      } catch (const ConfigError&) {  // too small
      }
    }
  } while (known.size() < 6 && draws.below(3) > 0);
}

void check_replays(const Subject& s, const Arrays& in, Draws& draws) {
  Plan plan = s.f.plan(some_options(draws));
  const Arrays once = plan.run(in);
  Arrays poison;
  for (const Spec& spec : s.specs)
    poison.push_back(is_float(spec.dtype) ? Array::full(spec.dtype, spec.shape, std::nan(""))
                                          : Array::zeros(spec.dtype, spec.shape));
  plan.run(poison);
  require_same("a plan run again after NaN", plan.run(in), once);
  plan.run(numbers_for(s.specs, 4711));
  require_same("a plan run again after other inputs", run_into(plan, in), once);
  if (draws.one_in(4)) {
    const Profile profile = plan.profile(in);
    require_same("a profile's outputs", profile.outputs, once);
    if (!profile.peaks_agree() && !s.has_empty)  // what is empty need not be written
      throw Finding(fmt::format("the arena's peak is {} bytes, {} were predicted:\n{}", profile.measured_peak,
                                profile.predicted_peak, plan.str()));
    if (chrome_trace(profile).empty()) throw Finding("a profile has no trace");
  }
  if (draws.one_in(4)) {
    const Arrays expected = s.f(in);
    Arrays other;
    {
      const Function copy = s.f;
      const std::jthread beside([&] { other = copy(in); });
      require_same("a function called from two threads", s.f(in), expected);
    }
    require_same("a copy of a function on another thread", other, expected);
  }
}

void check_nonfinite(const Subject& s, const Arrays& in) {
  const std::optional<NonFinite> found = first_nonfinite(s.f, in);
  if (found) {
    const testing::TemporaryFolder folder;
    const std::string path = folder / "found.safetensors";
    save_reproducer(*found, path);
    const bool whole = found->op == "custom_vjp" || replay_reproducer(path).same_bits();
    if (!whole)
      throw Finding(fmt::format("the file of an op alone does not make it again: {}", found->str()));
    return;
  }
  for (const Array& a : interpret(s.f, in))
    if (first_not_finite(a) >= 0) throw Finding("an output is not finite, and nothing was found on the way");
}

void check_cuda(const Subject& s, const Arrays& in, Draws& draws) {
  PlanOptions o = some_options(draws);
  o.device = Device::cuda();
  const Arrays found = s.f.plan(o).run(in);
  require_close(s, in, named(o), found, interpret(s.f, in));
  PlanOptions other = o;
  other.checkpoint_every = draws.below(4);
  require_same(named(other), s.f.plan(other).run(in), found);
}

}  // namespace nestgrad::fuzz
