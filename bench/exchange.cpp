// What messages between two processes cost: for bench/scale, started by mpirun as two processes. Rank 0 prints one JSON object: the
// time of a message of 8 bytes, in seconds, and the bytes in a second of large ones, which go both ways at once.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/processes/mpi.h"
#include "programs/program.h"

using namespace nestgrad;

namespace {

// Seconds of one exchange of so many bytes each way, the median of many.
double seconds_of(Transport& all, std::size_t bytes, int times) {
  const int other = 1 - all.rank();
  Bytes out(bytes), in(bytes);
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    all.barrier();
    const auto start = std::chrono::steady_clock::now();
    const Transport::Send send{other, out};
    const Transport::Receive receive{other, in};
    all.exchange(std::span(&send, 1), std::span(&receive, 1));
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + times / 2);
  return seconds[static_cast<std::size_t>(times / 2)];
}

void measure() {
  const std::shared_ptr<Transport> all = open_processes();
  if (all->size() != 2) throw CLI::ValidationError("start two processes: mpirun -n 2 exchange");
  const double small = seconds_of(*all, 8, 2000);
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  const double large = seconds_of(*all, kLarge, 20);
  if (all->rank() == 0)
    fmt::print("{{\"latency\": {}, \"bandwidth\": {}, \"mpi\": \"{}\"}}\n", small,
               static_cast<double>(kLarge) / (large - small), all->description());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures messages between two processes: mpirun -n 2 exchange", "exchange"};
  return run_program(argc, argv, app, measure, Processes::several);
}
