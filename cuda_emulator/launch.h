// Launching: the arguments are copied at once, the kernel is queued.
#pragma once

#include <functional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "include/cuda_runtime_api.h"

namespace nestgrad::emulator {

// One kernel with its arguments and extents.
struct Launch {
  const void* kernel;
  const std::type_info* type;  // of the kernel, for texts
  dim3 grid, block;
  std::size_t shared_bytes;
  std::vector<const void*> pointers;  // among the arguments
  std::function<void()> call;         // what one thread does
};

cudaError_t queue_launch(Launch launch, cudaStream_t stream);

template <class... P>
constexpr std::size_t argument_bytes() {
  std::size_t end = 0;
  ((end = (end + alignof(P) - 1) / alignof(P) * alignof(P) + sizeof(P)), ...);
  return end;
}

template <class P>
void note_pointer(std::vector<const void*>& pointers, const P& argument) {
  if constexpr (std::is_pointer_v<P> && !std::is_function_v<std::remove_pointer_t<P>>)
    pointers.push_back(argument);
}

}  // namespace nestgrad::emulator

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  static_assert(nestgrad::emulator::argument_bytes<P...>() <= 4096, "a kernel takes 4096 bytes of arguments");
  static_assert((std::is_trivially_copyable_v<P> && ...), "the arguments of a kernel are copied as bytes");
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  nestgrad::emulator::Launch launch{
      reinterpret_cast<const void*>(kernel), &typeid(void(P...)), grid, block, shared_bytes, {}, {}};
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const std::tuple<P...> copy(*static_cast<P*>(arguments[I])...);
    (nestgrad::emulator::note_pointer(launch.pointers, std::get<I>(copy)), ...);
    launch.call = [kernel, copy] { std::apply(kernel, copy); };
  }
  (std::index_sequence_for<P...>());
  return nestgrad::emulator::queue_launch(std::move(launch), stream);
}

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(P...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
