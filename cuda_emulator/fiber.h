// A fiber: a function with a stack of its own, which gives way and is resumed where it was.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(NESTGRAD_EMULATOR_UCONTEXT)
#define NESTGRAD_EMULATOR_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace nestgrad::emulator {

// Used by one host thread at a time. A stack that overflows meets a closed page. A fiber that is destroyed
// while its function waits runs no destructors on its stack.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(void (*function)());  // to be called at the next resume()
  bool resume();                   // until the function gives way (true) or returns (false)
  static void give_way();          // back to resume(); only within a fiber
  static bool running();           // whether this host thread is within a fiber

 private:
#ifdef NESTGRAD_EMULATOR_USES_UCONTEXT
  using Context = ucontext_t;
#else
  using Context = void*;  // a stack pointer, the registers are on the stack
#endif
  static void enter();
  void leave(bool finished);

  char* stack_;
  Context here_{}, host_{};
  void (*function_)() = nullptr;
  bool finished_ = true;
  void* thread_of_race_detector_ = nullptr;
  void* host_of_race_detector_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_size_ = 0;
};

}  // namespace nestgrad::emulator
