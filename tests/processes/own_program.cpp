// A program of one's own that several processes share, as models/training.h shows one, for tests/processes/mpi_runs.py. Its argument says how
// it ends: "plain" from main; "error" by an error of rank 1; "closed" after a call that comes too late.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "nestgrad.h"

using namespace nestgrad;

namespace {

void train(bool fails) {
  Training training({.seed = 0, .grains = 4, .processes = open_processes()});
  const Spec grain{DType::f32, {2, 3}};
  training.add({grain}, [](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{mean(square(matmul(in[0], table.get("w", {3, 3}, Init::normal(1)))))};
  });
  for (std::uint64_t step = 0; step < 5; ++step) {
    if (fails && step == 2 && training.processes().rank() == 1) throw ValueError("mine");
    training.step_grains(
        0,
        [&](std::int64_t g) {
          return std::vector<Array>{random_normal(grain, 0, 1, step, static_cast<std::uint64_t>(g))};
        },
        0.01);
  }
  if (training.is_first()) std::printf("trained %.9g\n", training.parameters().at("w").at(0));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "plain";
  try {
    train(how == "error");
    if (how == "closed") {
      close_processes();
      close_processes();  // nothing more to do
      open_processes()->barrier();
    }
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
    return how == "closed" ? 0 : 3;
  }
  return 0;
}
