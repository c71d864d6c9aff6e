#include "ttt/inspect/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "engine/random.h"
#include "ttt/explain.h"

namespace nestgrad::ttt {

std::int64_t Specimen::chunk() const { return std::min(policy.chunk_of(time()), time()); }

std::int64_t Specimen::chunks() const { return time() / chunk(); }

void Specimen::check() const {
  const auto shape_error = [&](const std::string& what) {
    throw ShapeError(fmt::format("[inspect] {}: {}", name, what));
  };
  for (const Array* a : {&q, &k, &v, &cotangent})
    if (!a->defined() || a->shape().size() != 4 || a->dtype() != DType::f64)
      shape_error("q, k, v and the cotangent are f64 [batch, heads, time, dim]");
  if (cotangent.shape()[2] != q.shape()[2])
    shape_error(fmt::format("the cotangent is {} and q {}: they must have as many tokens",
                            to_string(cotangent.spec()), to_string(q.spec())));
  if (q.shape()[2] != time())
    shape_error(fmt::format("q is {} and k {}: they must have as many tokens", to_string(q.spec()),
                            to_string(k.spec())));
  if (time() % chunk())
    throw ConfigError(fmt::format("[inspect] {}: {} tokens are not whole chunks of {}; give a multiple", name,
                                  time(), chunk()));
  if (!policy.writes(chunk(), time()))
    throw ConfigError(fmt::format(
        "[inspect] {}: {} tokens are less than a chunk of {}, and by the policy ({}) a partial chunk "
        "does not write: there is nothing to look into; give at least a whole chunk",
        name, time(), policy.chunk, policy.str()));
}

std::vector<Array> values_of(const ParamTable& table, const Specimen& specimen, DType dtype) {
  std::vector<Array> out;
  for (const ParamSpec& p : table.specs()) {
    const auto at = specimen.params.find(p.name);
    if (at == specimen.params.end())
      throw ConfigError(
          fmt::format("[inspect] {}: the learner asks for '{}', "
                      "of which the specimen has no numbers",
                      specimen.name, p.name));
    if (at->second.shape() != p.shape)
      throw ShapeError(fmt::format("[inspect] {}: '{}' is {}, the learner wants {}", specimen.name, p.name,
                                   to_string(at->second.spec()), to_string(p.shape)));
    out.push_back(at->second.cast(dtype));
  }
  return out;
}

OpenProgram::OpenProgram(const Specimen& specimen, const std::vector<Spec>& extra, const Fn& fn,
                         DType dtype) {
  specimen.check();
  std::vector<const Array*> given{&specimen.q, &specimen.k, &specimen.v, &specimen.cotangent};
  std::vector<std::string> names{"q", "k", "v", "cotangent"};
  for (const auto& [name, value] : specimen.gates) given.push_back(&value), names.push_back("gate " + name);
  if (specimen.position.defined()) given.push_back(&specimen.position), names.emplace_back("position");
  std::vector<Spec> specs = extra;
  for (const Array* a : given) {
    specs.push_back({dtype, a->shape()});
    fixed_.push_back(a->cast(dtype));
  }
  function_ = trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*emit_state().graph, dtype);
        OpenLoop loop;
        loop.learner = specimen.learner(Params(table));
        loop.options.policy = specimen.policy;
        loop.options.policy.meta =
            Policy::Meta::full;  // the views are of it, however the outer model is trained
        const std::vector<Tensor> own(in.begin() + static_cast<std::ptrdiff_t>(extra.size()), in.end());
        loop.views = {own[0], own[1], own[2], {}, {}};
        loop.cotangent = own[3];
        std::size_t at = 4;
        for (const auto& gate : specimen.gates) loop.views.gates[gate.first] = own[at++];
        if (specimen.position.defined()) loop.views.position = own[at++];
        loop.start = for_batch(loop.learner->init(), specimen.batch());
        std::vector<Tensor> start = loop.start.values();
        for (Tensor& w : start) w = probe(w);
        loop.start = loop.start.with(start);
        loop.learning =
            restrict_to(*loop.learner, State::start(*loop.learner, loop.start), specimen.policy.trained)
                .start.weights;
        loop.options.form = FormChoice::dual;
        try {
          explain(*loop.learner, loop.start, loop.views, loop.options);
        } catch (const FormError&) {
          loop.options.form = FormChoice::primal;
        }
        for (std::size_t i = 0; i < table.specs().size(); ++i) {
          loop.names.push_back(table.specs()[i].name);
          loop.trained.push_back(table.tensors()[i]);
        }
        for (std::size_t i = 0; i < own.size(); ++i)
          if (names[i] != "cotangent") loop.names.push_back(names[i]), loop.trained.push_back(own[i]);
        std::vector<Tensor> out =
            fn(loop, {in.begin(), in.begin() + static_cast<std::ptrdiff_t>(extra.size())});
        for (Array& value : values_of(table, specimen, dtype)) fixed_.push_back(std::move(value));
        return out;
      },
      specs);
}

