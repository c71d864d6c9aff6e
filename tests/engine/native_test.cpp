// The promise: loops that a compiler made have the bits of those that the library has, whatever the shapes, the
// instruction set and the number of threads; and a compiler that is missing, fails, hangs or writes rubbish, or
// a cache that is damaged or not the user's, costs nothing but the speed.
#include "engine/plan/native.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "autograd/scan.h"
#include "engine/core/threads.h"
#include "engine/plan/loops_ahead.h"
#include "engine/plan/native_library.h"
#include "ops/kernels.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace fs = std::filesystem;

namespace {

// An environment variable for a while. A compiler in the background reads the environment, so it ends first.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    wait_for_compiler();
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    wait_for_compiler();
    if (before_) setenv(name_, before_->c_str(), 1);
    else unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

const std::string kText = "extern \"C\" int answer() { return 42; }";
int answer_of(const NativeLibrary& library) {
  return library.handle ? reinterpret_cast<int (*)()>(library.symbol("answer"))() : -1;
}

// A file that takes the place of the compiler.
std::string script(const fs::path& folder, const std::string& text) {
  const fs::path path = folder / "cc";
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  chmod(path.c_str(), 0700);
  return path;
}

// Sums, maxima and elementwise ops between them, rows of every length, whole and broadcast operands.
Tensors loops_of(const Tensors& in) {
  Tensors out;
  for (const Tensor& x : in) {
    const Tensor row = slice(x, 0, 0, 1), column = slice(x, -1, 0, 1);
    out.push_back(softmax(x * 2.0, -1));
    out.push_back(layer_norm(x, row, column, 1e-5));
    out.push_back(exp(x) * row + tanh(x - column) * max(x, {-1}, kKeep));
    out.push_back(select(less(x, column), x * x, row) / (1.0 + square(x)));
    // A maximum where all are negative, sums of what a sum went into, an output that others read.
    const Tensor low = max(-abs(x), {-1}, kKeep), y = x * low, z = sum(y * row, {-1}, kKeep);
    out.insert(out.end(), {y, z, sum(y * z + silu(y), {-1}, kKeep) * column});
  }
  return out;
}

// A compiler that says in a file that it has begun, and waits for another file before it works.
class HeldCompiler {
 public:
  explicit HeldCompiler(const fs::path& folder)
      : began_(folder / "began"),
        go_(folder / "go"),
        cxx_("NESTGRAD_CXX",
             script(folder, fmt::format("touch {}; while [ ! -e {} ]; do sleep 0.01; done; exec c++ \"$@\"",
                                        began_.string(), go_.string()))) {}
  ~HeldCompiler() { release(); }
  void wait_until_begun() const {
    while (!fs::exists(began_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void release() const { std::ofstream{go_}; }

 private:
  fs::path began_, go_;
  Variable cxx_;
};

// How many of the texts of the plan have machine code.
int compiled_loops(const Plan& plan) {
  int there = 0;
  for (const std::string& text : plan.loops()) there += native_code(text)->function != nullptr;
  return there;
}

// A scan whose slices are shared among threads, and loops outside of it.
Function learner_and_loops(std::int64_t dim) {
  const Spec w = f32({4, dim, dim}), rows = f32({6, 4, 1, dim});
  return trace(
      [](const Tensors& in) {
        const ScanResult r = scan(
            [](const Tensors& c, const Tensors& x) -> StepOutput {
              const Tensor error = tanh(matmul(x[0], c[0])) - x[1];
              return {{c[0] * 0.9 - 0.1 * matmul(x[0], error, {.a = true})}, {error}};
            },
            {in[0]}, {in[1], in[2]});
        return Tensors{softmax(r.carries[0], -1), layer_norm(r.ys[0], in[1], in[2], 1e-5)};
      },
      {w, rows, rows});
}

Arrays numbers_for(const Function& f) {
  std::vector<Spec> specs;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) specs.push_back(f.input_spec(i));
  return random(specs, 7, -0.5, 0.5);
}

// In a build of clang every NaN is the same one. Which operand's NaN an operation passes on is the compiler's choice, and loops are compiled
// by the system's compiler, which is often GCC. In a build of GCC nothing is changed.
Arrays with_one_nan(Arrays arrays) {
#ifdef __clang__
  for (Array& each : arrays)
    dispatch(each.dtype(), [&]<class T>(T) {
      if constexpr (std::is_floating_point_v<T>)
        for (T& x : each.as<T>())
          if (std::isnan(x)) x = std::numeric_limits<T>::quiet_NaN();
    });
#endif
  return arrays;
}

}  // namespace

TEST_CASE("compiled loops have the bits of interpreted ones" * doctest::test_suite("slow")) {
  const TemporaryFolder cache;
  const Variable at("NESTGRAD_CACHE", cache.path / "cache");
  const std::string before{kernels().name};
  for (const std::string_view isa : instruction_sets()) {
    set_instruction_set(isa);
    CAPTURE(isa);
    if (native_target().flags.empty()) continue;  // SSE2 without fused multiply-add
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(name(dtype));
      std::vector<Spec> specs;
      for (const std::int64_t length : {1, 2, 5, 7, 8, 9, 15, 16, 17, 23, 31, 64, 100})
        specs.push_back({dtype, {5, length}});
      specs.push_back({dtype, {3, 1, 4, 24}});
      specs.push_back({dtype, {2, 3, 333, 411}});  // shared among threads
      const Function f = trace(loops_of, specs);
      Arrays in = random(specs, 3);
      dispatch(dtype, [&]<class T>(T) {  // both zeros, an infinity and NaN
        auto x = in[8].as<T>();          // rows of 17
        x[0] = -T(0), x[1] = T(0), x[20] = std::numeric_limits<T>::infinity();
        x[40] = std::numeric_limits<T>::quiet_NaN();
      });
      const NativeReport start = native_report();
      Plan compiled = f.plan({.compile = Compile::now}), interpreted = f.plan({.compile = Compile::never});
      CHECK(native_report().compiled > start.compiled + 30);
      CHECK_MESSAGE(native_report().failed == start.failed, native_report().last_failure);
      const Arrays expected = with_one_nan(interpreted.run(in));
      CHECK(same_bits(with_one_nan(compiled.run(in)), expected));
      CHECK(same_bits(with_one_nan(f.plan({.compile = Compile::now, .workers = 1}).run(in)), expected));
    }
  }
  set_instruction_set(before);
}

TEST_CASE("a plan shows its loops as C++") {
  const Function f = trace([](Tensor x) { return softmax(x, -1); }, f32({4, 32}));
  const std::string text = f.plan({}).source();
  CHECK(contains(text, "extern \"C\" void loop0("));
  CHECK(contains(text, "formula::exp::of<P>("));
  CHECK(contains(text, "RowSum<T, 32>"));
  CHECK(contains(text, "native_test.cpp:"));
}

// Before the others that compile in the background: the thread is started once.
TEST_CASE("where the system starts no thread for the compiler, a plan runs all the same") {
  if (native_target().flags.empty() || default_compile() == Compile::background) return;
  const TemporaryFolder folder;
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache");
  const Function f = learner_and_loops(23);
  const NativeReport start = native_report();
  pthread_attr_t before, huge;
  pthread_getattr_default_np(&before);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, std::size_t{1} << 47);  // more than there are addresses
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  Plan plan = f.plan({.compile = Compile::background, .workers = 1});
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  CHECK(native_report().failed > start.failed);
  CHECK(contains(native_report().last_failure, "starts no thread for the compiler"));
  wait_for_compiler();
  const Arrays in = numbers_for(f);
  CHECK(same_bits(plan.run(in), f.plan({.compile = Compile::never}).run(in)));
}

