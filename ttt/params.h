// Params: the outer parameters of a model by name. A model asks for what it needs while it is traced; the
// first request makes an input of the function, so the list of parameters, their shapes and starting values
// are declared once, where they are used.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/core/graph.h"

namespace nestgrad {

// How a parameter starts.
struct Init {
  enum class Kind : std::uint8_t { constant, normal, log_of_uniform, inverse_softplus_of_log_uniform };
  Kind kind = Kind::normal;
  double value = 0.02;  // the constant, the standard deviation around 0, or the least of what is drawn
  double high = 0;      // the largest of what is drawn
  static Init zeros() { return {Kind::constant, 0}; }
  static Init ones() { return {Kind::constant, 1}; }
  static Init normal(double stddev) { return {Kind::normal, stddev}; }
  // LeCun's: what `in` such numbers multiply and add up keeps its size.
  static Init lecun(std::int64_t in) { return normal(1 / std::sqrt(static_cast<double>(in))); }
  // The standard deviation of U(-1/sqrt(taps), 1/sqrt(taps)), a convolution's with few taps.
  static Init of_taps(std::int64_t taps) { return normal(1 / std::sqrt(3.0 * static_cast<double>(taps))); }
  // log u, u uniform in [low, high): how state space models start log A.
  static Init log_of_uniform(double low, double high) { return {Kind::log_of_uniform, low, high}; }
  // The number whose softplus is drawn from [low, high), its logarithm uniformly: how they start the bias of a
  // step size.
  static Init inverse_softplus_of_log_uniform(double low, double high) {
    return {Kind::inverse_softplus_of_log_uniform, low, high};
  }
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
};

// All parameters of one traced function, in the order in which they were first asked for.
class ParamTable {
 public:
  ParamTable(Graph& graph, DType dtype) : graph_(&graph), dtype_(dtype) {}
  // ConfigError if asked for with another shape. loc: the line of the parameter in messages.
  Tensor get(const std::string& name, const Shape& shape, Init init, Loc loc = Loc::current());
  const std::vector<ParamSpec>& specs() const { return specs_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  DType dtype() const { return dtype_; }

 private:
  Graph* graph_;
  DType dtype_;
  std::vector<ParamSpec> specs_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t> index_;
};

// A view of the table under a name prefix: params.at("layers.0")("W1", {..}) is "layers.0.W1".
class Params {
 public:
  // A parameter that is asked for, by its whole name -> what the model is to have for it.
  struct Request {
    std::string name;
    Shape shape;
    Init init;
    Loc loc;
  };
  using Answer = std::function<Tensor(const Request& request)>;

  explicit Params(ParamTable& table, std::string prefix = "") : table_(&table), prefix_(std::move(prefix)) {}
  Tensor operator()(const std::string& name, const Shape& shape, Init init = {},
                    Loc loc = Loc::current()) const {
    if (answer_) return answer_({prefix_ + name, shape, init, loc});
    return table_->get(prefix_ + name, shape, init, loc);
  }
  Params at(const std::string& name) const {
    Params out = *this;
    out.prefix_ += name + ".";
    return out;
  }
  // A view of which every request goes to `answer`, which may ask this one (get) for something else and change what it gives.
  Params through(Answer answer) const {
    require_function("params", "what answers requests", answer);
    Params out = *this;
    out.answer_ = std::move(answer);
    return out;
  }
  // By its whole name, as this view gives it.
  Tensor get(const Request& r) const {
    return answer_ ? answer_(r) : table_->get(r.name, r.shape, r.init, r.loc);
  }
  DType dtype() const { return table_->dtype(); }

 private:
  ParamTable* table_;
  std::string prefix_;
  Answer answer_;
};

// Starting values: element i of a parameter depends only on seed, name and i.
Array initial_value(const ParamSpec& spec, DType dtype, std::uint64_t seed, const Device& device = {});

}  // namespace nestgrad