std::vector<Array> OpenProgram::operator()(std::vector<Array> extra) const {
  extra.insert(extra.end(), fixed_.begin(), fixed_.end());
  return function_(extra);
}

double dot(const std::vector<Array>& a, const std::vector<Array>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::int64_t j = 0; j < a[i].size(); ++j) sum += a[i].at(j) * b[i].at(j);
  return sum;
}

double norm(const std::vector<Array>& a) { return std::sqrt(dot(a, a)); }

double cosine(const std::vector<Array>& a, const std::vector<Array>& b) {
  const double size = norm(a) * norm(b);
  return size > 0 ? dot(a, b) / size : std::numeric_limits<double>::quiet_NaN();
}

double relative_distance(const std::vector<Array>& a, const std::vector<Array>& b) {
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::int64_t j = 0; j < a[i].size(); ++j) {
      const double d = a[i].at(j) - b[i].at(j);
      square += d * d;
    }
  return square == 0 ? 0 : std::sqrt(square) / norm(b);
}

std::vector<Array> plus(const std::vector<Array>& a, const std::vector<Array>& b) {
  std::vector<Array> out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    Array sum(DType::f64, a[i].shape());
    const std::span<double> to = sum.as<double>();
    for (std::size_t j = 0; j < to.size(); ++j) to[j] = a[i].as<double>()[j] + b[i].as<double>()[j];
    out.push_back(std::move(sum));
  }
  return out;
}

std::vector<double> sum_over_members(const Array& rows, std::int64_t time) {
  std::vector<double> out(static_cast<std::size_t>(time), 0);
  for (std::int64_t i = 0; i < rows.size(); ++i) out[static_cast<std::size_t>(i % time)] += rows.at(i);
  return out;
}

Array one_at(std::int64_t index, Shape shape) {
  Array out = Array::zeros(DType::f64, std::move(shape));
  out.as<double>()[static_cast<std::size_t>(index)] = 1;
  return out;
}

namespace {

// rows [batch, heads, time, dim] times one matrix per head.
Array mapped(const Array& rows, const Array& matrices, double noise, std::uint64_t seed) {
  const std::int64_t batch = rows.shape()[0], heads = rows.shape()[1], time = rows.shape()[2],
                     dim = rows.shape()[3];
  Array out = random_normal(rows.spec(), 0, noise, seed, 0);
  const std::span<const double> x = rows.as<double>(), a = matrices.as<double>();
  const std::span<double> y = out.as<double>();
  for (std::int64_t row = 0; row < batch * heads * time; ++row) {
    const std::int64_t head = row / time % heads;
    for (std::int64_t i = 0; i < dim; ++i)
      for (std::int64_t j = 0; j < dim; ++j)
        y[static_cast<std::size_t>(row * dim + j)] += x[static_cast<std::size_t>(row * dim + i)] *
                                                      a[static_cast<std::size_t>((head * dim + i) * dim + j)];
  }
  return out;
}

}  // namespace

