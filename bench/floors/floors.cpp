// floors: hand-fused programs for a few works of bench/compare. A floor is what one layer of one shape costs
// when everything is written by hand for it, with sizes known to the compiler: the anchor of our goals beside
// PyTorch and JAX. A server as bench/works.cpp is one; as the peers do, it reads the inputs that `works` wrote:
//
//   {"do": "prepare", "work": NAME, "dtype": "f32", "folder": F, ..sizes}  reads F/in.*.npy -> {"first": seconds}
//   {"do": "check"}                     runs once, writes F/out.NAME.npy -> {"outputs": [names]}
//   {"do": "time", "runs": n}           -> {"seconds": of one run}
//
// A failure is {"error": text}. One thread; x86-64 with AVX2 or AVX-512, whichever this file is compiled for.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/floors/attention.h"
#include "bench/floors/ttt_linear_core.h"
#include "bench/floors/ttt_linear_online.h"
#include "engine/io/npy.h"

using namespace nestgrad;
using namespace nestgrad::floors;

namespace {

using Json = nlohmann::json;

template <class Fn>
double seconds_of(Fn fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// F/in.NAME.npy -> NAME
Arrays read_inputs(const std::filesystem::path& folder, DType dtype) {
  Arrays out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("in.") && file.ends_with(".npy"))
      out.emplace(file.substr(3, file.size() - 7), read_npy(entry.path()).cast(dtype));
  }
  return out;
}

template <class T>
std::unique_ptr<Floor> make_floor(const Json& request, const Sizes& sizes, Arrays inputs) {
  const std::string work = request.at("work");
  if (work == "attention") return std::make_unique<Attention<T>>(sizes, std::move(inputs));
  if (work == "system" && request.at("system") == "ttt-linear") {
    if (sizes.chunk == 1) return std::make_unique<TttLinear<T, TttLinearOnline>>(sizes, std::move(inputs));
    return std::make_unique<TttLinear<T, TttLinearCore>>(sizes, std::move(inputs));
  }
  throw ConfigError(
      fmt::format("[floors] there is none for work '{}', system '{}'", work, request.value("system", "")));
}

class Server {
 public:
  Json answer(const Json& request) {
    const std::string what = request.at("do");
    if (what == "prepare") return prepare(request);
    if (!floor_) throw ConfigError("[floors] nothing is prepared");
    if (what == "check") return check();
    if (what == "time") return time(request.at("runs"));
    throw ConfigError(fmt::format("[floors] cannot do '{}'", what));
  }

 private:
  Json prepare(const Json& request) {
    floor_.reset();
    folder_ = request.at("folder").get<std::string>();
    const Sizes sizes{.batch = request.at("batch"),
                      .heads = request.at("heads"),
                      .dim = request.at("dim"),
                      .time = request.at("time"),
                      .chunk = request.at("chunk"),
                      .backward = request.value("backward", false)};
    const DType dtype = request.at("dtype") == "f64" ? DType::f64 : DType::f32;
    Arrays inputs = read_inputs(folder_, dtype);
    const double first = seconds_of([&] {
      floor_ = dtype == DType::f64 ? make_floor<double>(request, sizes, std::move(inputs))
                                   : make_floor<float>(request, sizes, std::move(inputs));
    });
    return {{"first", first}};
  }

  Json check() {
    floor_->run();
    std::vector<std::string> names;
    for (const auto& [name, numbers] : floor_->outputs()) {
      write_npy(folder_ / fmt::format("out.{}.npy", name), numbers);
      names.push_back(name);
    }
    return {{"outputs", names}};
  }

  Json time(int runs) {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < runs; ++i) floor_->run();
    });
    return {{"seconds", seconds / runs}};
  }

  std::unique_ptr<Floor> floor_;
  std::filesystem::path folder_;
};

}  // namespace

int main() {
  Server server;
  for (std::string line; std::getline(std::cin, line);) {
    Json out;
    try {
      out = server.answer(Json::parse(line));
    } catch (const std::exception& e) {
      out = {{"error", e.what()}};
    }
    std::cout << out.dump() << std::endl;
  }
}
