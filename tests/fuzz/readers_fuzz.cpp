// readers_fuzz: gives damaged files and command lines to everything that reads them. Promise: a value, or one
// of the project's errors in one line; nothing else is thrown, nothing crashes, hangs or takes a gigabyte.
//
//   readers_fuzz --data tests --bin build/release/bin            a minute of cases
//   readers_fuzz --data tests --bin build/release/bin --seed 17  one case
//
// A case is a seed: one of the readers below, one of its good files, some mutations. Cases run in a process
// of their own, which is watched. One that fails is printed with its seed, and with as few and as small
// mutations as still fail.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "engine/io/safetensors.h"
#include "engine/threads.h"
#include "examples/common/program.h"
#include "models/decoder.h"
#include "models/metrics.h"
#include "models/trainer.h"
#include "tests/golden_check/verify.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;

namespace {

constexpr unsigned kSeconds = 20;               // for a case
constexpr rlim_t kMemory = rlim_t{1} << 30;     // that a reader may take, in bytes
constexpr rlim_t kProgramMemory = 3 * kMemory;  // of addresses, for a whole program
constexpr int kQuick = 10;
constexpr const char* kModel = "model.safetensors";

struct Failure {
  std::string text;
};
void require(bool condition, const std::string& text) {
  if (!condition) throw Failure{text};
}

// ---- mutations ----

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

// Numbers and pieces of text that readers fall over.
const std::vector<std::string>& absurdities() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out{"0",
                                 "-1",
                                 "1",
                                 "2147483647",
                                 "2147483648",
                                 "1099511627776",
                                 "1e308",
                                 "-1e308",
                                 "1e400",
                                 "0.5",
                                 "NaN",
                                 "nan",
                                 "inf",
                                 "-inf",
                                 "null",
                                 "true",
                                 "[]",
                                 "{}",
                                 "\"\"",
                                 "\"x\"",
                                 "\xff\xfe",
                                 "9223372036854775807",
                                 "-9223372036854775808",
                                 "18446744073709551615",
                                 "123456789012345678901234567890",
                                 "\n",
                                 "\\u0000",
                                 ",",
                                 ":",
                                 "\"",
                                 "%s%n",
                                 "attention",
                                 "ttt-e2e",
                                 "nadaraya-watson",
                                 "F64",
                                 "BF16",
                                 "I64"};
    out.emplace_back(1, '\0');
    out.emplace_back(100'000, '[');
    std::string nested;
    for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
    out.push_back(nested);
    out.push_back(std::string(50'000, '[') + std::string(50'000, ']'));
    out.emplace_back(100'000, '9');
    return out;
  }();
  return all;
}

struct Mutation {
  enum class Kind : std::uint8_t { flip, cut, repeat, truncate, insert, replace_word };
  Kind kind;
  std::size_t at, size;  // of the text at that time, taken modulo its size; of replace_word: which word
  std::string text;      // that is put there

  std::string str() const {
    static constexpr const char* names[]{"flip", "cut", "repeat", "truncate", "insert", "replace word"};
    return fmt::format("{} {} {} '{}'", names[static_cast<int>(kind)], at, size, printable(text, 40));
  }
};

Mutation draw_mutation(Random& random) {
  using Kind = Mutation::Kind;
  static constexpr Kind kinds[]{Kind::flip,         Kind::cut,          Kind::repeat,
                                Kind::truncate,     Kind::insert,       Kind::replace_word,
                                Kind::replace_word, Kind::replace_word, Kind::replace_word};
  Mutation m{kinds[below(random, std::size(kinds))], random() >> 1, 1 + below(random, 9), {}};
  if (below(random, 8) == 0) m.size *= 1 + below(random, 1000);
  if (m.kind == Kind::insert || m.kind == Kind::replace_word)
    m.text = absurdities()[below(random, absurdities().size())];
  return m;
}

// Where words of a text begin and end: numbers, names, texts in quotes, and what follows an '='.
std::vector<std::pair<std::size_t, std::size_t>> words_of(const std::string& text) {
  const auto is_inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_' || c == '+';
  };
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    while (i < text.size() && is_inside(text[i])) ++i;
    if (i > begin) out.emplace_back(begin, i);
    else ++i;
  }
  return out;
}

void apply(const Mutation& m, std::string& text) {
  const std::size_t at = text.empty() ? 0 : m.at % text.size(), size = std::min(m.size, text.size() - at);
  switch (m.kind) {
    case Mutation::Kind::flip:
      if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << m.size % 8));
      break;
    case Mutation::Kind::cut:
      text.erase(at, size);
      break;
    case Mutation::Kind::repeat:
      text.insert(at, text.substr(at, size));
      break;
    case Mutation::Kind::truncate:
      text.resize(at);
      break;
    case Mutation::Kind::insert:
      text.insert(at, m.text);
      break;
    case Mutation::Kind::replace_word:
      if (const auto words = words_of(text); !words.empty()) {
        const auto [begin, end] = words[m.at % words.size()];
        text.replace(begin, end - begin, m.text);
      }
      break;
  }
}

// ---- readers ----

// The header of a safetensors file, and what stands around it.
struct Framed {
  std::string header, data;
  explicit Framed(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = bytes.substr(8, length), data = bytes.substr(8 + length);
  }
  std::string str() const {
    std::string out(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(out.data(), &length, 8);
    return out + header + data;
  }
};

struct Reader {
  std::string name;
  std::vector<std::string> good;  // what it reads, undamaged
  bool framed;                    // mostly the header of a safetensors file is damaged
  std::function<void(const std::string& bytes)> read;
  int share = 1;  // of the cases; what is quick has more
};

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TrainingOptions small_training() {
  TrainingOptions o;
  o.model = {.hidden_size = 8,
             .intermediate_size = 16,
             .num_hidden_layers = 1,
             .num_attention_heads = 2,
             .mini_batch_size = 4};
  o.steps = 4, o.batch = 1, o.context = 8;
  return o;
}

ByteCorpus small_text() {
  const std::vector<std::uint8_t> text(400, 'a');
  return {text, text};
}

// Runs a program with the lines of a text as arguments, and looks at how it ends. `fixed` follows, so that it
// ends soon.
void call(const std::string& program, const std::string& lines, const std::vector<std::string>& fixed) {
  std::vector<std::string> words{program};
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    words.push_back(lines.substr(at, std::min(end - at, std::size_t{100'000})));
    at = end + 1;
  }
  words.insert(words.end(), fixed.begin(), fixed.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe(ends) != 0) throw IoError("[fuzz] no pipe can be made");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlimit memory{kProgramMemory, kProgramMemory};
    setrlimit(RLIMIT_AS, &memory);
    dup2(ends[1], 1), dup2(ends[1], 2), dup2(open("/dev/null", O_RDONLY), 0);
    close(ends[0]), close(ends[1]);
    execv(argv[0], argv.data());
    _exit(126);
  }
  close(ends[1]);
  std::string output;
  char part[4096];
  for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
    output.append(part, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  require(WIFEXITED(status), fmt::format("ended by signal {}: {}", WTERMSIG(status), printable(output)));
  const int code = WEXITSTATUS(status);
  require(code <= 2, fmt::format("exit code {}: {}", code, printable(output)));
  const auto lines_in = std::ranges::count(output, '\n');
  if (code == 2)
    require(lines_in == 1, fmt::format("exit code 2 with {} lines: {}", lines_in, printable(output)));
  if (code == 1) {
    const auto error = output.find("error: ");
    require(error != output.npos && output.find("error: ", error + 1) == output.npos,
            fmt::format("exit code 1 without one error line: {}", printable(output)));
  }
}

// All readers; their files lie in `folder`.
std::vector<Reader> all_readers(const std::string& data, const std::string& bin, const std::string& folder) {
  const TrainingOptions options = small_training();
  Trainer trainer(options, small_text());
  trainer.step();
  trainer.save(folder + "/checkpoint");
  write_safetensors(folder + "/" + kModel, {trainer.parameters(), {}});
  const std::string checkpoint = read_file(folder + "/checkpoint"), config = options.model.to_json(),
                    model = read_file(folder + "/" + kModel);
  write_npy(folder + "/npy", Array::zeros(DType::f32, {2, 3}));
  std::vector<std::string> goldens;
  for (const char* name : {"ttt_linear_mamba", "delta_rule", "mesa_net", "lact_nvs_muon", "vittt_block"})
    goldens.push_back(read_file(fmt::format("{}/golden/{}.safetensors", data, name)));

  // What reads a file is given one.
  const auto from_file = [folder](const std::string& name, auto read) {
    return [path = folder + "/" + name, read](const std::string& bytes) {
      write_file_atomically(path, bytes);
      read(path);
    };
  };
  // Reads a folder with a model, and one token with it.
  const auto use_model = [folder] {
    const Checkpoint read = read_checkpoint(folder);
    Decoder(read.config, read.params, DType::f32, 1, 4).step(Array::zeros(DType::i32, {1}));
  };
  const auto program = [bin](const std::string& name, const std::vector<std::string>& fixed) {
    return [path = bin + "/" + name, fixed](const std::string& lines) { call(path, lines, fixed); };
  };
  std::vector<Reader> out{
      {"safetensors",
       {checkpoint, goldens[1]},
       true,
       [](const std::string& bytes) { parse_safetensors(as_bytes(bytes), "file"); },
       kQuick},
      {"npy",
       {read_file(folder + "/npy")},
       false,
       [](const std::string& b) { parse_npy(as_bytes(b), "file"); },
       kQuick},
      {"config",
       {config},
       false,
       [](const std::string& b) { LanguageModelConfig::from_json(b, "config"); },
       kQuick},
      {"metrics",
       {to_line({1, 2.5, 0.5, 1e-3, 100}) + to_line({2, 2.25, 0.5, 1e-3, 101})},
       false,
       [](const std::string& b) { parse_metrics(b, "metrics"); },
       kQuick},
      {"checkpoint",
       {checkpoint},
       true,
       from_file("checkpoint",
                 [options](const std::string& path) {
                   static Trainer other(options, small_text());
                   other.load(path);
                 })},
      {"golden file", goldens, true,
       from_file("golden", [](const std::string& path) { verify_golden(path, {.dtype = DType::f32}); })},
      {"config of a model",
       {config},
       false,
       [folder, model, use_model](const std::string& bytes) {
         write_file_atomically(folder + "/" + kModel, model);
         write_file_atomically(folder + "/config.json", bytes);
         use_model();
       }},
      {"model", {model}, true, [folder, config, use_model](const std::string& bytes) {
         write_file_atomically(folder + "/" + kModel, bytes);
         write_file_atomically(folder + "/config.json", config);
         use_model();
       }}};
  if (bin.empty()) return out;
  const std::string none = folder + "/none";
  out.push_back(
      {"train_lm",
       {"--learner\nttt-mlp\n--backbone\nmamba\n--steps\n3\n--batch\n2\n--context\n16\n--width\n32\n"
        "--layers\n2\n--heads\n2\n--mini-batch\n8\n--attention-window\n4\n--lr\n1e-3\n--seed\n7\n"
        "--checkpoint-every\n2\n--memory-budget\n100\n--save-every\n5\n--stop-after\n2\n"
        "--validation-windows\n9\n--device\ncpu\n--precision\nf32\n--json\n--resume"},
       false,
       program("train_lm", {"--data", none, "--out", folder + "/out"})});
  out.push_back({"generate",
                 {"--prompt\nabc\n--bytes\n10\n--temperature\n0.5\n--seed\n3\n--json"},
                 false,
                 program("generate", {"--checkpoint", none})});
  out.push_back({"inspect",
                 {"--tokens\n8\n--layer\n0\n--token\n3\n--seed\n1\n--json"},
                 false,
                 program("inspect", {"--checkpoint", none, "--out", folder + "/out"})});
  out.push_back(
      {"verify_golden", {"--form\nwy\n--tolerance\n1e-9\n--json"}, false, program("verify_golden", {none})});
  out.push_back({"learners",
                 {"explain\ndelta-net\n--form\nwy\n--heads\n2\n--dim\n4\n--json", "--json"},
                 false,
                 program("learners", {})});
  return out;
}

// ---- cases ----

struct Case {
  std::uint64_t seed;
  const Reader* reader;
  std::size_t which;  // of its good files
  bool whole;         // damage all of the file, not the header alone
  std::vector<Mutation> mutations;

  Case(std::uint64_t number, const std::vector<Reader>& readers) : seed(number) {
    Random random(seed);
    random();
    std::vector<const Reader*> shares;
    for (const Reader& r : readers) shares.insert(shares.end(), static_cast<std::size_t>(r.share), &r);
    reader = shares[below(random, shares.size())];
    which = below(random, reader->good.size());
    whole = !reader->framed || below(random, 4) == 0;
    for (std::size_t n = below(random, 6); mutations.size() <= n;) mutations.push_back(draw_mutation(random));
  }

  std::string bytes() const {
    const std::string& good = reader->good[which];
    if (whole) {
      std::string text = good;
      for (const Mutation& m : mutations) apply(m, text);
      return text;
    }
    Framed file(good);
    for (const Mutation& m : mutations) apply(m, file.header);
    return file.str();
  }

  std::string str() const {
    std::string out = fmt::format("{}, file {}{}", reader->name, which, whole ? "" : ", header");
    for (const Mutation& m : mutations) out += "; " + m.str();
    return out;
  }

  // Whether the reader made something of it.
  bool run() const {
    try {
      reader->read(bytes());
      return true;
    } catch (const Error& e) {
      require(std::string_view(e.what()).find('\n') == std::string::npos,
              fmt::format("an error of several lines: {}", printable(e.what())));
      return false;
    } catch (const Failure&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw Failure{fmt::format("takes more than {} MB", kMemory >> 20)};
    } catch (const std::exception& e) {
      throw Failure{fmt::format("another kind of error: {}", printable(e.what()))};
    }
  }
};

// What a watched process is doing, in memory that it shares.
struct Shared {
  std::uint64_t done, accepted;  // cases, and those of which the reader made something
  char problem[1000];
};

std::size_t addresses_in_use() {
  return static_cast<std::size_t>(std::stoull(read_file("/proc/self/statm"))) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Runs cases one after the other in a process of its own; what is wrong with the first that fails.
std::optional<std::string> run_apart(std::span<const Case> cases, Shared& shared) {
  shared = {};
  const pid_t child = fork();
  if (child < 0) throw IoError("[fuzz] no process can be started");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlim_t most = addresses_in_use() + kMemory;
    const rlimit memory{most, std::max<rlim_t>(most, kProgramMemory)}, core{0, 0};
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &core);
    for (const Case& one : cases) {
      alarm(kSeconds);
      try {
        shared.accepted += one.run();
      } catch (const Failure& failure) {
        failure.text.copy(shared.problem, sizeof shared.problem - 1);
        _exit(1);
      }
      ++shared.done;
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return fmt::format("no end after {} s", kSeconds);
  if (WIFSIGNALED(status)) return fmt::format("ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return std::string(shared.problem);
  return std::nullopt;
}

// Fewer mutations, and simpler ones, that fail as well.
Case shrunk(Case failing, Shared& shared) {
  const auto fails = [&](const Case& c) { return run_apart(std::span(&c, 1), shared).has_value(); };
  for (std::size_t i = 0; i < failing.mutations.size();) {
    Case fewer = failing;
    fewer.mutations.erase(fewer.mutations.begin() + static_cast<std::ptrdiff_t>(i));
    if (fails(fewer)) failing = fewer;
    else ++i;
  }
  for (Mutation& m : failing.mutations) {
    for (const bool text : {true, false}) {
      const Mutation before = m;
      if (text) m.text.resize(m.text.size() / 2);
      else m.size = 1;
      if (!fails(failing)) m = before;
    }
  }
  return failing;
}

struct Options {
  std::string data, bin;
  std::int64_t cases = std::numeric_limits<std::int64_t>::max();
  double minutes = 1;
  std::optional<std::uint64_t> seed;
  std::uint64_t first = 0;
  bool json = false;
};

void run(const Options& options) {
  const testing::TemporaryFolder folder;
  // A process that forks must have no other threads.
  set_thread_count(1);
  const std::vector<Reader> readers = all_readers(options.data, options.bin, folder.path.string());
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) throw IoError("[fuzz] no memory can be shared");

  constexpr std::size_t kBatch = 100;
  std::uint64_t next = options.seed.value_or(options.first), done = 0, accepted = 0;
  const std::uint64_t end = options.seed ? next + 1 : next + static_cast<std::uint64_t>(options.cases);
  std::vector<std::uint64_t> failed;
  const auto start = std::chrono::steady_clock::now();
  ProgressLine progress;
  while (next < end) {
    const double minutes =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 60;
    if (minutes > options.minutes) break;
    std::vector<Case> batch;
    for (std::uint64_t seed = next; seed < end && batch.size() < kBatch; ++seed)
      batch.emplace_back(seed, readers);
    const std::optional<std::string> problem = run_apart(batch, *shared);
    const std::uint64_t ran = shared->done;
    done += ran, next += ran, accepted += shared->accepted;
    if (problem) {
      const Case& one = batch.at(ran);
      failed.push_back(one.seed);
      progress.print(fmt::format("FAIL: --seed {}: {}\n  {}\n  fewer mutations fail too: {}", one.seed,
                                 *problem, one.str(), shrunk(one, *shared).str()));
      ++done, ++next;
    }
    progress.update(fmt::format("{} cases, {} failed", done, failed.size()),
                    std::min(0.99, std::max(minutes / options.minutes,
                                            static_cast<double>(done) / static_cast<double>(options.cases))));
  }
  fmt::print("{} cases of {} readers, {} of them accepted, {} failed\n", done, readers.size(), accepted,
             failed.size());
  if (options.json)
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"cases", done}, {"accepted", accepted}, {"failed_seeds", failed}}.dump());
  if (!failed.empty()) throw ValueError(fmt::format("[fuzz] {} of {} cases failed", failed.size(), done));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Gives damaged files and command lines to everything that reads them.", "readers_fuzz"};
  Options options;
  app.add_option("--data", options.data, "Folder of the tests, with their golden files")->required();
  app.add_option("--bin", options.bin, "Folder of the programs (default: none is called)");
  app.add_option("--cases", options.cases, "Run so many cases at most")->check(CLI::PositiveNumber);
  app.add_option("--minutes", options.minutes, "Begin no case after that")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--first", options.first, "Seed of the first case")->capture_default_str();
  app.add_option("--seed", options.seed, "Run the case of this seed alone");
  app.add_flag("--json", options.json, "Last line of output: the results as one JSON object");
  return run_program(argc, argv, app, [&] { run(options); });
}
