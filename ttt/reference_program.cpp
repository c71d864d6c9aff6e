#include "ttt/reference_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/grad.h"
#include "engine/core/nearest_name.h"
#include "ttt/reference_states.h"

namespace nestgrad::ttt {

namespace {

std::string weight_axes(std::string_view lead, WeightKind kind) {
  return fmt::format("{}{}", lead, kind == WeightKind::matrix ? "in out" : "one feature");
}

// Of a state with these names and texts.
std::vector<ReferenceTensor> optional_inputs(const std::vector<ReferenceTensor>& state) {
  std::vector<ReferenceTensor> out;
  for (const ReferenceTensor& s : state)
    out.push_back({std::string(kStartPrefix) + s.name, s.spec, s.axes,
                   fmt::format("what the first token finds, instead of {}", s.text), true});
  for (const ReferenceTensor& s : state)
    out.push_back({std::string(kFinalCotangentPrefix) + s.name, s.spec, s.axes,
                   "adds sum(final * this) to what the gradients are of", true});
  return out;
}

class Tracer {
 public:
  Tracer(const System& system, const ReferenceShape& shape, const ReferenceOptions& options,
         const std::map<std::string, Shape>& given)
      : system_(system),
        shape_(shape),
        options_(options),
        given_(given),
        policy_(reference_policy(system, shape, options)) {}

  ReferenceProgram run() {
    ReferenceProgram& p = program_;
    p.state_every = state_every();
    p.formulas = learner_formulas(system_, shape_, options_);
    p.inputs = options_.raw ? raw_inputs(system_, policy_, shape_, options_.dtype)
                            : effective_inputs(system_, policy_, shape_, options_);
    views_ = p.inputs.size();
    p.inputs.push_back({"cotangent.output",
                        {options_.dtype, {shape_.batch, shape_.heads, shape_.queries, answer_dim()}},
                        view_axes("output"),
                        "gradients are those of sum(output * cotangent.output); drawn if it is not given",
                        true});
    for (const auto& [name, shape] : given_)
      p.inputs.push_back({name, {options_.dtype, shape}, "", "", true});
    std::vector<Spec> specs;
    for (const ReferenceTensor& t : p.inputs) specs.push_back(t.spec);
    p.function = trace([&](const std::vector<Tensor>& in) { return traced(in); }, specs);
    for (std::size_t i = 0; i < p.outputs.size(); ++i) p.outputs[i].spec = p.function.output_spec(i);
    return std::move(p);
  }

 private:
  // Features of an answer: those of f, or where values are wider or narrower than keys, those of a value.
  std::int64_t answer_dim() const {
    return shape_.value_dim == shape_.dim ? program_.formulas.answer_dim : shape_.value_dim;
  }
  // Tokens between the states that are given.
  std::int64_t state_every() const {
    const std::int64_t chunk = policy_.chunk_of(shape_.time), every = options_.state_every;
    if (every < 0 || every % chunk != 0)
      throw ConfigError(fmt::format(
          "[reference] states every {} tokens: chunks have {}; ask for whole chunks", every, chunk));
    return every ? every : chunk;
  }

  void give(std::string name, Tensor value, std::string axes, std::string text) {
    values_.push_back(value);
    program_.outputs.push_back({std::move(name), {}, std::move(axes), std::move(text)});
  }

  // Outer parameters become inputs when the learner asks for them.
  std::unique_ptr<Learner> made_learner(ParamTable& table) {
    auto learner = learner_of(system_, Params(table), system_sizes(shape_, policy_, options_));
    program_.params = table.specs();
    for (const ParamSpec& spec : table.specs()) {
      if (std::ranges::find(program_.inputs, spec.name, &ReferenceTensor::name) != program_.inputs.end())
        throw ConfigError(
            fmt::format("[reference] {} has a gate and a parameter that are both named '{}'; "
                        "rename one of them",
                        system_.name, spec.name));
      std::string axes = "head";
      if (spec.shape.size() == 2) axes += " feature";
      else if (spec.shape.size() == 3) axes += spec.shape[1] == 1 ? " one feature" : " in out";
      program_.inputs.push_back(
          {spec.name, {options_.dtype, spec.shape}, axes, "outer parameter; one for all sequences"});
      if (const auto at = program_.formulas.taken.find(spec.name); at != program_.formulas.taken.end())
        program_.inputs.back().text += "; the learner takes " + at->second;
    }
    return learner;
  }

