#include "ttt/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "autograd/grad.h"
#include "engine/core/index.h"
#include "engine/core/random.h"
#include "ttt/agreement.h"
#include "ttt/explain.h"

namespace nestgrad::ttt {

namespace {

Array scaled_by(double factor, const Array& a) {
  Array out = a.clone();
  for (double& x : out.as<double>()) x *= factor;
  return out;
}

// The part of an array (f64) that begins at `begin` and has this shape.
Array part_of(const Array& whole, const Shape& begin, const Shape& shape) {
  Array out(whole.spec().dtype, shape);
  const auto from = whole.as<double>();
  const auto to = out.as<double>();
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::size_t left = i, at = 0, stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; stride *= uz(whole.shape()[axis])) {
      at += (left % uz(shape[axis]) + uz(begin[axis])) * stride;
      left /= uz(shape[axis]);
    }
    to[i] = from[at];
  }
  return out;
}

bool finite(const Arrays& arrays) {
  return std::ranges::all_of(arrays, [](const Array& a) { return first_not_finite(a) < 0; });
}

constexpr std::string_view kDiverges =
    "the learner diverges or its numbers overflow; make its steps smaller (a rate, InnerOptimizer::scale or clip)";

class ConformanceChecks {
 public:
  ConformanceChecks(const System& system, const ProgramSizes& sizes, std::uint64_t seed)
      : system_(system), sizes_(sizes), seed_(seed) {}

  ConformanceReport run() {
    find_forms();
    forms();
    differences();
    contributions();
    online();
    resume();
    documents();
    decode();
    independence();
    alone();
    causality();
    checkpoints();
    threads();
    zeros();
    return std::move(report_);
  }

 private:
  // The valid forms, the chosen one first.
  void find_forms() {
    program([&](const SystemProgram& p) {
      if (const std::vector<std::string> unread = unread_gates(p); !unread.empty())
        throw ConfigError(fmt::format(
            "[conformance] {}: nothing reads the gate '{}': a learner's rate is called 'rate' or 'rate.<weight>', and other "
            "gates as its optimiser names them; rename it or leave it out",
            system_.name, unread[0]));
      policy_ = p.policy;
      not_causal_ = why_not_causal(*p.learner, p.policy, p.start, p.views.q.spec());
      const Trained trained = restrict_to(*p.learner, State::start(*p.learner, p.start), p.policy.trained);
      const DerivedLearner learner(*trained.learner, p.policy, trained.start, p.views);
      stops_gradients_ = learner.optimizer().stops_gradients();
      members_meet_ = learner.why_not(Property::separate_members);
      for (const FormRow& row : form_rows())
        if (row.update == p.policy.update && why_impossible(row, learner).empty()) valid_.push_back(row.form);
      std::ranges::sort(valid_);
      const FormChoice chosen = choose_form(learner, FormChoice::automatic).form;
      std::stable_partition(valid_.begin(), valid_.end(), [&](FormChoice form) { return form == chosen; });
      return std::vector<Tensor>{p.views.k};
    });
  }

  InnerLoopOptions options(const SystemProgram& p, FormChoice form) const {
    return {.policy = p.policy, .form = form, .block = std::max<std::int64_t>(1, 3 * sizes_.chunk / 2)};
  }
  InnerLoopResult learnt(const SystemProgram& p, FormChoice form = FormChoice::automatic) const {
    return train_along(*p.learner, p.start, p.views, options(p, form));
  }
  using Fn = std::function<std::vector<Tensor>(const SystemProgram&)>;
  Function program(const Fn& fn) const { return trace_system(system_, sizes_, DType::f64, fn); }

  // Values, gradients of the outer loss, gradients of |gradient|^2, up to the order.
  Function derivatives(FormChoice form, int order) const {
    return program([&](const SystemProgram& p) {
      std::vector<Tensor> out = results_of(learnt(p, form));
      Tensor y = outer_loss(out);
      for (int n = 1; n <= order; ++n) {
        const std::vector<Tensor> g = grad(y, p.inputs, {.allow_zero = true});
        out.insert(out.end(), g.begin(), g.end());
        y = sum(square(g[0]));
        for (std::size_t i = 1; i < g.size(); ++i) y = y + sum(square(g[i]));
      }
      return out;
    });
  }

