#include "tests/golden_check/comparison.h"

#include <fmt/format.h>

#include "tests/golden_check/golden_file.h"

namespace nestgrad {

Comparison::Comparison(const SafeTensors& file, std::string path, std::set<std::string> inputs)
    : file_(file), path_(std::move(path)), seen_(std::move(inputs)) {
  for (const std::string& name : names_under(file, "param.")) seen_.insert("param." + name);
}

bool Comparison::has(const std::string& name) {
  seen_.insert(name);
  if (file_.tensors.contains(name)) return true;
  report_.absent.push_back(name);
  return false;
}

void Comparison::loss(const Array& ours) {
  if (!has("loss")) return;
  const bool scalar = find(file_, "loss", path_).spec().rank() == 0;
  report_.loss = true;
  report_.loss_error = error_of(ours.reshaped(scalar ? Shape{} : Shape{1}), file_, "loss", path_);
}

void Comparison::output(const Array& ours, const std::string& name) {
  if (!has(name)) return;
  ++report_.outputs;
  note(error_of(ours, file_, name, path_), name, report_.output_error, report_.worst_output_name);
}

void Comparison::gradient(const Array& ours, const std::vector<std::string>& names) {
  ++report_.inputs;
  bool there = false;
  for (const std::string& name : names) {
    if (!file_.tensors.contains("grad." + name)) continue;
    there = true;
    seen_.insert("grad." + name);
    note(gradient_error_of(ours, file_, name, path_), name, report_.worst_grad_error,
         report_.worst_grad_name);
  }
  report_.gradients += there;
}

GoldenReport Comparison::done() {
  if (!report_.loss && report_.outputs + report_.gradients == 0)
    throw IoError(fmt::format("{}: it has no tensor '{}', and no gradients: there is nothing to compare",
                              path_, fmt::join(report_.absent, "', '")));
  report_.unread = unread_inputs(file_, seen_, path_);
  return report_;
}

}  // namespace nestgrad