TEST_CASE("while the compiler works in the background, and after, a plan gives the same bits") {
  const TemporaryFolder cache;
  const Variable at("NESTGRAD_CACHE", cache.path / "cache");
  const std::vector<Spec> specs{f32({37, 40}), f32({37, 40})};
  const Function f = trace(loops_of, specs);
  const Arrays in = random(specs, 7), expected = f.plan({.compile = Compile::never}).run(in);
  const NativeReport start = native_report();
  Plan plan = f.plan({.compile = Compile::background});
  int wrong = 0;
  std::jthread other([&](const std::stop_token& stop) {  // the swap, seen from another thread
    Plan own = f.plan({.compile = Compile::background});
    while (!stop.stop_requested()) wrong += !same_bits(own.run(in), expected);
  });
  for (int i = 0; i < 20; ++i) CHECK(same_bits(plan.run(in), expected));
  wait_for_compiler();
  other.request_stop();
  other.join();
  CHECK(wrong == 0);
  CHECK(native_report().compiled > start.compiled);
  CHECK(same_bits(plan.run(in), expected));
}

TEST_CASE(
    "threads that replay plans while their loops are swapped see the same bits before, meanwhile and after") {
  if (native_target().flags.empty()) return;
  const TemporaryFolder folder;
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache"), mode("NESTGRAD_COMPILE", "background");
  const HeldCompiler compiler(folder.path);
  const Threads threads(4);
  const Function f = learner_and_loops(27);
  const Arrays in = numbers_for(f), expected = f.plan({.compile = Compile::never}).run(in);
  constexpr int kCallers = 4, kRuns = 3;
  std::latch ran_before(kCallers);
  std::atomic<bool> swapped = false;
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller, copy = f] {
      Plan own = f.plan({.workers = 2});
      // Some run a plan of their own, some call one function.
      const auto check = [&] { wrong += !same_bits(caller % 2 ? own.run(in) : copy(in), expected); };
      for (int run = 0; run < kRuns; ++run) check();
      ran_before.count_down();
      while (!swapped) check();
      for (int run = 0; run < kRuns; ++run) check();
    });
  ran_before.wait();
  const Plan plan = f.plan({.compile = Compile::never});
  const int loops = static_cast<int>(plan.loops().size());
  CHECK(loops >= 3);
  CHECK(compiled_loops(plan) == 0);
  compiler.release();
  wait_for_compiler();
  CHECK_MESSAGE(compiled_loops(plan) == loops, native_report().last_failure);
  swapped = true;
  callers.clear();
  CHECK(wrong == 0);
}

