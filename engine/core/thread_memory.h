// Memory that each thread works in: one block for each use, made when a thread first needs it and freed when the thread ends. Threads do
// not carry it from their start, so that they can be made with small stacks: what is thread_local takes its place from these.
//
//   std::byte* memory = memory_of_products;
//   if (!memory) memory = make_thread_memory(memory_of_products, kBytes, "products");
#pragma once

#include <cstddef>

namespace nestgrad {

// Of this thread; null before the first use. Each is always made in one size.
extern constinit thread_local std::byte* memory_of_products;  // ops/kernels/gemm.cpp
extern constinit thread_local std::byte* memory_of_clusters;  // engine/plan/cluster.cpp

// Makes it, at a multiple of 64 bytes. DeviceError if the system has none. what: for the message.
std::byte* make_thread_memory(std::byte*& memory, std::size_t bytes, const char* what);

}  // namespace nestgrad
