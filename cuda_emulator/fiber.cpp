#include "cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <new>

#include "cuda_emulator/sanitizers.h"

namespace nestgrad::emulator {

namespace {

constexpr std::size_t kPage = 4096, kStack = 256 * 1024;  // the pages that are never touched cost nothing
constexpr unsigned kNoSync = 1;                           // switching fibers orders no memory accesses

thread_local Fiber* current = nullptr;

#ifdef NESTGRAD_EMULATOR_USES_UCONTEXT

void switch_context(ucontext_t* from, ucontext_t* to) { swapcontext(from, to); }

void prepare_context(ucontext_t* context, char* stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

#else

// Pushes the registers that a call preserves, notes the stack pointer, and pops those of the other side.
[[gnu::naked, gnu::noinline]] void switch_stack(void** /*from*/, void* /*to*/) {
  asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

void switch_context(void** from, void** to) { switch_stack(from, *to); }

void prepare_context(void** context, char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + kStack);
  *--top = nullptr;                         // where a walk over the stack ends
  *--top = reinterpret_cast<void*>(entry);  // what the switch returns to
  for (int preserved = 0; preserved < 6; ++preserved) *--top = nullptr;
  *context = top;
}

#endif

}  // namespace

Fiber::Fiber() {
  void* pages = mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  mprotect(pages, kPage, PROT_NONE);
  stack_ = static_cast<char*>(pages) + kPage;
  if (finds_races()) thread_of_race_detector_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(stack_, kStack);
  if (finds_races()) {
    if (!finished_) {  // its accesses are ordered before what the host does next
      void* host = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(thread_of_race_detector_, kNoSync);
      __tsan_switch_to_fiber(host, 0);
    }
    __tsan_destroy_fiber(thread_of_race_detector_);
  }
  munmap(stack_ - kPage, kPage + kStack);
}

void Fiber::start(void (*function)()) {
  function_ = function;
  finished_ = false;
  // The frames in which the last function ended were never left: what they forbade is not forbidden to this one.
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(stack_ + kStack - kPage, kPage);
  prepare_context(&here_, stack_, enter);
}

bool Fiber::resume() {
  current = this;
  void* fake_stack = nullptr;
  if (finds_races()) {
    host_of_race_detector_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(thread_of_race_detector_, kNoSync);
  }
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&fake_stack, stack_, kStack);
  switch_context(&host_, &here_);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
  current = nullptr;
  return !finished_;
}

void Fiber::enter() {
  Fiber& self = *current;
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(nullptr, &self.host_stack_, &self.host_stack_size_);
  self.function_();
  self.leave(true);
}

void Fiber::leave(bool finished) {
  finished_ = finished;
  void* fake_stack = nullptr;
  if (finds_races()) __tsan_switch_to_fiber(host_of_race_detector_, kNoSync);
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(finished ? nullptr : &fake_stack, host_stack_, host_stack_size_);
  switch_context(&here_, &host_);
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(fake_stack, &host_stack_, &host_stack_size_);
}

void Fiber::give_way() { current->leave(false); }

bool Fiber::running() { return current != nullptr; }

}  // namespace nestgrad::emulator