Specimen specimen_of(const System& system, const ProgramSizes& sizes, std::uint64_t seed) {
  constexpr double kNoise = 0.1;
  Specimen out;
  out.name = system.name;
  const SystemSizes own{sizes.heads, sizes.dim, sizes.chunk};
  out.learner = [learner = system.learner, own](const Params& params) { return learner(params, own); };
  out.policy = system.policy(own);

  const Spec rows{DType::f64, {sizes.batch, sizes.heads, sizes.time, sizes.dim}};
  const double spread = 1 / std::sqrt(static_cast<double>(sizes.dim));
  const Array q = random_normal(rows, 0, 1, seed, 0), k = random_normal(rows, 0, 1, seed, 1),
              map = random_normal({DType::f64, {sizes.heads, sizes.dim, sizes.dim}}, 0, spread, seed, 2);
  const Array v = mapped(k, map, kNoise, seed + 1), wanted = mapped(q, map, 0, seed);

  // The views after the system's own preparation, and its gates.
  std::vector<std::string> gates;
  const Function prepare = trace_system(system, sizes, DType::f64, [&](const SystemProgram& p) {
    std::vector<Tensor> views{p.views.q, p.views.k, p.views.v};
    for (const auto& [name, value] : p.views.gates) gates.push_back(name), views.push_back(value);
    return views;
  });
  std::vector<Array> inputs{q, k, v};
  for (std::size_t i = 3; i < prepare.inputs().size(); ++i)
    inputs.push_back(random_normal(prepare.input_spec(i), 0, 0.7, seed, i));
  const std::vector<Array> views = prepare(inputs);
  out.q = views[0], out.k = views[1], out.v = views[2];
  for (std::size_t i = 0; i < gates.size(); ++i) out.gates[gates[i]] = views[3 + i];
  if (system.position_rates) {  // as the published layers start: eta[i, j] = sigmoid(..) / (i + 1) / dim
    Array& rate = out.gates.at("rate");
    for (double& r : rate.as<double>()) r /= static_cast<double>(sizes.dim);
    out.position = Array(DType::f64, {out.chunk()});
    for (std::int64_t i = 0; i < out.chunk(); ++i)
      out.position.as<double>()[static_cast<std::size_t>(i)] = 1 / static_cast<double>(i + 1);
  }
  trace(
      [&](const std::vector<Tensor>&) {
        ParamTable table(*emit_state().graph, DType::f64);
        const auto learner = out.learner(Params(table));
        learner->init();
        for (ParamSpec p : table.specs()) {
          // Weights as wide as their inputs ask for: with those of an untrained model, norms of the inner
          // model's tiny outputs make every picture one of explosions.
          if (p.init.kind == Init::Kind::normal && p.shape.size() > 1)
            p.init.value = 1 / std::sqrt(static_cast<double>(p.shape[p.shape.size() - 2]));
          out.params[p.name] = initial_value(p, DType::f64, seed);
        }
        return std::vector<Tensor>{};
      },
      {});

  // Outer loss: half the squared distance of each answer, a mean over all tokens of one sequence and head.
  out.cotangent = Array::zeros(DType::f64, rows.shape);
  const Array answers = OpenProgram(out, {}, [](OpenLoop& loop, const std::vector<Tensor>&) {
    return std::vector<Tensor>{loop.run(loop.options).output};
  })()[0];
  const std::span<double> c = out.cotangent.as<double>();
  const double members = static_cast<double>(sizes.batch * sizes.heads);
  out.outer_loss.assign(static_cast<std::size_t>(sizes.time), 0);
  out.outer_unit = "half squared distance";
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double d = answers.as<double>()[i] - wanted.as<double>()[i];
    const std::size_t t = i / static_cast<std::size_t>(sizes.dim) % static_cast<std::size_t>(sizes.time);
    c[i] = d / (members * static_cast<double>(sizes.time));
    out.outer_loss[t] += 0.5 * d * d / members;
  }
  return out;
}

}  // namespace nestgrad::ttt
