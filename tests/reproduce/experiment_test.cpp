// The promise: what reproduce says of runs is what the runs say, whatever order they were made in, whoever stopped it, and a
// claim is judged by what was declared.
#include "reproduce/experiment.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "reproduce/agreement.h"
#include "reproduce/claims.h"
#include "reproduce/journal.h"
#include "reproduce/page.h"
#include "reproduce/runner.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

namespace {

// Rows "low" and "high", whose loss differs by `by`, and a row "none" whose every run fails.
Experiment sample(double by = 0.1) {
  Experiment e;
  e.name = "sample", e.title = "A sample", e.shows = "that runs are kept", e.source = "no paper";
  e.rows = [](const Settings&) { return std::vector<std::string>{"low", "high", "none"}; };
  e.run = [by](const Task& task) {
    Measured m;
    const double noise = 0.01 * std::sin(static_cast<double>(7 * task.seed + (task.row == "low")));
    if (task.row == "none") throw ValueError("the loss is not finite");
    m.numbers["loss"] = 2 + (task.row == "high" ? by : 0) + noise;
    m.curves["by position"] = {m.numbers["loss"], 1.0 / 3};
    m.clock["tokens/s"] = 1000;
    if (task.progress) task.progress(0.5);
    return m;
  };
  e.claims = {below("low", "high", "loss", "low is below high")};
  e.views = [](const Results& r) {
    return std::vector<ReportView>{
        {.id = "rows",
         .title = "Rows",
         .pictures = {Table{"Rows", {"row"}, {{"low " + mean_text(r.of("low", "loss"))}}}}}};
  };
  return e;
}

Results run_of(const Experiment& e, int seeds, int jobs, std::uint64_t first = 0) {
  Settings settings;
  settings.seeds = seeds, settings.first_seed = first;
  Results results(e, settings);
  run_all(results, {.jobs = jobs});
  return results;
}

Verdict verdict_of(DeclaredClaim claim, double by, int seeds = 5) {
  Experiment e = sample(by);
  e.claims = {std::move(claim)};
  return judge(run_of(e, seeds, 1)).at(0).verdict;
}

}  // namespace

TEST_CASE("reproduce: side by side or one after the other, all runs are made, and are the same") {
  const Experiment e = sample();
  const Results one = run_of(e, 4, 1), three = run_of(e, 4, 3);
  CHECK(one.complete());
  CHECK(digest(one, {}) == digest(three, {}));
  CHECK(first_difference(one, three).empty());
  CHECK(one.of("low", "loss").size() == 4);
  CHECK(one.of("none", "loss").empty());
  CHECK(one.find("none", 0)->failure == "the loss is not finite");
  CHECK(digest(one, {}) != digest(run_of(e, 4, 1, 1), {}));
  CHECK(contains(message_of<ConfigError>([&] { static_cast<void>(one.of("low", "accuracy")); }),
                 "no number 'accuracy'"));
}

TEST_CASE(
    "reproduce: known runs are not made again; each is kept as soon as it has ended, and an error ends the call") {
  std::atomic<int> made{0};
  Experiment e = sample();
  e.run = [&made, run = e.run](const Task& task) {
    ++made;
    if (task.row == "high" && task.seed == 1) throw IoError("the disk is full");
    return run(task);
  };
  Settings settings;
  Results results(e, settings);
  std::size_t kept = 0;
  CHECK_THROWS_WITH_AS(run_all(results, {.jobs = 1, .keep = [&](const Results&) { ++kept; }}),
                       "the disk is full", IoError);
  CHECK(kept >= 3);  // seed 0 of all rows comes first
  for (const std::string& row : results.rows()) CHECK(results.find(row, 0) != nullptr);
  const int before = made;
  e.run = [&made](const Task&) {
    ++made;
    return Measured{.numbers = {{"loss", 1.0}}};
  };
  const int missing = 9 - static_cast<int>(kept);
  double last = 0;
  run_all(results, {.jobs = 2, .progress = [&](const std::string&, double done) { last = done; }});
  CHECK(made == before + missing);
  CHECK(last == 1);
  CHECK(results.complete());
}

TEST_CASE("reproduce: an error on its way does not wait for the runs that are going on") {
  Experiment e = sample();
  std::atomic<int> whole{0};
  e.run = [&](const Task& task) {
    if (task.row != "low") {
      for (int i = 0; i < 400; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
        task.progress(i / 400.0);
      ++whole;
    }
    return Measured{.numbers = {{"loss", 1.0}}};
  };
  Results results(e, {});
  CHECK_THROWS_WITH_AS(
      run_all(results, {.jobs = 2, .keep = [](const Results&) { throw IoError("the disk is full"); }}),
      "the disk is full", IoError);
  CHECK(whole == 0);
}

TEST_CASE("reproduce: a number that is not finite makes a failed run, not a number") {
  Experiment e = sample();
  e.run = [](const Task& task) {
    Measured m{.numbers = {{"loss", 1.0}}};
    if (task.row == "low") m.numbers["other"] = std::numeric_limits<double>::infinity();
    if (task.row == "high") m.curves["c"] = {1, std::nan("")};
    return m;
  };
  const Results results = run_of(e, 1, 1);
  CHECK(contains(results.find("low", 0)->failure, "other is not finite"));
  CHECK(contains(results.find("high", 0)->failure, "c is not finite"));
  CHECK_FALSE(results.find("none", 0)->failed());
}

TEST_CASE("reproduce: claims hold, fail or stay open as the runs decide") {
  CHECK(verdict_of(below("low", "high", "loss", ""), 0.1) == Verdict::holds);
  CHECK(verdict_of(below("high", "low", "loss", ""), 0.1) == Verdict::fails);
  CHECK(verdict_of(below("low", "high", "loss", ""), 0.001) == Verdict::open);
  CHECK(verdict_of(below("low", "high", "loss", "", 0.05), 0.1) == Verdict::holds);
  CHECK(verdict_of(below("low", "high", "loss", "", 0.15), 0.1) == Verdict::fails);
  CHECK(verdict_of(within("low", "high", "loss", 0.05, ""), 0.0) == Verdict::holds);
  CHECK(verdict_of(within("low", "high", "loss", 0.05, ""), 0.1) == Verdict::fails);
  CHECK(verdict_of(within("high", "low", "loss", 0.05, ""), 0.1) == Verdict::fails);
  CHECK(verdict_of(within("low", "high", "loss", 0.003, ""), 0.0) == Verdict::open);
  CHECK(verdict_of(below("low", "high", "loss", ""), 0.1, 1) == Verdict::open);  // one run is no test
  CHECK(verdict_of(below("none", "high", "loss", ""), 0.1) == Verdict::open);    // nor is none
  CHECK(verdict_of(exact("", [](const Results&) { return Exact{true, ""}; }), 0) == Verdict::holds);
  CHECK(verdict_of(exact("", [](const Results&) { return Exact{false, ""}; }), 0) == Verdict::fails);
}

TEST_CASE("reproduce: a table without any effect has a false claim at most as often as its level says") {
  // Ten claims on noise of both signs, in 400 tables: Holm bounds the tables with one, not the claims.
  int tables = 0;
  for (std::uint64_t table = 0; table < 400; ++table) {
    Experiment e = sample();
    e.run = [](const Task& task) {
      Measured m;
      for (int i = 0; i < 10; ++i)
        m.numbers[std::to_string(i)] = random_normal({DType::f64, {}}, 0, 1, task.seed,
                                                     static_cast<std::uint64_t>(2 * i + (task.row == "low")))
                                           .item();
      return m;
    };
    e.claims.clear();
    for (int i = 0; i < 10; ++i) e.claims.push_back(below("low", "high", std::to_string(i), ""));
    bool any = false;
    for (const JudgedClaim& c : judge(run_of(e, 5, 1, 100 * table))) any = any || c.verdict == Verdict::holds;
    tables += any;
  }
  CHECK(tables <= 30);  // 20 expected at most (each sign has half of it), standard deviation 4.4
  CHECK(tables > 0);
}

TEST_CASE("reproduce: the file of runs gives back every bit, and says what is wrong with another") {
  const Experiment& e = experiment_named("ascent");
  Settings settings;
  settings.seeds = 2, settings.first_seed = 5;
  Results results(e, settings);
  results.add(e.rows(settings)[0], 5,
              {.numbers = {{"loss", 0.1}}, .curves = {{"c", {1.0 / 3, 5e-324}}}, .clock = {{"s", 2}}});
  results.add(e.rows(settings)[1], 6, {.failure = "not finite"});
  const Circumstances where{"text", "00ff", "a machine", "2026-01-02"};
  const std::string text = to_jsonl(results, where);
  const Journal back = parse_jsonl(text, "file");
  CHECK(to_jsonl(back.results, back.where) == text);
  CHECK(digest(back.results, back.where) == digest(results, where));
  CHECK(first_difference(back.results, results).empty());

  CHECK(digest(results, {"text", "00fe", "a machine", "2026-01-02"}) != digest(results, where));
  CHECK(digest(results, {"other", "00ff", "another", "2026-01-03"}) == digest(results, where));

  // The clock is no part of the digest; every bit of a number is.
  Results other = results;
  other.add(e.rows(settings)[0], 5,
            {.numbers = {{"loss", 0.1}}, .curves = {{"c", {1.0 / 3, 5e-324}}}, .clock = {{"s", 3}}});
  CHECK(digest(other, where) == digest(results, where));
  other.add(e.rows(settings)[0], 5,
            {.numbers = {{"loss", std::nextafter(0.1, 1)}}, .curves = {{"c", {1.0 / 3, 5e-324}}}});
  CHECK(digest(other, where) != digest(results, where));
  CHECK(contains(first_difference(other, results), "numbers/loss is 0.10000000000000002, it was 0.1"));
  CHECK(contains(first_difference(Results(e, settings), results), "this has no run"));

  const auto wrong = [](const std::string& bad) {
    return message_of<IoError>([&] { static_cast<void>(parse_jsonl(bad, "file")); });
  };
  CHECK(contains(wrong(""), "file, line 0: is missing"));
  CHECK(contains(wrong("[1]\n"), "file, line 1: is no JSON object"));
  CHECK(contains(wrong("{\"experiment\": \"nothing\"}\n"), "line 1"));
  const std::string head = text.substr(0, text.find('\n') + 1);
  CHECK(contains(wrong(head + "{\"row\": \"nothing\", \"seed\": 5}\n"),
                 "there is no run of row 'nothing' with seed 5"));
  CHECK(contains(wrong(text + text.substr(text.find('\n') + 1)), "twice"));
  const std::string row = fmt::format("{{\"row\": \"{}\", \"seed\": 5, ", e.rows(settings)[0]);
  CHECK(contains(wrong(head + row + "\"failure\": \"\"}\n"), "failed without a reason"));
  CHECK(contains(wrong(head + row + "\"numbers\": {}, \"curves\": {\"c\": []}}\n"),
                 "the curve 'c' has no numbers"));
  CHECK(contains(wrong(head + row + "\"numbers\": 1}\n"), "missing, or of another type"));
  CHECK(contains(wrong(text.substr(0, text.size() / 2)), "file, line"));
}

TEST_CASE(
    "reproduce: a page is the same of resumed runs, and shows claims, every run and those that failed") {
  const Experiment e = sample();
  const Results results = run_of(e, 3, 2);
  const std::string page = page_of(results, {});
  Results parts(e, results.settings());
  for (const std::uint64_t seed : results.seeds()) parts.add("high", seed, *results.find("high", seed));
  run_all(parts, {.jobs = 1});
  CHECK(page_of(parts, {}) == page);
  for (const char* text : {"low is below high", "holds", "the loss is not finite", "Runs that failed",
                           "Every run", "A sample"}) {
    CAPTURE(text);
    CHECK(contains(page, text));
  }
  const std::string section = markdown_of(results, {});
  for (const char* text :
       {"## sample: A sample", "| row |", "* low is below high: **holds**", "**Runs that failed**"}) {
    CAPTURE(text);
    CHECK(contains(section, text));
  }
}

TEST_CASE("reproduce: every experiment says what it is, and its rows and claims are no others") {
  for (const Experiment& e : experiments()) {
    CAPTURE(e.name);
    CHECK_FALSE(e.title.empty());
    CHECK_FALSE(e.shows.empty());
    CHECK_FALSE(e.source.empty());
    CHECK(&experiment_named(e.name) == &e);
    for (const Extent extent : {Extent::quick, Extent::full}) {
      Settings settings;
      settings.extent = extent;
      const Results none(e, settings);
      std::vector<std::string> rows = none.rows();
      REQUIRE_FALSE(rows.empty());
      std::ranges::sort(rows);
      CHECK(std::ranges::adjacent_find(rows) == rows.end());
      // Nothing is known: nothing holds by itself, and there is a page.
      for (const JudgedClaim& c : judge(none)) CHECK(c.verdict != Verdict::holds);
      CHECK(contains(page_of(none, {}), e.title.substr(0, 12)));
      CHECK(contains(markdown_of(none, {}), e.name));
    }
  }
  CHECK(contains(message_of<ConfigError>([] { static_cast<void>(experiment_named("nothing")); }),
                 "there are ascent"));
}

TEST_CASE("reproduce: runs with other seeds agree, or it is said which numbers do not") {
  const Experiment plain = sample(), moved = sample(0.2);
  const Journal first{run_of(plain, 9, 1), {}};
  const Agreement same = agreement_of(first, {run_of(plain, 9, 1, 9), {}});
  CHECK(same.numbers.size() == 2);  // the loss of two rows; the third has no finished run
  CHECK(same.overlapping == 2);
  CHECK(same.apart.empty());
  const Journal again{run_of(moved, 9, 1, 9), {}};
  const Agreement other = agreement_of(first, again);
  REQUIRE(other.apart.size() == 1);
  CHECK(other.apart[0].row == "high");
  CHECK(other.apart[0].p < 0.05);
  CHECK(other.overlapping == 1);
  const std::string section = markdown_of(first, again);
  for (const char* text :
       {"**Again, with seeds 9 to 17**",
        "2 numbers in both: of 2 that vary 1 have overlapping intervals; one mean differs",
        "| low is below high | holds | holds |", "**Means that differ**", "| high | loss |"}) {
    CAPTURE(text);
    CHECK(contains(section, text));
  }
  CHECK_FALSE(contains(markdown_of(first, {run_of(plain, 9, 1, 9), {}}), "Means that differ"));
  const auto refused = [&](const Journal& b) {
    return message_of<ConfigError>([&] { static_cast<void>(agreement_of(first, b)); });
  };
  CHECK(contains(refused({run_of(plain, 9, 1, 8), {}}), "both have seed 8"));
  CHECK(contains(refused({run_of(plain, 9, 1, 9), {.fingerprint = "x"}}), "on other data"));
}