  // What the learner starts from, with what is given in its place. Given weights may have other widths than
  // the learner's own; slots and cotangents have theirs.
  State start_state(const Learner& learner, const NamedTensors& in) {
    const Weights own = for_batch(learner.init(), shape_.batch);
    describe_state(State::start(learner, own));
    check_names();
    const auto given = [&](const std::string& name, Tensor value) {
      const auto at = in.find(std::string(kStartPrefix) + name);
      return at == in.end() ? value : at->second;
    };
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < own.size(); ++i) {
      values.push_back(given(own.at(i).name, own.at(i).value));
      check_weight(own.at(i), values.back().shape());
    }
    const State out = State::start(learner, own.with(values));
    describe_state(out);
    take_descriptions();
    std::vector<Tensor> flat = out.flat();
    for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = given(program_.state[i].name, flat[i]);
    return out.with(flat);
  }

  void describe_state(const State& start) {
    program_.state.clear();
    program_.is_slot.clear();
    const std::vector<std::string> names = state_names(start);
    const std::vector<Tensor> flat = start.flat();
    for (std::size_t i = 0, at = 0; i < start.weights.size(); ++i)
      for (std::size_t slot = 0; slot <= start.slots[i].size(); ++slot, ++at) {
        const WeightKind kind = slot ? start.slots[i][slot - 1].kind : start.weights.at(i).kind;
        program_.state.push_back({names[at], flat[at].spec(), weight_axes("batch head ", kind),
                                  program_.formulas.start.at(names[at]), true});
        program_.is_slot.push_back(slot > 0);
      }
  }

  void check_names() const {
    std::vector<std::string> known;
    for (const ReferenceTensor& t : optional_inputs(program_.state)) known.push_back(t.name);
    for (const auto& [name, shape] : given_)
      if (std::ranges::find(known, name) == known.end())
        throw ConfigError(fmt::format("[reference] '{}' is no input of {}{}; of its state there are {}", name,
                                      system_.name, did_you_mean(name, known), fmt::join(known, ", ")));
  }

  [[noreturn]] static void misshapen(const std::string& name, const Shape& found, const Shape& expected,
                                     std::string_view axes) {
    throw ShapeError(fmt::format("[reference] '{}' is {}; expected {}, the axes {}", name, to_string(found),
                                 to_string(expected), axes));
  }

  void check_weight(const FastWeight& own, const Shape& found) const {
    Shape expected = own.value.shape();
    if (found.size() == expected.size()) {
      expected.back() = found.back();
      if (own.kind == WeightKind::matrix) expected[2] = found[2];
    }
    if (found != expected)
      misshapen(std::string(kStartPrefix) + own.name, found, own.value.shape(),
                weight_axes("batch head ", own.kind));
  }

  // What is known of the optional inputs that are given.
  void take_descriptions() {
    for (const ReferenceTensor& known : optional_inputs(program_.state))
      if (const auto at = std::ranges::find(program_.inputs, known.name, &ReferenceTensor::name);
          at != program_.inputs.end()) {
        if (at->spec.shape != known.spec.shape)
          misshapen(known.name, at->spec.shape, known.spec.shape, known.axes);
        *at = known;
      }
  }

  std::vector<Tensor> traced(const std::vector<Tensor>& in) {
    ParamTable table(*context().emit.graph, options_.dtype);
    const auto learner = made_learner(table);
    NamedTensors named;
    for (std::size_t i = 0; i < in.size(); ++i) named[program_.inputs[i].name] = in[i];
    NamedTensors of_views;
    for (std::size_t i = 0; i < views_; ++i) of_views[program_.inputs[i].name] = in[i];
    const Views views =
        options_.raw ? views_from_raw(system_, policy_, of_views, options_) : views_from(of_views);
    const State start = start_state(*learner, named);

    const InnerLoopOptions loop{.policy = policy_, .form = options_.form, .track_loss = true};
    const InnerLoopResult r = train_along(*learner, start, views, loop);
    program_.explanation =
        explain(*learner, start.weights, views, {.policy = policy_, .form = options_.form});
    give_results(r);
    give_states(*learner, start, views, r.state);
    if (options_.intermediates) give_intermediates(*learner, start, views);
    std::vector<Tensor> all = in;
    all.insert(all.end(), table.tensors().begin(), table.tensors().end());
    give_gradients(all, named, r);
    return values_;
  }