TEST_CASE("a plan that is compiled now is ready, also where another thread has begun to compile its loops") {
  if (native_target().flags.empty()) return;
  for (const Compile other : {Compile::now, Compile::background}) {
    const TemporaryFolder folder;
    const Variable cache("NESTGRAD_CACHE", folder.path / "cache");
    const HeldCompiler compiler(folder.path);
    const Function f = learner_and_loops(other == Compile::now ? 21 : 22);
    std::jthread first([&] { f.plan({.compile = other}); });
    compiler.wait_until_begun();
    std::jthread released([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      compiler.release();
    });
    const Plan plan = f.plan({.compile = Compile::now});
    CHECK(compiled_loops(plan) == std::ssize(plan.loops()));
  }
}

TEST_CASE("a compiler that is missing, fails, hangs or writes rubbish costs nothing but the speed") {
  const TemporaryFolder folder;
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache");
  const auto failure = [&](const std::string& compiler, std::chrono::milliseconds limit) {
    const Variable cxx("NESTGRAD_CXX", compiler);
    const NativeLibrary library = native_library({kText}, {}, limit);
    CHECK(library.handle == nullptr);
    return library.failure;
  };
  using namespace std::chrono_literals;
  CHECK(contains(failure("/nonexistent/c++", 10s), "no C++ compiler"));
  CHECK(contains(failure("no-such-compiler", 10s), "no C++ compiler"));
  CHECK(contains(failure(folder.path, 10s), "no C++ compiler"));
  CHECK(contains(failure(script(folder.path, "echo 'out of luck' >&2; exit 1"), 10s), "out of luck"));
  CHECK(contains(failure(script(folder.path, "sleep 100 & sleep 100"), 300ms), "took more than 0.3 s"));
  CHECK(contains(failure(script(folder.path, "exit 0"), 10s), "cannot be opened"));
  CHECK(contains(
      failure(script(folder.path, "for a in \"$@\"; do case $a in *.so) echo rubbish > $a;; esac; done"),
              10s),
      "cannot be opened"));
  // And a plan that wanted it runs.
  const Variable cxx("NESTGRAD_CXX", "/nonexistent/c++");
  const Function f = trace([](Tensor x) { return softmax(x * 3.5, -1); }, f32({4, 33}));
  const Arrays in = random(std::vector<Spec>{f32({4, 33})}, 1);
  const NativeReport start = native_report();
  CHECK(same_bits(f.plan({.compile = Compile::now}).run(in), f.plan({}).run(in)));
  CHECK(native_report().failed > start.failed);
}

