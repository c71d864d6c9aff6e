// The promises: bytes arrive where they were sent to, in order, for any number of processes; a process that ends, is silent or
// does something else is named, and no other waits for it longer than the stall limit.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/core/index.h"
#include "engine/processes/group.h"
#include "engine/processes/mpi.h"
#include "engine/processes/stall.h"
#include "engine/processes/threads.h"
#include "engine/processes/transport.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Bytes bytes(const std::string& text) {
  const auto span = std::as_bytes(std::span(text));
  return {span.begin(), span.end()};
}
std::string text(const Bytes& b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }
std::vector<std::string> texts(const std::vector<Bytes>& all) {
  std::vector<std::string> out;
  for (const Bytes& b : all) out.push_back(text(b));
  return out;
}
// Of other length for each pair.
std::string letter(int from, int to) { return std::string(uz(3 * from + to), static_cast<char>('a' + from)); }

constexpr std::chrono::milliseconds kSoon{200};

}  // namespace

TEST_CASE("processes: each collective brings what its text says, for 1 to 5 of them, to all") {
  for (int size = 1; size <= 5; ++size) {
    CAPTURE(size);
    std::atomic<int> right{0};
    run_as_processes(size, [&](Transport& all) {
      const int me = all.rank();
      bool fine = all.size() == size;
      std::vector<std::string> gathered;
      std::vector<Bytes> parts;
      for (int r = 0; r < size; ++r) gathered.push_back(letter(r, 0)), parts.push_back(bytes(letter(me, r)));
      for (int round = 0; round < 3; ++round) {
        fine = fine && texts(all.all_gather(bytes(letter(me, 0)))) == gathered;
        const std::vector<std::string> to_me = texts(all.all_to_all(parts));
        for (int r = 0; r < size; ++r) fine = fine && to_me[uz(r)] == letter(r, me);
        for (int root = 0; root < size; ++root) {
          std::string shared = me == root ? "root's" : "------";
          all.broadcast(std::as_writable_bytes(std::span(shared)), root);
          fine = fine && shared == "root's";
          const std::vector<std::string> at_root = texts(all.gather(bytes(letter(me, 0)), root));
          fine = fine && (me == root ? at_root == gathered : at_root.empty());
        }
        all.check_same("the same", "settings");
      }
      right += fine ? 1 : 0;
    });
    CHECK(right == size);
  }
  OneProcess alone;
  CHECK(texts(alone.all_gather(bytes("x"))) == std::vector<std::string>{"x"});
  const Transport::Send send{0, {}};
  CHECK(contains(message_of<ProcessError>([&] { alone.exchange(std::span(&send, 1), {}); }), "alone"));
}

TEST_CASE("processes: no one leaves a barrier before all have come") {
  constexpr int kSize = 4;
  std::atomic<int> came{0}, early{0};
  run_as_processes(kSize, [&](Transport& all) {
    for (int round = 1; round <= 50; ++round) {
      ++came;
      all.barrier();
      if (came < round * kSize) ++early;
      all.barrier();
    }
  });
  CHECK(early == 0);
}