  Arrays run_program(const Function& f) const { return f(numbers_for(f, seed_)); }

  void add(std::string name, double error, double tolerance, std::string note = "") {
    report_.checks.push_back({std::move(name), error, tolerance, "relative", std::move(note)});
  }
  // fn gives the same values in two ways, those of the one way before those of the other.
  void compare(std::string name, double tolerance, std::string note, const Fn& fn) {
    const Arrays both = run_program(program(fn));
    const auto half = both.begin() + static_cast<std::ptrdiff_t>(both.size() / 2);
    const Arrays one(both.begin(), half), other(half, both.end());
    if (!finite(one) && !finite(other))
      note = fmt::format("the numbers are finite in neither way: {}", kDiverges);
    add(std::move(name), worst_error(other, one), tolerance, std::move(note));
  }
  void skip(std::string name, std::string why) {
    report_.checks.push_back({std::move(name), 0, 0, "relative", std::move(why), false});
  }

  // Of the reference itself, so that it says nothing about the forms; empty: its numbers are finite.
  std::string why_not_finite() const {
    static constexpr const char* kWhat[] = {"values", "gradients", "gradients of |gradient|^2"};
    for (const int order : {0, 1, 2})
      if (!finite(run_program(derivatives(FormChoice::primal, order))))
        return fmt::format("the primal form's own {} are not finite, so there is nothing to compare with: {}",
                           kWhat[order], kDiverges);
    return {};
  }

  void forms() {
    std::string names;
    for (FormChoice form : valid_) names += fmt::format("{}{}", names.empty() ? "" : ", ", ttt::name(form));
    const Arrays first = run_program(derivatives(valid_[0], 2));
    double worst = 0;
    for (std::size_t i = 1; i < valid_.size(); ++i)
      worst = worse(worst, worst_error(run_program(derivatives(valid_[i], 2)), first));
    if (const std::string why = finite(first) && std::isfinite(worst) ? "" : why_not_finite(); !why.empty())
      add("forms", HUGE_VAL, 1e-9, why);
    else if (valid_.size() == 1) skip("forms", fmt::format("only {} is valid", names));
    else add("forms", worst, 1e-9, names);
  }

