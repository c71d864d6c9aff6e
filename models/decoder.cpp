#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>

namespace nestgrad {

Decoder::Decoder(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t batch,
                 std::int64_t capacity, ttt::FormChoice form)
    : params_(std::move(params)), bounded_(config.ttt_layer_type == "attention"), capacity_(capacity) {
  if (bounded_ && capacity < 1)
    throw ConfigError(fmt::format(
        "[decoder] attention needs a capacity, the most tokens it will read; it is {}", capacity));
  trace(language_model(config, {.form = form, .attention_capacity = capacity}), dtype, batch);
}

Decoder::Decoder(const LogitsFn& model, StateDict params, DType dtype, std::int64_t batch)
    : params_(std::move(params)) {
  trace(model, dtype, batch);
}

void Decoder::trace(const LogitsFn& model, DType dtype, std::int64_t batch) {
  if (batch < 1) throw ConfigError(fmt::format("[decoder] the batch must be at least 1, it is {}", batch));
  if (!model) throw ConfigError("[decoder] the model is an empty function; give one from tokens to logits");
  const Spec token{DType::i32, {batch}};
  const auto trace_mode = [&](ttt::Stream::Mode mode) {
    return trace_model(dtype, {token}, [&](ParamTable& table, const std::vector<Tensor>& given) {
      ttt::Stream stream(mode);
      const Tensor logits = model(Params(table), reshape(given[0], {batch, 1}), stream);
      std::vector<Tensor> out;
      if (mode == ttt::Stream::Mode::step) out.push_back(reshape(logits, {batch, logits.dim(-1)}));
      state_names_.clear();
      for (const ttt::Stream::State& s : stream.states()) {
        state_names_.push_back(s.name);
        if (!s.next.defined())
          throw GraphError(fmt::format("[decoder] state '{}' is never carried on", s.name));
        out.push_back(mode == ttt::Stream::Mode::step ? s.next : s.value);
      }
      return out;
    });
  };
  const TracedModel start = trace_mode(ttt::Stream::Mode::initial);
  check_fits(start.params, params_, "the checkpoint");
  for (const std::string& name : state_names_)
    if (std::ranges::count(start.inputs, name) > 0)
      throw ConfigError(fmt::format(
          "[decoder] '{}' is a state of the stream and also a parameter or an input of the model; give the state "
          "another name",
          name));
  const std::vector<Array> initial =
      start.function(start.bind({Array::zeros(DType::i32, {batch})}, {&params_}));
  for (std::size_t i = 0; i < initial.size(); ++i) initial_.emplace(state_names_[i], initial[i]);

  model_ = trace_mode(ttt::Stream::Mode::step);
  plan_ = std::make_shared<Plan>(model_.function.plan());
  for (const std::string& name : state_names_)
    state_inputs_.push_back(
        static_cast<std::size_t>(std::ranges::find(model_.inputs, name) - model_.inputs.begin()));
  for (const Spec& spec : plan_->output_specs())
    outputs_.emplace_back(spec, outputs_.empty() ? Device::cpu() : plan_->device());  // logits are read here
  reset();
}

void Decoder::reset() { restore(initial_, 0); }

Array Decoder::step(const Array& tokens) {
  if (bounded_ && position_ >= capacity_)
    throw ConfigError(fmt::format(
        "[decoder] the attention cache holds {} tokens and is full; make a decoder with more capacity",
        capacity_));
  inputs_[0] = tokens;
  plan_->run(inputs_, outputs_);
  for (std::size_t i = 0; i < state_inputs_.size(); ++i)
    std::swap(inputs_[state_inputs_[i]], outputs_[i + 1]);
  ++position_;
  return outputs_[0].clone();
}

StateDict Decoder::state() const {
  StateDict out;
  for (std::size_t i = 0; i < state_names_.size(); ++i)
    out.emplace(state_names_[i], inputs_[state_inputs_[i]].clone().to(Device::cpu()));
  return out;
}

void Decoder::restore(const StateDict& state, std::int64_t position) {
  if (position < 0 || (bounded_ && position > capacity_))
    throw ConfigError(fmt::format("[decoder] position {} is outside of what this decoder can read{}",
                                  position, bounded_ ? fmt::format(" ({} tokens)", capacity_) : ""));
  StateDict own;
  for (const auto& [name, value] : state) {
    if (std::ranges::find(state_names_, name) == state_names_.end())
      throw ConfigError(fmt::format("[decoder] the state holds '{}', which this model does not carry", name));
    own.emplace(name, value.clone());
  }
  inputs_ = model_.bind({Array::zeros(DType::i32, model_.function.input_spec(0).shape)}, {&params_, &own});
  for (std::size_t i = 1; i < inputs_.size(); ++i) inputs_[i] = inputs_[i].to(plan_->device());
  position_ = position;
}

}  // namespace nestgrad
