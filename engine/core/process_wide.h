// ProcessWide: the one object of its type that a process has, for code that runs until the process ends.
//
//   Pool& pool = ProcessWide<Pool>::get();
//
// It is made when it is first asked for and never destroyed: functions may also be called by destructors of static objects and by what
// was given to atexit(), in whatever order these run. T::end(), where there is one, is called when the program ends, or when the shared
// library that holds it is unloaded: it ends T's threads, and T does without them from then on. After fork() the child has an object of its
// own, as threads do not come along, and what they had locked stays locked.
//
// What has no threads and no lock that one of them holds is written `static auto& all = *new ..;` inside of a function, to the same end.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <new>

namespace nestgrad {

template <class T>
class ProcessWide {
 public:
  static T& get() {
    Held* const known = now_.load(std::memory_order_acquire);
    return known ? known->object : make();
  }

 private:
  struct Held {
    T object;
    Held* before = nullptr;  // the parent's, which stays where it is
  };
  struct AtEnd {
    ~AtEnd() {
      if constexpr (requires(T & t) { t.end(); })
        if (Held* const known = now_.load()) known->object.end();
    }
  };

  static T& make() {
    [[maybe_unused]] static const bool heeds_fork = [] {
      if (pthread_atfork(nullptr, nullptr, leave_to_parent) != 0) throw std::bad_alloc();
      return true;
    }();
    static const AtEnd at_end;
    auto fresh = std::make_unique<Held>();
    Held* known = nullptr;  // another thread may have made one meanwhile
    if (now_.compare_exchange_strong(known, fresh.get())) known = fresh.release();
    return known->object;
  }

  // In a child, before fork() returns.
  static void leave_to_parent() {
    Held* const parents = now_.exchange(nullptr);
    if (!parents) return;
    parents->before = left_;
    left_ = parents;
  }

  static constinit inline std::atomic<Held*> now_ = nullptr;
  static constinit inline Held* left_ = nullptr;
};

}  // namespace nestgrad
