// Another number of threads for a while.
#pragma once

#include "engine/core/threads.h"

namespace nestgrad::testing {

class Threads {  // for the length of a scope
 public:
  explicit Threads(int n) : before_(thread_count()) { set_thread_count(n); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace nestgrad::testing