TEST_CASE("what is kept is opened again, unless it was damaged or may be another's") {
  const TemporaryFolder folder;
  const fs::path cache = folder.path / "cache";
  const Variable at("NESTGRAD_CACHE", cache);
  const auto from_cache = [](const std::string& text, const std::vector<std::string>& flags = {}) {
    const NativeLibrary library = native_library({text}, flags);
    CHECK(answer_of(library) == 42);
    return library.from_cache;
  };
  const auto only_file = [&] {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(cache)) files.push_back(entry.path());
    REQUIRE(files.size() == 1);
    return files[0];
  };
  CHECK(!from_cache(kText));
  const fs::path file = only_file();
  CHECK((fs::status(cache).permissions() & fs::perms::all) == fs::perms::owner_all);
  CHECK(from_cache(kText));
  CHECK(!from_cache(kText, {"-O1"}));                  // other flags
  CHECK(!from_cache(kText + " // and another text"));  // another text
  // A new file in its place: the old one is in use.
  const auto replace = [&](const std::string& bytes) {
    fs::remove(file);
    std::ofstream(file, std::ios::binary) << bytes;
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  };
  std::ostringstream whole;
  whole << std::ifstream(file, std::ios::binary).rdbuf();
  std::string bytes = whole.str();
  replace(bytes.substr(0, bytes.size() / 2));  // cut off
  CHECK(!from_cache(kText));
  CHECK(from_cache(kText));
  bytes[bytes.size() / 2] ^= 1;
  replace(bytes);
  CHECK(!from_cache(kText));
  replace("");
  CHECK(!from_cache(kText));
  fs::permissions(file, fs::perms::group_write, fs::perm_options::add);  // others could have written it
  CHECK(!from_cache(kText));
  fs::permissions(cache, fs::perms::others_write, fs::perm_options::add);
  CHECK(!from_cache(kText));
  fs::permissions(cache, fs::perms::owner_all);
  CHECK(from_cache(kText));
  // Another compiler.
  const Variable cxx("NESTGRAD_CXX", script(folder.path, "exec c++ \"$@\""));
  CHECK(!from_cache(kText));
}

TEST_CASE("what texts begin with is kept as the compiler has read it, from the second text on") {
  if (contains(fs::canonical("/usr/bin/c++").string(), "clang")) return;
  const TemporaryFolder folder;
  const fs::path cache = folder.path / "cache";
  const Variable at("NESTGRAD_CACHE", cache);
  const std::string seconds =
      script(folder.path, "exec c++ \"$@\"");  // whose heads no other test has compiled
  const Variable cxx("NESTGRAD_CXX", seconds);
  const std::string head = "#include <cstdint>\nconstexpr int kAnswer = 42;\n";
  int texts = 0;
  const auto is_right = [&] {  // of a text that is not in the cache
    const std::string own =
        fmt::format("extern \"C\" int answer() {{ return kAnswer + {0} - {0}; }}", ++texts);
    const NativeLibrary library = native_library({own, head}, {});
    return !library.from_cache && answer_of(library) == 42;
  };
  const auto kept = [&] {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(cache))
      if (entry.path().extension() == ".gch") found.push_back(entry.path());
    return found;
  };
  CHECK(is_right());
  CHECK(kept().empty());
  CHECK(is_right());
  REQUIRE(kept().size() == 1);
  const fs::path file = kept()[0];
  CHECK(is_right());
  // It is used: of another text with the same name, the answer is the other's.
  const std::string other = "constexpr int kAnswer = 43;\n";
  std::ofstream(folder.path / "other.h") << other;
  REQUIRE(std::system(fmt::format("c++ -std=c++20 -fPIC -x c++-header {} -o {}",
                                  (folder.path / "other.h").string(), (folder.path / "other.gch").string())
                          .c_str()) == 0);
  fs::remove(file);
  fs::rename(folder.path / "other.gch", file);
  CHECK(answer_of(native_library({"extern \"C\" int answer() { return kAnswer; }", head}, {})) == 43);
  // Rubbish and nothing in its place cost the time alone.
  fs::remove(file);
  std::ofstream(file) << "rubbish";
  CHECK(is_right());
  fs::remove(file);
  CHECK(is_right());
}

