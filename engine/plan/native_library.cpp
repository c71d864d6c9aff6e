#include "engine/plan/native_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/core/process_wide.h"
#include "engine/plan/code_cache.h"

extern char** environ;

namespace nestgrad {

namespace fs = std::filesystem;

namespace {

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// The compiler's path, and what changes when it is another one. Empty: there is none.
struct Compiler {
  std::string path, identity;
};

Compiler find_compiler() {
  const char* asked = std::getenv("NESTGRAD_CXX");
  const std::string name = asked ? asked : "c++";
  std::vector<std::string> folders{""};
  if (name.find('/') == std::string::npos) {
    folders.clear();
    std::istringstream all(std::getenv("PATH") ? std::getenv("PATH") : "");
    for (std::string folder; std::getline(all, folder, ':');)
      if (!folder.empty()) folders.push_back(folder + "/");
  }
  for (const std::string& folder : folders) {
    const std::string path = folder + name;
    struct stat info {};
    std::error_code none;
    const fs::path real = fs::canonical(path, none);
    if (none || access(path.c_str(), X_OK) != 0 || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
      continue;
    return {path, fmt::format("{} {} {}.{}", real.string(), info.st_size, info.st_mtim.tv_sec,
                              info.st_mtim.tv_nsec)};
  }
  return {};
}

// A folder of this process alone, gone when it is done.
class WorkFolder {
 public:
  WorkFolder() {
    std::error_code failed;
    std::string name = (fs::temp_directory_path(failed) / "nestgrad.XXXXXX").string();
    if (!failed && mkdtemp(name.data())) path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

using Clock = std::chrono::steady_clock;

// When a job has to have ended.
struct Limit {
  std::chrono::milliseconds time;
  Clock::time_point end = Clock::now() + time;
  const std::stop_token& stop;
  bool is_over() const { return stop.stop_requested() || Clock::now() > end; }
};

// A pipe whose writer nobody but this process has: its reader sees the end when the process has ended, however it did.
class LifeLine {
 public:
  LifeLine() {
    if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~LifeLine() {
    close_reader();
    if (ends_[1] >= 0) close(ends_[1]);
  }
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;
  int reader() const { return ends_[0]; }
  void close_reader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }

 private:
  int ends_[2];
};

// What runs the words behind $0, a folder: the compiler, whose exit status is then in a file of the folder, and beside it what waits for
// this process to end, and then ends the compiler with all that it has started, and removes the folder.
constexpr const char* kShell = "/bin/sh";
constexpr const char* kStatus = "status";
constexpr const char* kScript =
    "exec 3<&0 </dev/null\n"
    "{ trap '' TERM; read -r line <&3; kill -TERM 0; rm -rf -- \"$0\"; kill -KILL 0; } &\n"
    "TMPDIR=$0 \"$@\" 3<&-\n"
    "echo $? >\"$0/status\"\n"
    "kill -KILL $!\n"
    "wait $!\n";

// Runs the program, with files of its own in the folder. Why it failed; empty: it did not.
std::string run(const std::vector<std::string>& command, const fs::path& folder, const Limit& limit) {
  const fs::path log = folder / "log", written = folder / kStatus;
  std::error_code ignored;
  fs::remove(written, ignored);
  std::vector<std::string> words{kShell, "-c", kScript, folder.string()};
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  LifeLine life;
  if (life.reader() < 0) return fmt::format("{} could not be started: there is no pipe", command[0]);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, life.reader(), 0);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  // A group of its own, so that all that it starts ends with it; and the signals of a program that nobody has touched.
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&how, &signals);
  for (const int each : {SIGCHLD, SIGTERM, SIGPIPE}) sigaddset(&signals, each);
  posix_spawnattr_setsigdefault(&how, &signals);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int failed = posix_spawn(&child, arguments[0], &files, &how, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&how);
  life.close_reader();
  if (failed != 0) return fmt::format("{} could not be started", command[0]);
  int status = 0;
  for (pid_t done = 0; done == 0;) {
    done = waitpid(child, &status, WNOHANG);
    if (done != 0) break;  // negative: whoever uses the library waits for all children, or for none
    if (limit.is_over()) {
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      return fmt::format("{} took more than {} s", command[0],
                         static_cast<double>(limit.time.count()) / 1000);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (read_file(written) == "0\n") return {};
  std::string said = read_file(log);
  return fmt::format("{} failed: {}", command[0], said.substr(0, said.find('\n')));
}

// Opens a library that has the key; null if it is not what it should be.
void* open(const fs::path& path, const std::string& key) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  const auto* const found = static_cast<const char*>(dlsym(handle, "nestgrad_key"));
  if (found && key == found) return handle;
  dlclose(handle);
  return nullptr;
}

constexpr std::string_view kNoCompiler =
    "there is no C++ compiler: NESTGRAD_CXX names one, or c++ is on the PATH";

std::vector<std::string> command_of(const Compiler& compiler, const std::vector<std::string>& flags,
                                    const std::vector<std::string>& rest) {
  std::vector<std::string> command{compiler.path, "-std=c++20", "-fPIC"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), rest.begin(), rest.end());
  return command;
}

// Heads that the compiler has read before, as files of the cache: some 30 MB each. Any thread may ask.
class PrecompiledHeads {
 public:
  static PrecompiledHeads& instance() { return ProcessWide<PrecompiledHeads>::get(); }

  // Its file, made now if this process has compiled the head before. Empty: there is none.
  std::string path_of(const Compiler& compiler, const std::string& head,
                      const std::vector<std::string>& flags, const WorkFolder& work, const Limit& limit) {
    // clang's would be for the same file of text alone, which is gone.
    if (head.empty() || compiler.identity.find("clang") != std::string::npos) return "";
    const std::string key = key_of(compiler, flags, head);
    const CodeCache cache(".gch", 4);
    std::unique_lock lock(mutex_);
    Head& known = known_[key];  // elements of a map stay where they are
    if (!known.path.empty() || known.is_tried) return known.path;
    known.path = cache.path(key);
    if (!known.path.empty() || !known.was_compiled) {
      known.was_compiled = true;
      return known.path;
    }
    known.is_tried = true;  // by this thread: others go without until it is there
    lock.unlock();
    const fs::path made = work.path() / "made.gch";
    const std::string why =
        run(command_of(compiler, flags,
                       {"-x", "c++-header", (work.path() / kHead).string(), "-o", made.string()}),
            work.path(), limit);
    if (!why.empty()) return "";
    cache.keep(key, read_file(made));
    std::string path = cache.path(key);
    lock.lock();
    return known.path = path;
  }

  // It was of no use.
  void forget(const std::string& path) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, head] : known_)
      if (head.path == path) head = {.is_tried = true};
  }

