#include "engine/core/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("every part is done once, by a worker of the number asked for") {
  for (int workers : {1, 2, 5})
    for (int parts : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(parts));
      std::atomic<bool> fits = true;
      in_parallel(parts, workers, [&](int part, int worker) {
        ++done[static_cast<std::size_t>(part)];
        if (worker < 0 || worker >= workers) fits = false;
      });
      CHECK(fits);
      CHECK(std::ranges::all_of(done, [](int n) { return n == 1; }));
    }
}

TEST_CASE("one worker does one part at a time") {
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> alone = true;
  in_parallel(200, 4, [&](int, int worker) {
    if (++busy[static_cast<std::size_t>(worker)] != 1) alone = false;
    std::this_thread::yield();
    --busy[static_cast<std::size_t>(worker)];
  });
  CHECK(alone);
}

TEST_CASE("parts within parts, and calls from several threads, are done by those who ask") {
  std::atomic<int> done = 0;
  const auto nested = [&] {
    in_parallel(8, 3, [&](int, int) { in_parallel(5, 3, [&](int, int worker) { done += worker == 0; }); });
  };
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < 3; ++i) callers.emplace_back(nested);
  }
  CHECK(done == 3 * 8 * 5);
}

TEST_CASE("a thread that shares no work does all parts, in order, until it shares again") {
  std::vector<int> parts;
  std::atomic<int> others = 0;
  {
    const SingleThreadScope alone;
    const SingleThreadScope still;
    in_parallel(50, 4, [&](int part, int worker) { parts.push_back(part), others += worker != 0; });
  }
  CHECK(others == 0);
  CHECK(std::ranges::is_sorted(parts));
  CHECK(parts.size() == 50);
  // Each waits for the other: only two threads can end this.
  std::atomic<int> arrived = 0;
  in_parallel(2, 2, [&](int, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("the exception of the first part that fails arrives, and the pool goes on working") {
  for (int workers : {1, 3}) {
    const std::string why = message_of<ValueError>([&] {
      in_parallel(20, workers, [](int part, int) {
        if (part % 7 == 3) throw ValueError(fmt::format("part {}", part));
      });
    });
    CHECK(why == "part 3");
    std::atomic<int> done = 0;
    in_parallel(20, workers, [&](int, int) { ++done; });
    CHECK(done == 20);
  }
}

TEST_CASE("a number of threads that makes no sense is refused") {
  for (int threads : {0, -1, 257})
    CHECK(contains(message_of<ConfigError>([&] { set_thread_count(threads); }), "it must be 1 to 256"));
  const int before = thread_count();
  set_thread_count(3);
  CHECK(thread_count() == 3);
  set_thread_count(before);
}

// ThreadSanitizer lets no child of a program with threads start any.
#ifndef NESTGRAD_SANITIZED_THREADS
TEST_CASE(
    "a child of fork() has threads of its own: plans have their bits there, new ones and those that it found") {
  const Threads three(3);
  const Spec spec = f32({500, 500});
  const Function f =
      trace([](Tensor a, Tensor b) { return exp(matmul(tanh(matmul(a, b)), b) * 0.01); }, spec, spec);
  const Arrays in{random(spec, 1), random(spec, 2)};
  Plan plan = f.plan();
  const Arrays expected = plan.run(in);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(120);  // ends a child that hangs
    const bool found = same_bits(plan.run(in), expected), anew = same_bits(f.plan().run(in), expected);
    std::atomic<int> arrived = 0;  // each waits for the other: there are two threads
    in_parallel(2, 2, [&](int, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    int status = -1;  // and so it is with a child of the child
    const pid_t next = fork();
    if (next == 0) _exit(same_bits(plan.run(in), expected) ? 0 : 1);
    waitpid(next, &status, 0);
    _exit(!found ? 1 : !anew ? 2 : status != 0 ? 3 : 0);
  }
  CHECK(same_bits(plan.run(in), expected));
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif
