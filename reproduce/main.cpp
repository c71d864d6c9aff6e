// reproduce: tables of papers, made again with error bars.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/core/threads.h"
#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "engine/processes/mpi.h"
#include "ops/kernels.h"
#include "programs/out_folder.h"
#include "programs/program.h"
#include "reproduce/agreement.h"
#include "reproduce/claims.h"
#include "reproduce/data_source.h"
#include "reproduce/page.h"
#include "reproduce/runner.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;

namespace {

struct Options {
  std::vector<std::string> names;
  bool quick = false, full = false, resume = false, check = false, json = false, report = false;
  int seeds = 0, jobs = 0;
  std::uint64_t first_seed = 0;
  std::string data, out = "runs/reproduce", models, expect, against, kept = "docs/reproductions",
                    page = "docs/reproductions.md";
};

// What runs were made on: the processor, and which of its instructions the kernels used.
std::string machine() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "a processor without a name";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) name = line.substr(std::min(line.size(), line.find(':') + 2));
  return fmt::format("{}, kernels for {}, {} cores", name, instruction_set(),
                     std::thread::hardware_concurrency());
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

Settings settings_of(const Options& o, const Experiment& e) {
  Settings s;
  s.extent = o.full ? Extent::full : Extent::quick;
  s.seeds = o.seeds > 0 ? o.seeds : o.full ? e.full_seeds : e.quick_seeds;
  s.first_seed = o.first_seed;
  // With `all` it is for experiments on text; the others take what they have.
  const bool by_name = std::ranges::find(o.names, "all") == o.names.end();
  if (by_name || e.data == Data::text) s.data = o.data;
  return s;
}

Circumstances circumstances(const Experiment& e, const Settings& s) {
  Circumstances out{{}, {}, machine(), today()};
  const DataSource source = source_of(e, s);
  out.data = source.name, out.fingerprint = source.fingerprint;
  return out;
}

// Why these results may not be added to those of the file; "" if they may.
std::string other_than(const Journal& known, const Results& asked, const Circumstances& where) {
  const Settings &a = known.results.settings(), &b = asked.settings();
  if (known.results.experiment().name != asked.experiment().name)
    return "of the experiment " + known.results.experiment().name;
  if (a.extent != b.extent) return fmt::format("--{}", name(a.extent));
  if (a.seeds != b.seeds) return fmt::format("--seeds {}", a.seeds);
  if (a.first_seed != b.first_seed) return fmt::format("--first-seed {}", a.first_seed);
  if (known.where.fingerprint != where.fingerprint) return "on other data";
  return "";
}

// What experiments make of runs asks for numbers and curves by name: where those of a file were changed, some are missing.
template <class Fn>
auto of_runs(const std::string& what, Fn fn) try {
  return fn();
} catch (const std::out_of_range&) {
  throw IoError(fmt::format(
      "{}: a run lacks a number or a curve that this experiment makes, or a curve has another length: it was changed, or "
      "made by another version; delete it, and make the runs again",
      what));
} catch (const ValueError& e) {  // numbers that cannot be added
  throw ValueError(fmt::format("{}: {}", what, e.what()));
}

// The kept runs of an experiment in a folder.
std::string file_in(const std::string& folder, const Experiment& e) {
  return fmt::format("{}/{}.jsonl", folder, e.name);
}

Journal kept_runs(const std::string& path, const Experiment& e) {
  return parse_jsonl(read_found_file(path), path, e.name);
}

std::string results_path(const Options& o, const Experiment& e) {
  return fmt::format("{}/{}/results.jsonl", o.out, e.name);
}

// Before hours have gone into the first of them.
void check_begun(const Options& o, const std::vector<const Experiment*>& named) {
  const auto begun = std::ranges::find_if(
      named, [&](const Experiment* e) { return std::filesystem::exists(results_path(o, *e)); });
  if (o.resume && begun == named.end())
    throw IoError(fmt::format("{}: there are no results to go on from; leave --resume out to start",
                              printable(named.size() == 1 ? results_path(o, *named.front()) : o.out)));
  if (!o.resume && begun != named.end())
    throw ConfigError(fmt::format("{}/{} already holds results; go on with --resume, or choose another --out",
                                  printable(o.out), (*begun)->name));
}

// One experiment: from the options to a folder with results.jsonl and page.html. -> whether every claim stands
class Reproduction {
 public:
  Reproduction(const Options& o, const Experiment& e, Transport& processes)
      : o_(o),
        processes_(processes),
        folder_(o.out + "/" + e.name),
        results_(e, settings_of(o, e)),
        where_(circumstances(e, results_.settings())) {
    // Rank 0 alone has the folder; the others hear what is known already.
    const std::string known = processes_.from_first([&] {
      make_folder(folder_);
      lock_.emplace(folder_);
      lock_->remove_temporaries();
      const std::string text = known_text();
      if (text.empty()) check_replaceable(folder_, page_rule());
      check_writable(folder_, {"results.jsonl", "page.html"});
      return text;
    });
    processes_.check_same(where_.fingerprint, "data");
    processes_.on_first([&] { try_models_folder(); });
    if (!known.empty()) take_known(known);
  }

  std::string path() const { return results_path(o_, results_.experiment()); }

  bool go() {
    const auto start = std::chrono::steady_clock::now();
    {
      ProgressLine progress(10, processes_.rank() == 0 ? stderr : nullptr);
      run_all(results_, {.jobs = o_.jobs > 0 ? o_.jobs : thread_count(),
                         .processes = &processes_,
                         .models = models_of(results_.experiment()),
                         .progress =
                             [&](const std::string& text, double done) {
                               progress.update(results_.experiment().name + ": " + text, done);
                             },
                         .keep = [&](const Results&) { keep(); }});
    }
    keep();
    processes_.on_first([&] { write_file_atomically(folder_ + "/page.html", page_of(results_, where_)); });
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return tell();
  }

  // Do these runs agree with those of other seeds in the folder?
  bool agrees(const std::string& folder) {
    const std::string other = file_in(folder, results_.experiment());
    const Agreement found = agreement_of(kept_runs(other, results_.experiment()), {results_, where_});
    json_["agreement"] = {{"numbers", found.numbers.size()},
                          {"varying", found.varying},
                          {"overlapping", found.overlapping},
                          {"apart", found.apart.size()},
                          {"moved", found.moved.size()}};
    if (processes_.rank() == 0) {
      fmt::print("with {}: {}\n", printable(other), text_of(found));
      for (const ComparedNumber& c : found.apart)
        fmt::print("  {}, {}: {} here, {} there (p {:.2g})\n", c.row, c.number, mean_text(c.again, 4),
                   mean_text(c.first, 4), c.p);
      for (const Moved& m : found.moved)
        fmt::print("  {}, {}: {:.2f} times as large as there\n", m.row, m.kind, m.ratio);
    }
    return found.apart.empty();
  }

  nlohmann::ordered_json json() const { return json_; }

  // ValueError that names the first number which is not that of the file.
  void compare(const std::string& folder) const {
    const std::string other = file_in(folder, results_.experiment());
    const Journal expected = kept_runs(other, results_.experiment());
    if (expected.where.fingerprint != where_.fingerprint) {
      if (processes_.rank() == 0)
        fmt::print("{} was made of other data: its numbers are not compared\n", printable(other));
      return;
    }
    if (const std::string found = first_difference(results_, expected.results); !found.empty())
      throw ValueError(fmt::format("{}: {} in {}", results_.experiment().name, found, other));
    if (processes_.rank() == 0) fmt::print("every number is that of {}\n", printable(other));
  }

 private:
  std::string models_of(const Experiment& e) const {
    return o_.models.empty() || !e.keeps_models ? "" : o_.models + "/" + e.name;
  }
  void keep() const {
    if (processes_.rank() == 0) write_file_atomically(path(), to_jsonl(results_, where_));
  }

  // Before anything is trained that could not be written.
  void try_models_folder() const {
    const std::string models = models_of(results_.experiment());
    if (models.empty()) return;
    make_folder(models, "--models");
    check_writable(models, {".tried"});
    for (const std::string& row : results_.rows())
      for (const std::uint64_t seed : results_.seeds()) {
        const std::string folder = models + "/" + model_folder_name(row, seed);
        check_replaceable(folder, image_model_rule(folder, "--models"));
      }
  }
  // A page has the results beside it.
  static FolderRule page_rule() {
    return {.kind = "an experiment that begins",
            .concerns = [](const std::string& name) { return name == "page.html"; },
            .may_replace = [](const std::string&) { return false; }};
  }

  // The runs that there are; "" if none: a call of several experiments may have been stopped before this one began.
  std::string known_text() const { return std::filesystem::exists(path()) ? read_found_file(path()) : ""; }

  void take_known(const std::string& text) {
    Journal known = parse_jsonl(text, path());
    if (const std::string other = other_than(known, results_, where_); !other.empty())
      throw ConfigError(fmt::format(
          "{} holds results {}; resume with the same settings, or choose another --out", path(), other));
    for (const std::string& row : results_.rows())
      for (const std::uint64_t seed : results_.seeds())
        if (const Measured* m = known.results.find(row, seed)) results_.add(row, seed, *m);
    where_ = known.where;
  }

  bool tell() {
    const Experiment& e = results_.experiment();
    bool stands = true;
    const bool speaks = processes_.rank() == 0;
    nlohmann::ordered_json claims = nlohmann::ordered_json::array();
    if (speaks) fmt::print("{}: {}\n", e.name, e.title);
    for (const JudgedClaim& c : judge(results_)) {
      stands = stands && c.verdict != Verdict::fails;
      if (speaks) fmt::print("  {}: {} ({})\n", text_of(c.verdict), c.text, c.evidence.shown);
      claims.push_back({{"claim", c.text}, {"verdict", text_of(c.verdict)}, {"found", c.evidence.shown}});
    }
    const std::string of_all = digest(results_, where_);
    if (speaks)
      fmt::print("digest {}, {}; {}/page.html\n", of_all, format_seconds(seconds_), printable(folder_));
    pass_on();  // where it is piped, before the next experiment's progress
    json_ = {{"experiment", e.name},
             {"claims", claims},
             {"digest", of_all},
             {"seconds", seconds_},
             {"page", folder_ + "/page.html"}};
    return stands;
  }

  const Options& o_;
  Transport& processes_;
  const std::string folder_;
  Results results_;
  Circumstances where_;
  std::optional<FolderLock> lock_;
  double seconds_ = 0;
  nlohmann::ordered_json json_;
};

void list() {
  for (const Experiment& e : experiments())
    fmt::print("{:<14} {}\n{:<14} {}\n{:<14} about {} min with --quick, {} with --full, on two cores\n\n",
               e.name, e.shows, "", e.source, "", format_number(e.quick_minutes),
               format_number(e.full_minutes));
  fmt::print("reproduce NAME runs one, `all` all of them; see --help\n");
}

constexpr const char* kPageHead =
    "# Reproductions\n\nTables of papers, made again at a size that two cores can do, with error bars. `reproduce --report` "
    "wrote this page, from the runs that are kept beside it; the call that a section names makes them again, and "
    "`reproduce NAME --quick` a short form whose numbers are the same to the last digit on every machine.\n\n"
    "Claims, with their signs and margins, were declared in the program before the runs of this page were made. Five were "
    "changed since they were first declared: that `views` without its update are worse by more than 1 dB stood at 3 dB, before "
    "runs were made longer, and the 3 dB are now a claim of full runs alone; that softmax attention is better than every "
    "frozen TTT layer was, until T^5's first quick runs were kept, about the gated one; and after the runs of this page were made "
    "`generation`'s claim on a third of a loss was left open where there is no loss to take a third of, and those of T^5 and of "
    "`paradoxes` on runs that break were given a sign test.\n\n"
    "Runs are paired by seeds (same data in the same "
    "order); intervals are 95 % t-intervals; p-values are adjusted for all claims of an experiment (Holm 1979). Where every pair shows the "
    "same number there is no spread to test with, and p is that of as many coins: 2^-n of n pairs (a rule that is younger than these runs). A claim that the runs "
    "decide neither way is *not reproduced at this scale*; one against which they decide is *contradicted*; one of which more than half "
    "of the pairs are missing is not decided. Where an experiment was run a second "
    "time with other seeds, its section ends with whether the two agree.\n\n";

// The page of what is kept: of each experiment the full runs, or else the quick ones.
void report(const Options& o) {
  std::string page = kPageHead;
  bool is_empty = true;
  for (const Experiment& e : experiments()) {
    const std::string full = file_in(o.kept, e), quick = file_in(o.kept + "/quick", e);
    const std::string path = std::filesystem::exists(full) ? full : quick;
    if (!std::filesystem::exists(path)) {
      page += fmt::format("## {}: {}\n\nNo runs are kept yet.\n\n", e.name, e.title);
      continue;
    }
    is_empty = false;
    const Journal journal = kept_runs(path, e);
    page += of_runs(path, [&] { return markdown_of(journal.results, journal.where); });
    const std::string again = file_in(o.kept + "/again", e);
    if (path == full && std::filesystem::exists(again))
      page += of_runs(again, [&] { return markdown_of(journal, kept_runs(again, e)); });
  }
  if (is_empty)
    throw IoError(fmt::format(
        "{}: no runs are kept there (NAME.jsonl, quick/NAME.jsonl); the page is left as it is", o.kept));
  while (page.ends_with("\n\n")) page.pop_back();
  if (o.check) {
    if (read_file(o.page) != page)
      throw ValueError(
          fmt::format("{} is not the page of what {} holds; reproduce --report writes it", o.page, o.kept));
    return;
  }
  write_file_atomically(o.page, page);
}

void go(const Options& o) {
  const std::shared_ptr<Transport> processes = open_processes();
  const bool speaks = processes->rank() == 0;
  // All that decides what is run. Folders may have other names elsewhere; data are compared by what they hold.
  std::vector<std::string> names = o.names;
  std::ranges::sort(names);
  check_same_call(
      *processes,
      fmt::format("{}{}{} seeds {} first-seed {} data {} models {} resume {} expect {} against {} "
                  "check {} json {}",
                  fmt::join(names, " "), o.report ? " report" : "", o.full ? " full" : " quick", o.seeds,
                  o.first_seed, !o.data.empty(), !o.models.empty(), o.resume, !o.expect.empty(),
                  !o.against.empty(), o.check, o.json));
  if ((o.report || o.names.empty()) && !speaks) return;
  if (o.report) return report(o);
  if (o.names.empty() && o.json) {
    nlohmann::ordered_json known = nlohmann::ordered_json::array();
    for (const Experiment& e : experiments()) known.push_back({{"name", e.name}, {"title", e.title}});
    return print_json({{"experiments", known}});
  }
  if (o.names.empty()) return list();
  const bool all_of_them = std::ranges::find(o.names, "all") != o.names.end();
  for (const std::string& name : o.names)
    if (!o.data.empty() && name != "all" && experiment_named(name).data == Data::drawn)
      throw CLI::ValidationError(fmt::format("--data: {} draws its own data; leave --data out", name));
  for (const std::string& name : o.names)
    if (!o.models.empty() && name != "all" && !experiment_named(name).keeps_models)
      throw CLI::ValidationError(
          fmt::format("--models: {} has no models of images to keep; leave --models out", name));
  std::vector<const Experiment*> named;
  for (const Experiment& e : experiments())
    if (all_of_them || std::ranges::find(o.names, e.name) != o.names.end()) named.push_back(&e);
  // What the runs are to be compared with is read now, and not only when hours have gone into them.
  // So is the data of each: one experiment's may not do for another.
  for (const Experiment* e : named)
    if (!o.data.empty()) source_of(*e, settings_of(o, *e));
  for (const Experiment* e : named)
    for (const std::string& folder : {o.expect, o.against}) {
      if (folder.empty()) continue;
      kept_runs(file_in(folder, *e), *e);
    }
  for (const Experiment* e : named) try {
      check_seeds(settings_of(o, *e));
    } catch (const ConfigError& wrong) {
      throw CLI::ValidationError("--first-seed", wrong.what());
    }
  processes->on_first([&] { check_begun(o, named); });
  std::vector<std::string> contradicted, apart;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Experiment* e : named) {
    Reproduction one(o, *e, *processes);
    if (!of_runs(one.path(), [&] { return one.go(); })) contradicted.push_back(e->name);
    if (!o.against.empty() && !of_runs(o.against, [&] { return one.agrees(o.against); }))
      apart.push_back(e->name);
    all.push_back(one.json());
    if (!o.expect.empty()) one.compare(o.expect);
  }
  if (o.json && speaks) print_json({{"experiments", all}, {"processes", processes->size()}});
  if (o.check && !contradicted.empty())
    throw ValueError(fmt::format("a claim is contradicted in {}", fmt::join(contradicted, ", ")));
  if (o.check && !apart.empty())
    throw ValueError(fmt::format("runs with other seeds do not agree in {}", fmt::join(apart, ", ")));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Tables of papers, made again with error bars. Without a name it lists the experiments; with one, or `all`, it\n"
      "runs them and writes a page and results.jsonl. Exit code 1 with --check if a claim is contradicted.",
      "reproduce"};
  Options o;
  std::vector<std::string> names{"all"};
  for (const Experiment& e : experiments()) names.push_back(e.name);
  app.add_option("NAME", o.names, "Experiments, or all")
      ->check(CLI::IsMember(names))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* quick =
      app.add_flag("--quick", o.quick, "A short form, of some minutes (this is what is run by default)");
  app.add_flag("--full", o.full, "The long form")->excludes(quick);
  app.add_option("--seeds", o.seeds, "Runs of each row (default: as many as the experiment says)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--first-seed", o.first_seed, "Their first seed; the others follow")->capture_default_str();
  app.add_option(
         "--data", o.data,
         "Data of the experiments named, instead of what they have (a text or a folder of texts; of digits or characters,\nwhere an experiment reads images)")
      ->check(not_empty);
  app.add_option("--out", o.out, "Each experiment has a folder in this one")
      ->check(not_empty)
      ->capture_default_str();
  app.add_option("--models", o.models,
                 "Folder for the trained models of experiments on images, one for each row and seed: for\n"
                 "inspect --checkpoint (runs that --resume finds done leave none)")
      ->check(not_empty);
  app.add_option("--jobs", o.jobs,
                 "Runs side by side, each in one thread (default: the number of threads); of several\n"
                 "processes, which mpirun starts, each has as many, and they share the runs")
      ->check(CLI::Range(1, 256));
  app.add_flag("--resume", o.resume, "Go on with the runs of a call that was stopped");
  app.add_option("--expect", o.expect,
                 "Folder of results.jsonl files by experiment (NAME.jsonl) that must have the same numbers")
      ->check(not_empty);
  app.add_option(
         "--against", o.against,
         "Folder of such files with runs of other seeds: do they agree? (docs/reproductions has those\nof --full)")
      ->check(not_empty);
  app.add_flag(
      "--check", o.check,
      "Fail if a claim is contradicted, or runs of --against do not agree; with --report, if the\npage is another");
  const std::vector<CLI::Option*> of_runs_alone = app.get_options([](const CLI::Option* option) {
    return !option->check_name("--help") && !option->check_name("--version") &&
           !option->check_name("--check");
  });
  CLI::Option* const report =
      app.add_flag("--report", o.report, "Run nothing: write the page of the runs that are kept");
  for (CLI::Option* option : of_runs_alone) report->excludes(option);
  app.add_option(
         "--kept", o.kept,
         "--report: folder of these runs: NAME.jsonl, again/NAME.jsonl with other seeds, quick/NAME.jsonl")
      ->check(not_empty)
      ->needs(report)
      ->capture_default_str();
  app.add_option("--page", o.page, "--report: the page")
      ->check(not_empty)
      ->needs(report)
      ->capture_default_str();
  app.add_flag("--json", o.json, "The last line of output is a JSON object")->excludes(report);
  return run_program(
      argc, argv, app,
      [&] {
        if (o.names.empty() && !o.report && o.check)
          throw CLI::ValidationError("--check", "is about runs, or --report: name an experiment, or `all`");
        if (o.names.empty() && !o.report)
          for (const CLI::Option* option : of_runs_alone)
            if (option->count() > 0)
              throw CLI::ValidationError(option->get_name(), "is about runs: name an experiment, or `all`");
        go(o);
      },
      Processes::several);
}
