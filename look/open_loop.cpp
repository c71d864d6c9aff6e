#include "look/open_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "ttt/explain.h"

namespace nestgrad::look {

std::vector<Array> values_of(const ParamTable& table, const InspectedLoop& inspected, DType dtype) {
  std::vector<Array> out;
  for (const ParamSpec& p : table.specs()) {
    const auto at = inspected.params.find(p.name);
    if (at == inspected.params.end())
      throw ConfigError(
          fmt::format("[inspect] {}: the learner asks for '{}', "
                      "of which the specimen has no numbers",
                      inspected.name, p.name));
    if (at->second.shape() != p.shape)
      throw ShapeError(fmt::format("[inspect] {}: '{}' is {}, the learner wants {}", inspected.name, p.name,
                                   to_string(at->second.spec()), to_string(p.shape)));
    out.push_back(at->second.cast(dtype));
  }
  return out;
}

OpenProgram::OpenProgram(const InspectedLoop& inspected, const std::vector<Spec>& extra, const Fn& fn,
                         DType dtype) {
  inspected.check();
  std::vector<const Array*> given{&inspected.q, &inspected.k, &inspected.v, &inspected.cotangent};
  std::vector<std::string> names{"q", "k", "v", "cotangent"};
  for (const auto& [name, value] : inspected.gates) given.push_back(&value), names.push_back("gate " + name);
  if (inspected.position.defined()) given.push_back(&inspected.position), names.emplace_back("position");
  std::vector<Spec> specs = extra;
  for (const Array* a : given) {
    specs.push_back({dtype, a->shape()});
    fixed_.push_back(a->cast(dtype));
  }
  function_ = trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*context().emit.graph, dtype);
        OpenLoop loop;
        loop.learner = inspected.learner(Params(table));
        if (!loop.learner)
          throw ConfigError(fmt::format("[inspect] {}: the learner that InspectedLoop::learner makes is null",
                                        inspected.name));
        loop.options.policy = inspected.policy;
        loop.options.policy.meta =
            Policy::Meta::full;  // the views are of it, however the outer model is trained
        const std::vector<Tensor> own(in.begin() + static_cast<std::ptrdiff_t>(extra.size()), in.end());
        loop.views = {own[0], own[1], own[2], {}, {}};
        loop.cotangent = own[3];
        std::size_t at = 4;
        for (const auto& gate : inspected.gates) loop.views.gates[gate.first] = own[at++];
        if (inspected.position.defined()) loop.views.position = own[at++];
        loop.start = for_batch(loop.learner->init(), inspected.batch());
        std::vector<Tensor> start = loop.start.values();
        for (Tensor& w : start) w = probe(w);
        loop.start = loop.start.with(start);
        loop.learning =
            restrict_to(*loop.learner, State::start(*loop.learner, loop.start), inspected.policy.trained)
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
        for (Array& value : values_of(table, inspected, dtype)) fixed_.push_back(std::move(value));
        return out;
      },
      specs);
}

InnerLoopResult OpenLoop::run(const InnerLoopOptions& with) const {
  InnerLoopResult out = train_along(*learner, start, views, with);
  if (out.output.shape() != cotangent.shape())
    throw ShapeError(
        fmt::format("[inspect] the cotangent is {}; it must be shaped as the answers, which are {}",
                    to_string(cotangent.spec()), to_string(out.output.spec())));
  return out;
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

double relative_distance(const std::vector<Array>& a, const std::vector<Array>& b, double least) {
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::int64_t j = 0; j < a[i].size(); ++j) {
      const double d = a[i].at(j) - b[i].at(j);
      square += d * d;
    }
  return square == 0 ? 0 : std::sqrt(square) / std::max(norm(b), least);
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

}  // namespace nestgrad::look