  static std::string key_of(const Compiler& compiler, const std::vector<std::string>& flags,
                            const std::string& text) {
    std::string all = compiler.identity;
    for (const std::string& flag : flags) all += "\n" + flag;
    return CodeCache::key_of(all + "\n" + text);
  }

  static constexpr const char* kHead = "head.h";

 private:
  struct Head {
    bool was_compiled = false, is_tried = false;
    std::string path;
  };
  std::mutex mutex_;
  std::map<std::string, Head> known_;
};

// Why it failed; empty: it did not.
std::string compile(const Compiler& compiler, const NativeText& text, const std::vector<std::string>& flags,
                    const WorkFolder& work, const fs::path& library, const Limit& limit) {
  if (work.path().empty()) return "there is no folder for temporary files";
  const fs::path source = work.path() / "text.cpp", head = work.path() / PrecompiledHeads::kHead;
  std::ofstream(source) << text.own;
  std::ofstream(head) << text.head;
  PrecompiledHeads& heads = PrecompiledHeads::instance();
  const std::string precompiled = heads.path_of(compiler, text.head, flags, work, limit);
  std::error_code failed;
  const fs::path beside = head.string() + ".gch";  // where the compiler looks for it
  if (!precompiled.empty()) fs::create_symlink(precompiled, beside, failed);
  const std::vector<std::string> command = command_of(
      compiler, flags, {"-shared", "-include", head.string(), "-o", library.string(), source.string()});
  const auto attempt = [&] { return run(command, work.path(), limit); };
  std::string why = attempt();
  if (!why.empty() && !precompiled.empty() && !limit.is_over()) {
    heads.forget(precompiled);
    fs::remove(beside, failed);
    why = attempt();
  }
  return why;
}

}  // namespace

void* NativeLibrary::symbol(const std::string& name) const {
  return handle ? dlsym(handle, name.c_str()) : nullptr;
}

NativeLibrary native_library(const NativeText& text, const std::vector<std::string>& flags,
                             std::chrono::milliseconds limit, const std::stop_token& stop) {
  NativeLibrary out;
  const Compiler compiler = find_compiler();
  if (compiler.path.empty()) {
    out.failure = kNoCompiler;
    return out;
  }
  const CodeCache cache(".so");
  const std::string key = PrecompiledHeads::key_of(compiler, flags, text.head + text.own);
  if (const std::string path = cache.path(key); !path.empty() && (out.handle = open(path, key))) {
    out.from_cache = true;
    return out;
  }
  const WorkFolder work;
  const fs::path library = work.path() / "text.so";
  const std::string own = text.own + fmt::format("\nextern \"C\" const char nestgrad_key[] = \"{}\";\n", key);
  out.failure = compile(compiler, {own, text.head}, flags, work, library, {.time = limit, .stop = stop});
  if (!out.failure.empty()) return out;
  const std::string bytes = read_file(library);
  out.handle = open(library, key);
  if (!out.handle) out.failure = fmt::format("what {} made cannot be opened", compiler.path);
  else cache.keep(key, bytes);
  return out;
}

NativeLibrary open_library(const std::string& path) {
  NativeLibrary out;
  out.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!out.handle) out.failure = fmt::format("{} cannot be opened", path);
  return out;
}

std::string compile_library(const std::string& text, const std::vector<std::string>& flags,
                            const std::string& path, std::chrono::milliseconds limit) {
  const Compiler compiler = find_compiler();
  if (compiler.path.empty()) return std::string(kNoCompiler);
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  std::string why = compile(compiler, {text}, flags, WorkFolder(), part, {.time = limit, .stop = {}});
  std::error_code failed;
  if (why.empty()) fs::rename(part, path, failed);
  if (failed) why = failed.message();
  if (!why.empty()) fs::remove(part, failed);
  return why;
}

}  // namespace nestgrad