  void differences() {
    if (stops_gradients_ || policy_.meta != Policy::Meta::full) {
      for (const char* name : {"differences", "taylor"})
        skip(name, "the learner cuts its own gradient on purpose");
      return;
    }
    const Function f = program([&](const SystemProgram& p) {
      const Tensor y = outer_loss(results_of(learnt(p)));
      std::vector<Tensor> out{y};
      for (const Tensor& g : grad(y, p.inputs, {.allow_zero = true})) out.push_back(g);
      return out;
    });
    const Arrays at = numbers_for(f, seed_), here = f(at);
    Arrays direction;
    double slope = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      direction.push_back(random_normal(at[i].spec(), 0, 1, seed_ + 1, 100 + i));
      const auto d = direction.back().as<double>();
      const auto g = here[i + 1].as<double>();
      for (std::size_t k = 0; k < d.size(); ++k) slope += d[k] * g[k];
    }
    const double y = here[0].as<double>()[0];
    const auto value = [&](double h) {
      Arrays moved;
      for (std::size_t i = 0; i < at.size(); ++i) {
        Array x = at[i].clone();
        const auto values = x.as<double>();
        const auto d = direction[i].as<double>();
        for (std::size_t k = 0; k < d.size(); ++k) values[k] += h * d[k];
        moved.push_back(std::move(x));
      }
      return f(moved)[0].as<double>()[0];
    };
    // Two step sizes, extrapolated (errors of order h^4), where truncation and rounding are least.
    const auto central = [&](double h) { return (value(h) - value(-h)) / (2 * h); };
    double best = HUGE_VAL;
    for (double h : {4e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6})
      best = std::min(best, std::abs((4 * central(h / 2) - central(h)) / 3 - slope));
    add("differences", best / std::max(1e-3, std::abs(slope)), 1e-6);
    const auto left = [&](double step) { return std::abs(value(step) - y - step * slope); };
    // The largest: small steps see rounding. It may be more than 2, where the third order is larger than the second; of a
    // wrong slope it is 1.
    double rate = -HUGE_VAL;
    for (double step : {3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6}) {
      const double found = std::log2(left(2 * step) / left(step));
      if (std::isfinite(found)) rate = std::max(rate, found);
    }
    add("taylor", std::max(0.0, 2 - rate), 0.1, fmt::format("rate {:.3f}", rate));
  }

  void contributions() {
    const bool per_chunk = policy_.update == Policy::Update::per_chunk;
    if (per_chunk && policy_.steps > 1)
      return skip("contributions", "several steps a chunk share one offset");
    if (policy_.meta != Policy::Meta::full) return skip("contributions", "the meta-gradient is not full");
    FormChoice form = FormChoice::primal;
    if (std::ranges::find(valid_, FormChoice::dual) != valid_.end()) form = FormChoice::dual;
    const Function f = program([&](const SystemProgram& p) {
      const std::int64_t chunk = policy_.chunk_of(sizes_.time), chunks = (sizes_.time + chunk - 1) / chunk;
      InnerLoopOptions with = options(p, form);
      const Weights learning =
          restrict_to(*p.learner, State::start(*p.learner, p.start), p.policy.trained).start.weights;
      with.gradient_offset = zero_offsets(learning, chunks);
      // The start as a variable of its own.
      std::vector<Tensor> start = p.start.values();
      for (Tensor& w : start) w = probe(w);
      const auto gradient = [&](const InnerLoopOptions& o, std::vector<Tensor> wrt) {
        const InnerLoopResult r = train_along(*p.learner, p.start.with(start), p.views, o);
        return grad(outer_loss({r.output}), wrt, {.allow_zero = true});
      };
      std::vector<Tensor> wrt;
      for (std::size_t i = 0; i < learning.size(); ++i)
        wrt.push_back(start[p.start.index(learning.at(i).name)]);
      const std::size_t n = wrt.size();
      wrt.insert(wrt.end(), with.gradient_offset.begin(), with.gradient_offset.end());
      const std::vector<Tensor> full = gradient(with, wrt);
      // What reaches W_0 without passing through an inner gradient: of the outputs, and of the points where
      // each step's own part of the full gradient acts.
      InnerLoopOptions first = options(p, form);
      first.policy.meta = Policy::Meta::first_order;
      first.keep_points = true;
      wrt.resize(n);
      const InnerLoopResult r = train_along(*p.learner, p.start.with(start), p.views, first);
      const std::vector<Tensor> first_order = grad(outer_loss({r.output}), wrt, {.allow_zero = true}),
                                own = vjp(r.points,
                                          std::vector<Tensor>(full.begin() + static_cast<std::ptrdiff_t>(n),
                                                              full.end()),
                                          wrt, {.allow_zero = true});
      std::vector<Tensor> out;
      for (std::size_t i = 0; i < n; ++i) {
        out.push_back(full[i]);
        out.push_back(first_order[i] + own[i]);
      }
      return out;
    });
    const Arrays both = run_program(f);
    double worst = 0;
    for (std::size_t i = 0; i < both.size(); i += 2)
      worst = worse(worst, relative_error(both[i + 1], both[i]));
    add("contributions", worst, 1e-10, fmt::format("{} form", ttt::name(form)));
  }

  void online() {
    if (policy_.update != Policy::Update::per_token)
      return skip("online", "the policy makes a step per chunk");
    const auto online = [&](const SystemProgram& p, FormChoice form) {
      InnerLoopOptions o = options(p, form);
      o.policy.chunk = 1;
      return o;
    };
    const auto views_of = [](const SystemProgram& p) {
      Views views = p.views;
      if (views.position.defined())
        views.position = slice(views.position, 0, 0, 1);  // each token is a chunk's first
      return views;
    };
    compare("online", 1e-10, "", [&](const SystemProgram& p) {
      std::vector<Tensor> out =
          results_of(train_along(*p.learner, p.start, views_of(p), online(p, FormChoice::automatic)));
      std::vector<Tensor> parts;
      State state = State::start(*p.learner, p.start);
      for (std::int64_t t = 0; t < sizes_.time; ++t) {
        const InnerLoopResult r =
            train_along(*p.learner, state, part(views_of(p), t, t + 1), online(p, FormChoice::primal));
        parts.push_back(r.output);
        state = r.state;
      }
      out.push_back(concat(parts, 2));
      for (const Tensor& w : state.weights.values()) out.push_back(w);
      return out;
    });
  }

  void resume() {
    if (policy_.chunk == Policy::kWholeSequence || policy_.chunk >= sizes_.time)
      return skip("resume", "the whole sequence is one chunk");
    const std::int64_t at = policy_.chunk * std::max<std::int64_t>(1, sizes_.time / policy_.chunk / 2);
    compare("resume", 1e-10, fmt::format("cut after {} tokens", at), [&](const SystemProgram& p) {
      const InnerLoopOptions o = options(p, FormChoice::automatic);
      InnerLoopOptions later = o;
      later.chunks_before = constant(Array::of({static_cast<double>(at / policy_.chunk)}, {1}));
      const InnerLoopResult a = train_along(*p.learner, p.start, part(p.views, 0, at), o);
      InnerLoopResult b = train_along(*p.learner, a.state, part(p.views, at, sizes_.time), later);
      b.output = concat({a.output, b.output}, 2);
      std::vector<Tensor> out;
      for (const InnerLoopResult& r : {learnt(p), b}) {
        const std::vector<Tensor> results = results_of(r);
        out.insert(out.end(), results.begin(), results.end());
        for (const Tensor& g : grad(outer_loss(results), p.inputs, {.allow_zero = true})) out.push_back(g);
      }
      return out;
    });
  }

  // Two documents in one sequence are read as each alone: values and gradients.
  void documents() {
    if (policy_.chunk == Policy::kWholeSequence || policy_.chunk >= sizes_.time)
      return skip("documents", "the whole sequence is one chunk");
    const std::int64_t at = policy_.chunk * std::max<std::int64_t>(1, sizes_.time / policy_.chunk / 2);
    std::vector<double> begins(static_cast<std::size_t>(sizes_.batch * sizes_.time));
    for (std::int64_t b = 0; b < sizes_.batch; ++b)
      for (const std::int64_t t : {std::int64_t{0}, at})
        begins[static_cast<std::size_t>(b * sizes_.time + t)] = 1;
    const bool dual = std::ranges::find(valid_, FormChoice::dual) != valid_.end();
    const FormChoice form = dual ? FormChoice::dual : FormChoice::primal;
    compare("documents", 1e-10, fmt::format("the second from token {}, {} form", at, name(form)),
            [&](const SystemProgram& p) {
              Views packed = p.views;
              packed.starts = constant(Array::of(begins, {sizes_.batch, 1, sizes_.time, 1}));
              packed.alignment = policy_.chunk;
              const InnerLoopOptions o = options(p, form);
              const Tensor together = train_along(*p.learner, p.start, packed, o).output;
              const auto alone = [&](std::int64_t from, std::int64_t to) {
                return train_along(*p.learner, p.start, part(p.views, from, to), o).output;
              };
              const Tensor apart = concat({alone(0, at), alone(at, sizes_.time)}, 2);
              std::vector<Tensor> out;
              for (const Tensor& output : {together, apart}) {
                out.push_back(output);
                for (const Tensor& g : grad(outer_loss({output}), p.inputs, {.allow_zero = true}))
                  out.push_back(g);
              }
              return out;
            });
  }

  void decode() {
    if (policy_.chunk == Policy::kWholeSequence) return skip("decode", "the whole sequence is one chunk");
    if (!not_causal_.empty()) return skip("decode", not_causal_);
    const std::string why = why_tokens_meet(system_, sizes_, DType::f64);
    const std::string note = why.empty() ? why : "prepare lets tokens meet " + why;
    // The stream's states unrolled: every step asks for what the step before carried. Views are prepared a
    // token at a time, as a layer does it.
    compare("decode", 1e-10, note, [&](const SystemProgram& p) {
      std::vector<Tensor> out{learnt(p).output}, parts;
      std::map<std::string, Tensor> carried;
      for (std::int64_t t = 0; t < sizes_.time; ++t) {
        Stream stream(carried);
        std::vector<Tensor> token = p.inputs;
        for (Tensor& x : std::span(token).first(token_inputs())) x = slice(x, 2, t, t + 1);
        const Tensor slot = constant(Array::of({static_cast<double>(t % policy_.chunk)}, {1}));
        parts.push_back(train_step(*p.learner, p.start, views_of(system_, token), slot,
                                   options(p, FormChoice::automatic), stream, "learner"));
        carried = stream.carried();
      }
      out.push_back(concat(parts, 2));
      return out;
    });
  }

  // Inputs with other numbers from place `from` of `axis` on (0: sequences, 2: tokens).
  Arrays disturbed(const Arrays& in, int axis, std::int64_t from) const {
    Arrays out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const Spec& spec = in[i].spec();
      if (spec.rank() != 4 || spec.shape[0] != sizes_.batch || spec.shape[2] != sizes_.time ||
          i >= token_inputs()) {
        out.push_back(in[i]);
        continue;
      }
      Array x = in[i].clone();
      const Array other = random_normal(spec, 0, 1, seed_ + 9, i);
      const auto a = x.as<double>();
      const auto b = other.as<double>();
      const std::int64_t inner = spec.shape[3];
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(a.size()); ++k) {
        const std::int64_t time = k / inner % sizes_.time, batch = k / inner / sizes_.time / sizes_.heads;
        if ((axis == 0 ? batch : time) >= from)
          a[static_cast<std::size_t>(k)] = b[static_cast<std::size_t>(k)];
      }
      out.push_back(std::move(x));
    }
    return out;
  }
  // How many of a program's inputs are rows, one a token.
  std::size_t token_inputs() const { return 3 + system_.gates.size() + (system_.position_rates ? 1 : 0); }

  Function outputs() const { return outputs(sizes_); }
  Function outputs(const ProgramSizes& sizes) const {
    return trace_system(system_, sizes, DType::f64,
                        [&](const SystemProgram& p) { return std::vector<Tensor>{learnt(p).output}; });
  }

  void independence() {
    if (sizes_.batch < 2) return skip("independence", "there is one sequence");
    const Function f = outputs();
    const Arrays in = numbers_for(f, seed_);
    const Array a = f(in)[0], b = f(disturbed(in, 0, 1))[0];
    const std::size_t first = a.spec().bytes() / static_cast<std::size_t>(sizes_.batch);
    const bool same = std::memcmp(a.data(), b.data(), first) == 0, moved = !a.same_bits(b);
    add("independence", same && moved ? 0 : 1, 0, "bits");
  }

  // Each head of each sequence by itself. Of a parameter that has parts for heads it is given its own.
  void alone() {
    if (sizes_.batch * sizes_.heads == 1) return skip("alone", "there is one head of one sequence");
    if (!members_meet_.empty()) return skip("alone", members_meet_);
    ProgramSizes one = sizes_;
    one.batch = one.heads = 1;
    const Function all = outputs();
    Function single;
    try {
      single = outputs(one);
    } catch (const Error& e) {  // a System whose learner does not go by the sizes that it is given
      return skip("alone", fmt::format("with one head the learner cannot be made: {}", e.what()));
    }
    const Arrays in = numbers_for(all, seed_);
    if (single.inputs().size() != in.size())
      return skip("alone", "with one head the learner has other parameters");
    const Array together = all(in)[0];
    double worst = 0;
    for (std::int64_t b = 0; b < sizes_.batch; ++b)
      for (std::int64_t h = 0; h < sizes_.heads; ++h) {
        Arrays own;
        for (std::size_t i = 0; i < in.size(); ++i) {
          const Shape shape = single.input_spec(i).shape;
          const auto begin = begin_of(in[i].shape(), shape, i < token_inputs(), b, h);
          if (!begin) return skip("alone", "a parameter is not made of equal parts for heads");
          own.push_back(part_of(in[i], *begin, shape));
        }
        const Array here = single(own)[0];
        worst = worse(worst, relative_error(here, part_of(together, {b, h, 0, 0}, here.shape())));
      }
    add("alone", worst, 1e-10);
  }
  // Where the part of an input that is head h's of sequence b begins. Rows of tokens have an axis of sequences; of the axes along
  // which one head has less than all, the others are of heads.
  std::optional<Shape> begin_of(const Shape& whole, const Shape& shape, bool tokens, std::int64_t b,
                                std::int64_t h) const {
    if (whole.size() != shape.size()) return {};
    Shape begin(whole.size(), 0);
    for (std::size_t axis = 0; axis < whole.size(); ++axis) {
      if (whole[axis] == shape[axis]) continue;
      const bool of_sequences = tokens && axis == 0;
      if (whole[axis] != shape[axis] * (of_sequences ? sizes_.batch : sizes_.heads)) return {};
      begin[axis] = shape[axis] * (of_sequences ? b : h);
    }
    return begin;
  }

  void causality() {
    if (!not_causal_.empty()) return skip("causality", not_causal_);
    const Function f = outputs();
    const Arrays in = numbers_for(f, seed_);
    const Array a = f(in)[0];
    double worst = 0;
    for (std::int64_t from = 1; from < sizes_.time; ++from) {
      const Array b = f(disturbed(in, 2, from))[0];
      const auto x = a.as<double>(), y = b.as<double>();
      const std::int64_t inner = a.shape()[3];
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(x.size()); ++k)
        if (k / inner % sizes_.time < from)
          worst = worse(worst, std::abs(x[static_cast<std::size_t>(k)] - y[static_cast<std::size_t>(k)]));
    }
    add("causality", worst, 1e-12);
  }

  // Of the chosen form's first derivatives.
  void same_bits(const char* name, const PlanOptions& plain, const std::vector<PlanOptions>& others) {
    const Function f = derivatives(valid_[0], 1);
    const Arrays in = numbers_for(f, seed_), expected = f.plan(plain).run(in);
    double worst = 0;
    for (const PlanOptions& other : others)
      worst = worse(worst, worst_difference_of_bits(f.plan(other).run(in), expected));
    add(name, worst, 0, "bits");
  }
  void checkpoints() {
    same_bits("checkpoints", {}, {{.checkpoint_every = 1}, {.checkpoint_every = 2}, {.checkpoint_every = 3}});
  }
  void threads() { same_bits("threads", {.workers = 1}, {{.workers = 2}, {.workers = 5}}); }

  void zeros() {
    const Function f = derivatives(valid_[0], 2);
    const Arrays in = numbers_for(f, seed_);
    const auto bad_at = [&](double keys, double values) {
      Arrays scaled = in;
      scaled[1] = scaled_by(keys, in[1]), scaled[2] = scaled_by(values, in[2]);
      double bad = 0;
      for (const Array& a : f(scaled))
        for (double x : a.as<double>())
          if (!std::isfinite(x)) ++bad;
      return bad;
    };
    constexpr double kSmall = 1e-3;
    if (bad_at(kSmall, 1) + bad_at(kSmall, kSmall) > 0)
      return skip("zeros", "the learner diverges on small keys already");
    add("zeros", bad_at(0, 1) + bad_at(0, 0), 0, "numbers that are not finite");
  }

  const System& system_;
  ProgramSizes sizes_;
  std::uint64_t seed_;
  Policy policy_;
  bool stops_gradients_ = false;
  std::string members_meet_;  // why heads or sequences are not computed each by itself; empty if they are
  std::string not_causal_;    // why token by token is not asked for; empty if it is
  std::vector<FormChoice> valid_;
  ConformanceReport report_;
};

}  // namespace

bool ConformanceReport::passed() const { return std::ranges::all_of(checks, &Claim::holds); }

std::string ConformanceReport::str() const {
  std::string out;
  for (const Claim& c : checks)
    out += c.applies
               ? fmt::format("{:<14} {} {:.1e} (at most {:.0e}){}{}\n", c.claim, c.holds() ? "ok  " : "FAIL",
                             c.error, c.tolerance, c.note.empty() ? "" : ", ", c.note)
               : fmt::format("{:<14} --   {}\n", c.claim, c.note);
  return out;
}

ConformanceReport conformance(const System& system, const ProgramSizes& sizes, std::uint64_t seed) {
  return ConformanceChecks(system, sizes, seed).run();
}

}  // namespace nestgrad::ttt
