// The promise: a program that links the installed archive and names no op has them all, and may use them before
// main begins; and its own macros are what they were.
#define UNARY 1
#define BINARY 2
#define TERNARY 3
#define SYSTEM 4
#include <nestgrad/nestgrad.h>
static_assert(UNARY == 1 && BINARY == 2 && TERNARY == 3 && SYSTEM == 4);

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace nestgrad;

namespace {

const Function kSlope = trace([](Tensor x) { return grad(sum(square(x)), x); }, Spec{DType::f64, {2}});
const std::string kForm = ttt::explain(ttt::system_named("lact"), {}).str();
const double kBeforeMain = kSlope({Array::of({3, 4}, {2})})[0].at(1);

// Runs the row on inputs that its samples draw; false if it gives no number.
bool runs(const Op& op, const OpSample& sample) {
  std::vector<Spec> specs;
  std::vector<Array> in;
  for (const OpSample::Input& input : sample.inputs) {
    specs.push_back({input.dtype.value_or(DType::f64), input.shape});
    const double middle = (input.low + input.high) / 2;
    in.push_back(Array::full(specs.back().dtype, input.shape, input.dtype ? std::floor(middle) : middle));
  }
  const Function f = trace(
      [&](const std::vector<Tensor>& x) { return std::vector<Tensor>{emit(op, x, sample.attrs)}; }, specs);
  return f(in)[0].size() > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (std::strcmp(NESTGRAD_VERSION, PACKAGE_VERSION) != 0)
    return std::printf("the headers are of version %s, the package of %s\n", NESTGRAD_VERSION,
                       PACKAGE_VERSION),
           1;
  const auto rows = static_cast<std::size_t>(std::atoi(argv[1]));
  std::size_t run = 0;
  for (const Op* op : op_table()) {
    if (find_op(op->name) != op) return std::printf("%s is not found by its name\n", op->name.data()), 1;
    if (!op->samples) continue;
    for (const OpSample& sample : op->samples())
      if (sample.error.empty() && !runs(*op, sample))
        return std::printf("%s gives nothing\n", op->name.data()), 1;
    ++run;
  }
  std::printf("%zu rows, %zu of them run; before main the slope was %g\n", op_table().size(), run,
              kBeforeMain);
  return op_table().size() == rows && run + 10 > rows && kBeforeMain == 8 && !kForm.empty() ? 0 : 1;
}
