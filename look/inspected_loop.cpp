// What is inspected: its checks, and a published learner on a task that it can learn.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "look/open_loop.h"

namespace nestgrad::look {

std::int64_t InspectedLoop::chunk() const { return std::min(policy.chunk_of(time()), time()); }

std::int64_t InspectedLoop::chunks() const { return time() / chunk(); }

void InspectedLoop::check() const {
  const auto shape_error = [&](const std::string& what) {
    throw ShapeError(fmt::format("[inspect] {}: {}", name, what));
  };
  require_function("inspect", "what makes the learner, InspectedLoop::learner,", learner);
  for (const Array* a : {&q, &k, &v, &cotangent})
    if (!a->defined() || a->shape().size() != 4 || a->dtype() != DType::f64)
      shape_error("q, k, v and the cotangent are f64 [batch, heads, time, dim]");
  if (cotangent.shape()[2] != q.shape()[2])
    shape_error(fmt::format("the cotangent is {} and q {}: they must have as many tokens",
                            to_string(cotangent.spec()), to_string(q.spec())));
  for (const Array* a : {&q, &v, &cotangent})
    if (a->shape()[0] != batch() || a->shape()[1] != heads())
      shape_error(fmt::format("q {}, k {}, v {} and the cotangent {} must have as many sequences and heads",
                              to_string(q.spec()), to_string(k.spec()), to_string(v.spec()),
                              to_string(cotangent.spec())));
  if (outer_loss.size() > 1 && std::ssize(outer_loss) != time())
    shape_error(fmt::format("outer_loss has {} numbers; it may have one, or one for each of the {} tokens",
                            outer_loss.size(), time()));
  if (q.shape()[2] != time())
    shape_error(fmt::format("q is {} and k {}: they must have as many tokens", to_string(q.spec()),
                            to_string(k.spec())));
  if (time() < 1) shape_error("there is no token to look at");
  if (patches) patches->check(time());
  if (time() % chunk())
    throw ConfigError(fmt::format("[inspect] {}: {} tokens are not whole chunks of {}; give a multiple", name,
                                  time(), chunk()));
  if (!policy.writes(chunk(), time()))
    throw ConfigError(fmt::format(
        "[inspect] {}: {} tokens are less than a chunk of {}, and by the policy ({}) a partial chunk "
        "does not write: there is nothing to look into; give at least a whole chunk",
        name, time(), policy.chunk, policy.str()));
}

void InspectedLoop::Patches::check(std::int64_t tokens_there) const {
  if (rows < 1 || columns < 1 || images.empty())
    throw ConfigError(fmt::format(
        "[inspect] patches: there must be an image, and rows and columns of patches on it; there are {} "
        "images, {} rows and {} columns",
        images.size(), rows, columns));
  for (const std::vector<Captioned>* list : {&images, &made})
    for (const Captioned& x : *list)
      if (!x.image.defined() || x.image.dtype() != DType::f32 || x.image.shape().size() != 3 ||
          (x.image.shape()[2] != 1 && x.image.shape()[2] != 3))
        throw ShapeError(
            fmt::format("[inspect] patches: an image is {}; it must be f32 [height, width, 1 or 3]",
                        x.image.defined() ? to_string(x.image.spec()) : "not defined"));
  const Shape& one = images[0].image.shape();
  for (const Captioned& x : images)
    if (x.image.shape() != one)
      throw ShapeError(fmt::format("[inspect] patches: the images are of two sizes, {} and {}",
                                   to_string(one), to_string(x.image.shape())));
  if (one[0] % rows != 0 || one[1] % columns != 0 || one[0] / rows != one[1] / columns)
    throw ShapeError(
        fmt::format("[inspect] patches: {} rows and {} columns do not cut an image of {} x {} into squares",
                    rows, columns, one[0], one[1]));
  if (tokens_there != tokens() && tokens_there != tokens() + 1)
    throw ShapeError(fmt::format(
        "[inspect] patches: {} images have {} patches, and there are {} tokens; there must be one for "
        "each, or one more, a class token",
        images.size(), tokens(), tokens_there));
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

// Numbers for what the learner asks for.
std::map<std::string, Array> starting_params(const decltype(InspectedLoop::learner)& make,
                                             std::uint64_t seed) {
  std::map<std::string, Array> out;
  trace(
      [&](const std::vector<Tensor>&) {
        ParamTable table(*context().emit.graph, DType::f64);
        make(Params(table))->init();
        for (ParamSpec p : table.specs()) {
          // Weights as wide as their inputs ask for: with those of an untrained model, norms of the inner
          // model's tiny outputs make every picture one of explosions.
          if (p.init.kind == Init::Kind::normal && p.shape.size() > 1)
            p.init.value = 1 / std::sqrt(static_cast<double>(p.shape[p.shape.size() - 2]));
          out[p.name] = initial_value(p, DType::f64, seed);
        }
        return std::vector<Tensor>{};
      },
      {});
  return out;
}

}  // namespace

InspectedLoop inspected_learner(const System& system, const ProgramSizes& sizes, std::uint64_t seed) {
  constexpr double kNoise = 0.1;
  InspectedLoop out;
  out.name = system.name;
  const SystemSizes own{sizes.heads, sizes.dim, sizes.chunk};
  check_complete(system);
  out.learner = [system, own](const Params& params) { return learner_of(system, params, own); };
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
    if (const auto rate = out.gates.find("rate"); rate != out.gates.end())
      for (double& r : rate->second.as<double>()) r /= static_cast<double>(sizes.dim);
    out.position = Array(DType::f64, {out.chunk()});
    for (std::int64_t i = 0; i < out.chunk(); ++i)
      out.position.as<double>()[static_cast<std::size_t>(i)] = 1 / static_cast<double>(i + 1);
  }
  out.params = starting_params(out.learner, seed);

  // Outer loss: half the squared distance of each answer, a mean over tokens, sequences and heads.
  out.cotangent = Array::zeros(DType::f64, rows.shape);
  const Array answers = OpenProgram(out, {}, [](OpenLoop& loop, const std::vector<Tensor>&) {
    return std::vector<Tensor>{train_along(*loop.learner, loop.start, loop.views, loop.options).output};
  })()[0];
  if (answers.shape() != rows.shape)
    throw ShapeError(fmt::format(
        "[inspect] {}: predict() gives answers {}, and the task asks for {}; let predict() give as many "
        "features as a head has, {}",
        system.name, to_string(answers.spec()), to_string(rows), sizes.dim));
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

}  // namespace nestgrad::look