TEST_CASE("without a place to keep anything, loops are compiled all the same") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "file") << "not a folder";
  for (const fs::path& place : {folder.path / "file", folder.path / "file" / "below", fs::path("relative")}) {
    const Variable at("NESTGRAD_CACHE", place);
    CHECK(answer_of(native_library({kText}, {})) == 42);
    CHECK(!native_library({kText}, {}).from_cache);
  }
}

TEST_CASE("several threads that compile the same text at once all have it") {
  const TemporaryFolder folder;
  const Variable at("NESTGRAD_CACHE", folder.path / "cache");
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { right += answer_of(native_library({kText}, {})) == 42; });
  }
  CHECK(right == 4);
  CHECK(native_library({kText}, {}).from_cache);
}

TEST_CASE("several processes that compile the same text at once all have it, and keep one file") {
  const TemporaryFolder folder;
  const fs::path cache = folder.path / "cache";
  const Variable at("NESTGRAD_CACHE", cache);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) _exit(answer_of(native_library({kText}, {})) == 42 ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(native_library({kText}, {}).from_cache);
  CHECK(std::distance(fs::directory_iterator(cache), {}) == 1);
}

#ifndef NESTGRAD_SANITIZED_THREADS  // which lets no child of a program with threads start any
TEST_CASE("a child of fork() compiles by itself, also while a compiler works for its parent") {
  if (native_target().flags.empty()) return;
  const TemporaryFolder folder;
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache");
  const HeldCompiler compiler(folder.path);
  const Function f = learner_and_loops(31), other = learner_and_loops(32);
  const Arrays in = numbers_for(f), expected = f.plan({.compile = Compile::never}).run(in);
  Plan plan = f.plan({.compile = Compile::background});
  compiler.wait_until_begun();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(300);  // ends a child that hangs
    setenv("NESTGRAD_CXX", "c++", 1);
    wait_for_compiler();  // for nothing: what is under way is the parent's
    const bool found = same_bits(plan.run(in), expected);
    const Plan own = other.plan({.compile = Compile::background});
    wait_for_compiler();
    _exit(!found ? 1 : compiled_loops(own) != std::ssize(own.loops()) ? 2 : 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  compiler.release();
  wait_for_compiler();
  CHECK(compiled_loops(plan) == std::ssize(plan.loops()));
}
#endif

namespace {

// Of a process that may be no child of this one. One that nobody has waited for yet has ended.
bool is_running(pid_t process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(in, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z';
}

}  // namespace

TEST_CASE("a process that is ended while the compiler works takes it along, and leaves no folder behind") {
  const TemporaryFolder folder;
  const fs::path temporary = folder.path / "temporary", began = folder.path / "began";
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache"), place("TMPDIR", temporary);
  const Variable cxx(
      "NESTGRAD_CXX",
      script(folder.path,
             fmt::format("sleep 1000 & echo $$ $! > {0}.part; mv {0}.part {0}; wait", began.string())));
  fs::create_directory(temporary);
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    CAPTURE(signal);
    fs::remove(began);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(signal, SIG_DFL);  // the test framework has its own
      native_library({kText}, {});
      _exit(0);
    }
    while (!fs::exists(began)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(!fs::is_empty(temporary));
    pid_t compiler = 0, started_by_it = 0;
    std::ifstream(began) >> compiler >> started_by_it;
    REQUIRE(is_running(compiler));
    REQUIRE(is_running(started_by_it));
    kill(child, signal);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    const auto is_over = [&] {
      return !is_running(compiler) && !is_running(started_by_it) && fs::is_empty(temporary);
    };
    for (int i = 0; i < 3000 && !is_over(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(is_over());
  }
}

TEST_CASE(
    "a program that does not wait for its children, or waits for all of them, has its loops all the same") {
  const TemporaryFolder folder;
  const Variable cache("NESTGRAD_CACHE", folder.path / "cache");
  const auto works = [&](const std::string& text) {
    CHECK(answer_of(native_library({text}, {})) == 42);
    const Variable cxx("NESTGRAD_CXX", script(folder.path, "echo 'out of luck' >&2; exit 1"));
    CHECK(contains(native_library({text}, {}).failure, "failed: out of luck"));
  };
  const auto before = signal(SIGCHLD, SIG_IGN);
  works(kText + " // ignored");
  signal(SIGCHLD, before);
  std::jthread waits([](const std::stop_token& stop) {
    while (!stop.stop_requested()) waitpid(-1, nullptr, WNOHANG);
  });
  works(kText + " // waited for");
}

TEST_CASE("loops that were compiled ahead of time are found by their text, and no others") {
  const NativeTarget target = native_target();
  if (target.flags.empty()) return;
  const TemporaryFolder folder;
  CHECK(LoopLibrary(target, folder.path.string()).size() == 0);
  const Spec spec = f32({3, 40});
  const Function f = trace([](Tensor x) { return x * x + 0.5; }, spec);
  const std::vector<std::string> texts = f.plan().loops();
  REQUIRE(texts.size() == 1);
  const std::string path = compile_ahead(target, texts, folder.path.string());
  CHECK(fs::path(path).filename() == fmt::format("loops-{}.so", target.instruction_set));
  const LoopLibrary loops(target, folder.path.string());
  CHECK(loops.size() == 1);
  CHECK_FALSE(static_cast<bool>(loops.find(texts[0] + " ")));
  NativeTarget newer = target;
  newer.headers.emplace_back("// of another version");
  CHECK_FALSE(static_cast<bool>(LoopLibrary(newer, folder.path.string()).find(texts[0])));

  const auto run = reinterpret_cast<CompiledCluster>(loops.find(texts[0]));
  REQUIRE(static_cast<bool>(run));
  const Array x = random(spec, 1), expected = f(x);
  Array y(spec);
  const float half = 0.5F;
  const std::byte* in[] = {x.data(), reinterpret_cast<const std::byte*>(&half)};
  std::byte* out[] = {y.data()};
  run(in, out, 0, x.size());
  CHECK(y.same_bits(expected));

  const Variable none("NESTGRAD_CXX", "/nothing/here");
  const std::string why = message_of<IoError>([&] { compile_ahead(target, texts, folder.path.string()); });
  CHECK(contains(why, "there is no C++ compiler"));
}

TEST_CASE("what was set is the default of plans, unless NESTGRAD_COMPILE says something") {
  const Compile before = default_compile();
  set_default_compile(Compile::now);
  if (!std::getenv("NESTGRAD_COMPILE")) CHECK(PlanOptions().compile == Compile::now);
  {
    const Variable mode("NESTGRAD_COMPILE", "never");
    CHECK(PlanOptions().compile == Compile::never);
  }
  set_default_compile(before);
  CHECK(default_compile() == before);
}

TEST_CASE("NESTGRAD_COMPILE that says something else is refused") {
  const Variable mode("NESTGRAD_COMPILE", "soon");
  CHECK(contains(message_of<ConfigError>([] { default_compile(); }), "it can be never, background or now"));
}