TEST_CASE("processes: one that ends, is silent, or says something else is named") {
  const auto failed = [](int size, auto fn) {
    return message_of<ProcessError>([&] { run_as_processes(size, fn, kSoon); });
  };
  CHECK(contains(failed(3,
                        [](Transport& all) {
                          if (all.rank() != 1) all.barrier();
                        }),
                 "rank 1 has ended"));
  std::atomic<int> told{0};
  const std::string silent = failed(2, [&](Transport& all) {
    if (all.rank() == 0) {
      try {
        all.barrier();
      } catch (...) {
        ++told;
        throw;
      }
    }
    while (told == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  CHECK(contains(silent, "rank 1 has been silent for longer than the stall limit; rank 0 waited"));
  const std::string lengths = failed(2, [](Transport& all) {
    std::string mine(all.rank() == 0 ? 3 : 5, 'x');
    all.broadcast(std::as_writable_bytes(std::span(mine)));
  });
  CHECK(contains(lengths, "rank 0 sent 3 bytes, and rank 1 waited for 5"));
  const std::string other = failed(
      4, [](Transport& all) { all.check_same(all.rank() % 2 == 0 ? "seed 0" : "seed 1", "settings"); });
  CHECK(contains(other, "ranks 1 and 3 have other settings"));
  CHECK(contains(failed(2, [](Transport& all) { all.all_to_all({}); }), "0 parts were given to 2 processes"));
  // Ranks that there are not.
  std::string mine = "x";
  const auto here = std::as_writable_bytes(std::span(mine));
  for (const int root : {-1, 2, 5}) {
    const std::string said = fmt::format("has rank {} for its root, and there are ranks 0 to 1", root);
    CHECK(contains(failed(2, [&](Transport& all) { all.broadcast({}, root); }), said));
    CHECK(contains(failed(2, [&](Transport& all) { all.gather({}, root); }), said));
    CHECK(contains(failed(1, [&](Transport& all) { all.gather({}, root); }), "and there are ranks 0 to 0"));
    CHECK(contains(failed(2,
                          [&](Transport& all) {
                            const Transport::Send send{root, here};
                            if (all.rank() == 0) all.exchange(std::span(&send, 1), {});
                          }),
                   fmt::format("rank 0 exchanges bytes to rank {}, and the others", root)));
    CHECK(contains(failed(2,
                          [&](Transport& all) {
                            const Transport::Receive receive{root, here};
                            if (all.rank() == 0) all.exchange({}, std::span(&receive, 1));
                          }),
                   fmt::format("rank 0 exchanges bytes from rank {}, and the others", root)));
    CHECK(contains(message_of<ProcessError>([&] { RankThreads(2, nullptr).rank(root); }),
                   "no thread of this process"));
  }
  CHECK(contains(failed(2,
                        [&](Transport& all) {
                          const Transport::Send send{all.rank(), here};
                          all.exchange(std::span(&send, 1), {});
                        }),
                 "itself"));
  CHECK(contains(message_of<ProcessError>([] { ProcessGroup(nullptr); }), "was given no transport"));
  // What a process threw comes before what the others say of it.
  CHECK(contains(message_of<ValueError>([] {
                   run_as_processes(3, [](Transport& all) {
                     if (all.rank() == 2) throw ValueError("mine");
                     all.barrier();
                   });
                 }),
                 "mine"));
}

TEST_CASE("processes: parts differ by one at most, cover all, and ranks are told as one would say them") {
  for (std::int64_t count = 0; count < 30; ++count)
    for (int parts = 1; parts <= 7; ++parts) {
      std::int64_t end = 0;
      for (int i = 0; i < parts; ++i) {
        const IndexRange r = part_of(count, i, parts);
        CHECK(r.begin == end);
        CHECK(r.size() >= count / parts);
        CHECK(r.size() <= count / parts + 1);
        end = r.end;
      }
      CHECK(end == count);
    }
  CHECK(ranks_text({2}) == "rank 2");
  CHECK(ranks_text({1, 3}) == "ranks 1 and 3");
  CHECK(ranks_text({0, 1, 3}) == "ranks 0, 1 and 3");
}

TEST_CASE("processes: a stall limit is a number of seconds, and holds of one process and its threads too") {
  for (const char* wrong : {"soon", "0", "-1", "nan", "inf", "1e9", "5s", " "}) {
    setenv("NESTGRAD_STALL_LIMIT", wrong, 1);
    CHECK(contains(message_of<ConfigError>([] { asked_stall_limit(); }),
                   fmt::format("NESTGRAD_STALL_LIMIT is '{}'; it must be a number of seconds", wrong)));
  }
  setenv("NESTGRAD_STALL_LIMIT", "7.5", 1);
  const std::shared_ptr<Transport> all =
      open_processes();  // the only call of these tests: later ones give the same
  CHECK(all->stall_limit() == std::chrono::milliseconds(7500));
  CHECK(RankThreads(3, all).rank(1)->stall_limit() == std::chrono::milliseconds(7500));
  unsetenv("NESTGRAD_STALL_LIMIT");
  CHECK(asked_stall_limit() == std::chrono::minutes(10));
}

TEST_CASE("processes: what the first one gives, or throws, comes to all") {
  std::string given[3], thrown[3];
  run_as_processes(3, [&](Transport& all) {
    const auto rank = static_cast<std::size_t>(all.rank());
    given[rank] = all.from_first([] { return std::string("read once"); });
    try {
      all.on_first([] { throw IoError("no such file"); });
    } catch (const Error& e) {
      thrown[rank] = e.what();
    }
  });
  for (const std::string& text : given) CHECK(text == "read once");
  CHECK(thrown[0] == "no such file");
  for (const std::size_t other : {1, 2}) CHECK(thrown[other] == "[processes] rank 0: no such file");
}

TEST_CASE("processes: what is thrown by the first one comes to all, whatever it is") {
  std::string thrown[3];
  run_as_processes(3, [&](Transport& all) {
    try {
      all.on_first([] { throw 3; });
    } catch (const int number) {
      thrown[0] = fmt::format("the number {}", number);
    } catch (const ProcessError& e) {
      thrown[all.rank()] = e.what();
    }
  });
  CHECK(thrown[0] == "the number 3");
  for (const std::size_t other : {1, 2})
    CHECK(thrown[other] == "[processes] rank 0: something was thrown that is no std::exception");
}

TEST_CASE("processes: no one takes the first for silent while it works for all, and all go on after it") {
  static constexpr std::chrono::milliseconds kLimit{400}, kWork{1000};
  for (const int size : {2, 5}) {
    CAPTURE(size);
    std::atomic<int> right{0};
    run_as_processes(
        size,
        [&](Transport& all) {
          const std::string made = all.from_first([] {
            std::this_thread::sleep_for(kWork);
            return std::string("made in peace");
          });
          const std::vector<std::string> after = texts(all.all_gather(bytes(letter(all.rank(), 0))));
          if (made == "made in peace" && after.back() == letter(all.size() - 1, 0)) ++right;
        },
        kLimit);
    CHECK(right == size);
  }
  // Ranks that are threads of processes, which take turns, do so too.
  std::atomic<int> right{0};
  run_as_processes(
      2,
      [&](Transport& all) {
        RankThreads ranks(5, std::shared_ptr<Transport>(&all, [](Transport*) {}), 1);
        ranks.run([&](Transport& rank) {
          rank.on_first([] { std::this_thread::sleep_for(kWork); });
          if (rank.all_gather({}).size() == 5) ++right;
        });
      },
      kLimit);
  CHECK(right == 5);
}

TEST_CASE("processes: nothing is written where another gave up after it had sent") {
  // Rank 0 was frozen, say, and goes on with what it receives of one that is gone.
  for (int gone = 1; gone < 3; ++gone) {
    std::atomic<bool> written{false};
    CHECK_THROWS_AS(run_as_processes(
                        3,
                        [&](Transport& all) {
                          all.gather(bytes("the moments"));
                          if (all.rank() == gone) throw ProcessError("rank 0 has been silent for 3 s");
                          all.on_first([&] { written = true; });
                        },
                        kSoon),
                    ProcessError);
    CHECK_FALSE(written);
  }
}

TEST_CASE(
    "processes: a thread that gave up takes its messages along, and its process exchanges nothing any more") {
  struct OfTwo final : Transport {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    std::string description() const override { return "the first of two"; }
    void exchange(std::span<const Send>, std::span<const Receive>) override { ++exchanges; }
    int exchanges = 0;
  };
  const auto two = std::make_shared<OfTwo>();
  RankThreads threads(4, two);  // ranks 0 and 1 are here
  for (int r : {0, 1}) threads.rank(r)->set_stall_limit(std::chrono::milliseconds(20));
  std::atomic<int> refused{0};
  std::atomic<bool> gave_up{false};
  CHECK(contains(message_of<ProcessError>([&] {
                   threads.run([&](Transport& all) {
                     while (all.rank() == 1 && !gave_up)
                       std::this_thread::sleep_for(std::chrono::milliseconds(1));
                     try {
                       all.barrier();
                     } catch (const ProcessError&) {
                       gave_up = true, ++refused;
                       throw;
                     }
                   });
                 }),
                 "rank 0 waited for the other threads of its process for longer than the stall limit"));
  CHECK(refused == 2);
  CHECK(two->exchanges == 0);
}

TEST_CASE(
    "processes: what threads have for another process goes in the order of their ranks, whoever comes first") {
  struct First final : Transport {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    std::string description() const override { return "the first of two"; }
    void exchange(std::span<const Send> out, std::span<const Receive>) override {
      for (const Send& s : out) sent.push_back(text({s.bytes.begin(), s.bytes.end()}));
    }
    std::vector<std::string> sent;
  };
  const auto first = std::make_shared<First>();
  RankThreads threads(6, first);  // ranks 0, 1 and 2 are here
  REQUIRE(threads.own().size() == 3);
  std::atomic<int> next{2};
  threads.run([&](Transport& all) {
    while (all.rank() != next) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Bytes a = bytes(fmt::format("{} to 3", all.rank())), b = bytes(fmt::format("{} to 4", all.rank()));
    const std::jthread after([&next, turn = all.rank() - 1] {  // once this one waits for the others
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      next = turn;
    });
    const Transport::Send out[] = {{4, b}, {3, a}};
    all.exchange(out, {});
  });
  CHECK(first->sent == std::vector<std::string>{"0 to 3", "0 to 4", "1 to 3", "1 to 4", "2 to 3", "2 to 4"});
}

TEST_CASE("processes: what started this one is read from the environment, and a wrong wish is refused") {
  struct Set {
    Set(const char* n, const char* value) : name(n) { setenv(name, value, 1); }
    ~Set() { unsetenv(name); }
    const char* name;
  };
  CHECK(launch().mpi.empty());
  {
    const Set size("OMPI_COMM_WORLD_SIZE", "4"), local("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        rank("OMPI_COMM_WORLD_RANK", "3"), here("OMPI_COMM_WORLD_LOCAL_RANK", "1");
    const Launch l = launch();
    CHECK(l.mpi == "openmpi");
    CHECK(l.size == 4);
    CHECK(l.local == 2);
    CHECK(l.rank == 3);
    CHECK(l.local_rank == 1);
    const Set none("NESTGRAD_MPI", "none");
    CHECK(launch().size == 1);
  }
  {
    const Set size("PMI_SIZE", "3"), rank("PMI_RANK", "2"), local("MPI_LOCALNRANKS", "3"),
        here("MPI_LOCALRANKID", "2");
    CHECK(launch().local_rank == 2);
    CHECK(launch().mpi == "mpich");
    CHECK(launch().rank == 2);
    CHECK(launch().local == 3);
  }
  const Set wrong("NESTGRAD_MPI", "pvm");
  CHECK(contains(message_of<ConfigError>([] { launch(); }), "it must be openmpi, mpich or none"));
}