  void give_results(const InnerLoopResult& r) {
    give("output", r.output, view_axes("output"), "f(q; W), what each token is answered");
    const auto loss = [&](const std::string& name, Tensor value, const std::string& where) {
      give(name, value, "batch head token", "inner loss of the token " + where);
    };
    loss("loss_before", r.loss_before,
         "with the weights before its own step (its chunk's), and so before that step's forgetting too");
    loss("loss_after", r.loss_after, "with the weights after it");
    if (options_.intermediates)
      loss("loss_initial", r.loss_initial, "with the weights that the sequence began with");
  }

  void give_states(const Learner& learner, const State& start, const Views& views, const State& last) {
    const std::vector<Tensor> states =
        states_along(learner, start, views, policy_, options_.form, program_.state_every);
    const std::vector<Tensor> flat = last.flat();
    for (std::size_t i = 0; i < program_.state.size(); ++i) {
      give("state." + program_.state[i].name, states[i], "part " + program_.state[i].axes,
           fmt::format("after every {} tokens, and after the last", program_.state_every));
      give("final." + program_.state[i].name, flat[i], program_.state[i].axes, "after the last token");
    }
  }

  void give_intermediates(const Learner& learner, const State& start, const Views& views) {
    if (options_.raw)
      for (const auto& [name, value] : named_views(views))
        give("view." + name, value, view_axes(name), "as the inner loop is given it");
    const InnerSteps steps = inner_steps(learner, start, views, policy_, options_.form);
    for (std::size_t i = 0; i < steps.names.size(); ++i)
      give(
          "inner_gradient." + steps.names[i], steps.gradients[i],
          weight_axes("chunk batch head ", start.weights.at(start.weights.index(steps.names[i])).kind),
          fmt::format("{} over the chunk's tokens of {}rate * dloss/dW where the chunk's gradients are taken",
                      policy_.average ? "mean" : "sum", policy_.ascent ? "-" : ""));
    give("inner_prediction", steps.predictions, view_axes("k"), "f(k; W) where the gradients are taken");
  }

  void give_gradients(const std::vector<Tensor>& in, const NamedTensors& named, const InnerLoopResult& r) {
    program_.read.assign(in.size(), true);
    std::vector<Tensor> of{r.output}, cotangents{named.at("cotangent.output")};
    const std::vector<Tensor> flat = r.state.flat();
    for (std::size_t i = 0; i < program_.state.size(); ++i)
      if (const auto at = named.find(std::string(kFinalCotangentPrefix) + program_.state[i].name);
          at != named.end()) {
        of.push_back(flat[i]);
        cotangents.push_back(at->second);
      }
    std::vector<Tensor> wrt;
    std::vector<const ReferenceTensor*> names;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const ReferenceTensor& t = program_.inputs[i];
      if (t.name.starts_with("cotangent.")) continue;
      program_.read[i] = std::ranges::any_of(values_, [&](Tensor value) { return mentions(value, in[i]); });
      if (!program_.read[i]) continue;
      wrt.push_back(in[i]);
      names.push_back(&t);
    }
    const std::vector<Tensor> g = vjp(of, cotangents, wrt, {.allow_zero = true});
    for (std::size_t i = 0; i < g.size(); ++i)
      give("grad." + names[i]->name, g[i], names[i]->axes,
           "d sum(output * cotangent.output) / d " + names[i]->name);
  }

  const System& system_;
  const ReferenceShape shape_;
  const ReferenceOptions& options_;
  const std::map<std::string, Shape>& given_;
  const Policy policy_;
  std::size_t views_ = 0;  // the first of the inputs
  ReferenceProgram program_;
  std::vector<Tensor> values_;  // of the outputs
};

}  // namespace

std::vector<ReferenceTensor> ReferenceProgram::not_given() const {
  std::vector<ReferenceTensor> out = optional_inputs(state);
  std::erase_if(out, [&](const ReferenceTensor& t) {
    return std::ranges::find(inputs, t.name, &ReferenceTensor::name) != inputs.end();
  });
  return out;
}

ReferenceProgram trace_reference(const System& system, const ReferenceShape& shape,
                                 const ReferenceOptions& options, const std::map<std::string, Shape>& given) {
  return Tracer(system, shape, options, given).run();
}

}  // namespace nestgrad::ttt
