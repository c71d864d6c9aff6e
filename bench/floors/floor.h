// What a floor is to the server: a work with its arrays by name, as bench/works.cpp writes and names them.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>

#include "bench/floors/rows.h"
#include "engine/core/array.h"

namespace nestgrad::floors {

using Arrays = std::map<std::string, Array>;

struct Sizes {
  std::int64_t batch = 0, heads = 0, dim = 0, time = 0, chunk = 0;
  bool backward = false;
};
// Of things of which each sequence has so many.
inline std::int64_t of_all(const Sizes& sizes, std::int64_t each) { return sizes.batch * sizes.heads * each; }

// What a forward pass keeps of all sequences, in memory as the library takes it for arenas.
template <class T>
class Kept {
 public:
  explicit Kept(std::int64_t count)
      : memory_(DType::i32, {count * static_cast<std::int64_t>(sizeof(T) / sizeof(std::int32_t))}) {}
  T* data() { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Array memory_;
};

class Floor {
 public:
  virtual ~Floor() = default;
  virtual void run() = 0;
  const Arrays& outputs() const { return outputs_; }

 protected:
  Floor(Sizes sizes, Arrays inputs) : sizes_(sizes), inputs_(std::move(inputs)) {
    if (sizes.dim != kDim)
      throw ConfigError(
          fmt::format("[floors] dim is {}; these programs are written for {}", sizes.dim, kDim));
  }

  // The numbers of an input; of the output; of the gradient of an input.
  template <class T>
  const T* input(const std::string& name, const Shape& shape) {
    const auto found = inputs_.find(name);
    if (found == inputs_.end()) throw ConfigError(fmt::format("[floors] the folder has no in.{}.npy", name));
    if (found->second.shape() != shape)
      throw ShapeError(fmt::format("[floors] {} is {}, expected {}", name, to_string(found->second.shape()),
                                   to_string(shape)));
    return found->second.as<T>().data();
  }
  template <class T>
  T* output(const std::string& name, const Shape& shape) {
    Array& numbers = outputs_[name];
    numbers = Array::zeros(dtype_of<T>(), shape);
    return numbers.as<T>().data();
  }
  template <class T>
  T* gradient(const std::string& name) {
    return sizes_.backward ? output<T>("grad." + name, inputs_.at(name).shape()) : nullptr;
  }
  void clear(const std::string& name) {
    Array& a = outputs_.at(name);
    std::memset(a.data(), 0, a.bytes());
  }

  const Sizes sizes_;

 private:
  Arrays inputs_, outputs_;
};

}  // namespace nestgrad::floors
