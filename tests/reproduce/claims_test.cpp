// The promise: what is said of a claim is what its runs say. A run that diverged is no number, pairs that are left out are
// counted, numbers that do not vary prove little, and nothing that one claim meets takes the page away.
#include "reproduce/claims.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "engine/core/random.h"
#include "engine/io/file.h"
#include "reproduce/agreement.h"
#include "reproduce/journal.h"
#include "reproduce/page.h"
#include "reproduce/statistics.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

namespace {

using Rows = std::map<std::string, std::vector<double>>;  // a loss for each seed; NaN: the run diverged
constexpr double kDiverged = std::numeric_limits<double>::quiet_NaN();

// An experiment that has one claim, and runs that were made by hand.
struct Made {
  Experiment experiment;
  std::optional<Results> results;
  Made(DeclaredClaim claim, const Rows& rows, int seeds) {
    experiment.name = "made", experiment.title = "Made", experiment.shows = "a claim",
    experiment.source = "none";
    experiment.rows = [rows](const Settings&) {
      std::vector<std::string> out;
      for (const auto& [name, losses] : rows) out.push_back(name);
      return out;
    };
    experiment.claims = {std::move(claim)};
    experiment.views = [](const Results&) { return std::vector<ReportView>{}; };
    Settings settings;
    settings.seeds = seeds;
    results.emplace(experiment, settings);
    for (const auto& [name, losses] : rows)
      for (std::size_t i = 0; i < losses.size(); ++i) {
        Measured m;
        if (std::isnan(losses[i])) m.failure = "diverged";
        else m.numbers["loss"] = losses[i];
        results->add(name, i, std::move(m));
      }
  }
};

JudgedClaim judged(DeclaredClaim claim, const Rows& rows) {
  const Made made(std::move(claim), rows, static_cast<int>(rows.begin()->second.size()));
  return judge(*made.results).at(0);
}

std::vector<Journal> kept_journals() {
  std::vector<Journal> out;
  for (const Experiment& e : experiments()) {
    const std::string path = fmt::format("{}/../docs/reproductions/{}.jsonl", NESTGRAD_TEST_DATA, e.name);
    if (std::filesystem::exists(path)) out.push_back(parse_jsonl(read_file(path), path, e.name));
  }
  return out;
}

// The same runs, but those of a row from seed number `from` up to `to` have diverged.
Results with_diverged(const Results& results, const std::string& row, std::size_t from, std::size_t to) {
  Results out = results;
  for (std::size_t i = from; i < to; ++i) out.add(row, results.seeds()[i], {.failure = "diverged"});
  return out;
}

// Whether runs break is what these claims are about.
bool counts_broken_runs(const JudgedClaim& c) {
  return contains(c.text, "more runs break") || contains(c.text, "or not finite");
}

}  // namespace

TEST_CASE("claims: a run that diverged is never a number, in any claim of any experiment") {
  const std::vector<Journal> kept = kept_journals();
  REQUIRE(kept.size() > 8);
  for (const Journal& journal : kept) {
    const Results& all = journal.results;
    const std::vector<JudgedClaim> before = judge(all);
    const std::size_t seeds = all.seeds().size();
    for (const std::string& row : all.rows()) {
      const std::vector<JudgedClaim> without = judge(with_diverged(all, row, 0, seeds)),
                                     less_one = judge(with_diverged(all, row, 0, 1));
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (counts_broken_runs(before[i])) continue;
        CAPTURE(all.experiment().name);
        CAPTURE(row);
        CAPTURE(before[i].text);
        // Either the claim does not need the row, or it is not decided; and it says which pairs it has.
        CHECK((without[i].evidence.shown == before[i].evidence.shown || without[i].verdict == Verdict::open));
        CHECK((less_one[i].evidence.shown == before[i].evidence.shown ||
               contains(less_one[i].evidence.shown, "diverged") ||
               contains(less_one[i].evidence.shown, "too few")));
        CHECK_FALSE(contains(without[i].evidence.shown, "inf"));
      }
    }
    const std::string first = all.rows().front();
    CHECK(contains(markdown_of(with_diverged(all, first, 0, seeds), {}), "Runs that failed"));
  }
}

TEST_CASE("claims: the largest and the least of numbers pass NaN on") {
  CHECK(largest_of({1, 3, 2}) == 3);
  CHECK(least_of({1, -3, 2}) == -3);
  CHECK(std::isnan(largest_of({1, kDiverged, 2})));
  CHECK(std::isnan(largest_of({kDiverged, 2})));
  CHECK(std::isnan(least_of({1, kDiverged, 2})));
  CHECK(std::isnan(largest_of({})));
}

TEST_CASE("claims: pairs that are left out are counted, and less than half of them decide nothing") {
  const DeclaredClaim claim = below("a", "b", "loss", "a is below b"),
                      close = within("a", "b", "loss", 9, "close");
  const std::vector<double> b(5, 2.0);
  const JudgedClaim whole = judged(claim, {{"a", {1, 1.01, 0.99, 1.02, 1}}, {"b", b}});
  CHECK(whole.verdict == Verdict::holds);
  CHECK_FALSE(contains(whole.evidence.shown, "pairs"));
  const Rows three{{"a", {1, kDiverged, 0.99, kDiverged, 1.01}}, {"b", b}},
      two{{"a", {1, kDiverged, kDiverged, kDiverged, 1.0001}}, {"b", b}};
  for (const DeclaredClaim& c : {claim, close}) {
    CAPTURE(c.text);
    CHECK(judged(c, three).verdict == Verdict::holds);
    CHECK(contains(judged(c, three).evidence.shown,
                   "3 of 5 pairs: in the others a run diverged or is missing"));
    CHECK(judged(c, two).verdict == Verdict::open);
    CHECK(contains(judged(c, two).evidence.shown, "2 of 5 pairs"));
  }
  CHECK(judged(below("b", "a", "loss", ""), two).verdict == Verdict::open);  // nor is it contradicted
  // An infinity is no number either.
  const DeclaredClaim infinite = negative("", "", [](const Results&, std::uint64_t seed) {
    return seed == 1 ? -std::numeric_limits<double>::infinity() : -1 - 0.01 * static_cast<double>(seed);
  });
  CHECK(contains(judged(infinite, three).evidence.shown, "4 of 5 pairs"));
}

TEST_CASE("claims: numbers that are the same for every seed have the p-value of as many coins") {
  const auto of_equal = [](std::size_t n, double a) {
    return judged(below("a", "b", "loss", ""),
                  {{"a", std::vector<double>(n, a)}, {"b", std::vector<double>(n, 2.0)}});
  };
  CHECK(of_equal(3, 1).p == 0.125);
  CHECK(of_equal(3, 1).verdict == Verdict::open);
  CHECK(of_equal(5, 1).p == 1.0 / 32);
  CHECK(of_equal(5, 1).verdict == Verdict::holds);
  CHECK(of_equal(5, 3).verdict == Verdict::fails);
  CHECK(of_equal(5, 2).verdict == Verdict::open);
  CHECK(of_equal(5, 1).evidence.shown == "-1.0000 in every pair");
  CHECK(judged(within("a", "b", "loss", 0.5, ""), {{"a", {2, 2, 2}}, {"b", {2, 2, 2}}}).p == 0.125);
  CHECK(judged(within("a", "b", "loss", 0.5, ""), {{"a", {2, 2, 2}}, {"b", {1, 1, 1}}}).against == 0.125);
  // What rounding alone tells apart is the same.
  CHECK(judged(below("a", "b", "loss", ""), {{"a", {99.2, 98.8, 98.0}}, {"b", {99.6, 99.2, 98.4}}}).p ==
        0.125);
  // What is shown is what was measured, whatever it is claimed to be below.
  const JudgedClaim cost = judged(below("a", "b", "loss", "", -1), {{"a", {3, 3, 3}}, {"b", {3, 3, 3}}});
  CHECK(cost.evidence.shown == "+0.0000 in every pair");
  CHECK(cost.p == 0.125);
}

TEST_CASE("claims: counts of few images at the border of a claim are seldom taken for it") {
  // Each of 3 seeds gets 50 answers wrong with a chance of 1 %, which is not less than 1 %.
  int wrong = 0;
  const int worlds = 1000;
  for (std::uint64_t world = 0; world < worlds; ++world) {
    std::vector<double> share;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      double errors = 0;
      for (std::uint64_t i = 0; i < 50; ++i) errors += random_below(100, world, seed, i) == 0;
      share.push_back(errors / 50);
    }
    wrong += judged(below("a", "b", "loss", "", -0.01), {{"a", share}, {"b", {0, 0, 0}}}).verdict ==
             Verdict::holds;
  }
  CHECK(wrong < worlds / 20);
}

TEST_CASE("claims: a count decides by a sign test over seeds") {
  const DeclaredClaim more = mostly_negative(
      "more", [](const Results& r, std::uint64_t seed) { return r.number("a", seed, "loss"); },
      [](const Results&) { return "counted"; });
  CHECK(judged(more, {{"a", {0, 0, 0, 0, -1}}}).p == 0.5);  // one against none is chance
  CHECK(judged(more, {{"a", {-1, -2, -1, -1, -1}}}).verdict == Verdict::holds);
  CHECK(judged(more, {{"a", {1, 2, 1, 1, 1}}}).verdict == Verdict::fails);
  CHECK(judged(more, {{"a", {0, 0, 0, 0, 0}}}).verdict == Verdict::open);
  CHECK(contains(judged(more, {{"a", {-1, kDiverged, -1, -1, -1}}}).evidence.shown, "counted; 4 of 5 pairs"));
}

TEST_CASE("claims: what is exact is so of all runs") {
  const auto claim = [](bool holds, std::size_t diverged) {
    return exact("", [=](const Results&) { return Exact{holds, "seen", diverged}; });
  };
  const Rows rows{{"a", {1, 2, 3}}};
  CHECK(judged(claim(true, 0), rows).verdict == Verdict::holds);
  CHECK(judged(claim(true, 1), rows).verdict == Verdict::open);
  CHECK(judged(claim(true, 1), rows).evidence.shown == "seen; 1 diverged");
  CHECK(judged(claim(false, 1), rows).verdict == Verdict::fails);
  for (const bool holds : {true, false}) {
    const Made part(claim(holds, 0), rows, 5);
    CHECK(judge(*part.results).at(0).verdict == Verdict::open);
    CHECK(contains(judge(*part.results).at(0).evidence.shown, "runs are missing"));
    CHECK(contains(markdown_of(*part.results, {}), "seeds 0 to 4; incomplete: 3 of 5 runs are there"));
    CHECK(contains(page_of(*part.results, {}), "incomplete: 3 of 5 runs are there"));
  }
}

TEST_CASE("claims: a test that throws leaves its claim open, and the page is there") {
  const DeclaredClaim claim = negative("order", "", [](const Results&, std::uint64_t) {
    return -spearman(std::vector<double>{1, 2}, std::vector<double>{3, 3});
  });
  const Made made(claim, {{"a", {1, 2, 3}}}, 3);
  const JudgedClaim c = judge(*made.results).at(0);
  CHECK(c.verdict == Verdict::open);
  CHECK(contains(c.evidence.shown, "all y are equal, 3"));
  CHECK(contains(page_of(*made.results, {}), "all y are equal, 3"));
}

TEST_CASE("claims: lists of other lengths are not subtracted or drawn") {
  CHECK_THROWS_AS(less({1, 2, 3}, {1, 2}), std::out_of_range);
  CHECK_THROWS_AS(less({1, 2}, {1, 2, 3}), std::out_of_range);
  CHECK_THROWS_AS(mean_line("", {1, 2}, {{1, 2, 3}}), std::out_of_range);
  const Measured m{.curves = {{"c", {1, 2}}}};
  CHECK(m.curve("c", 2) == std::vector<double>{1, 2});
  CHECK_THROWS_AS(m.curve("c", 3), std::out_of_range);
  CHECK_THROWS_AS(m.curve("d", 2), std::out_of_range);
}

TEST_CASE("claims: a section names the call that makes its runs again") {
  Experiment e = experiment_named("few-shot");
  Settings settings;
  settings.extent = Extent::full, settings.seeds = e.full_seeds;
  CHECK(contains(markdown_of(Results(e, settings), {}), "`reproduce few-shot --full`, seeds 0 to 4"));
  settings.first_seed = 3, settings.seeds = 2;
  CHECK(contains(markdown_of(Results(e, settings), {}),
                 "`reproduce few-shot --full --seeds 2 --first-seed 3`, seeds 3 to 4"));
}

TEST_CASE("reproduce: seeds of the data that runs are tested with are refused") {
  const auto said = [](std::uint64_t first, int seeds) {
    Settings settings;
    settings.first_seed = first, settings.seeds = seeds;
    return message_of<ConfigError>([&] { check_seeds(settings); });
  };
  CHECK(contains(said(kHeldOutSeed, 1), "hold 1751477348"));
  CHECK(contains(said(kHeldOutSeed - 4, 5), "hold 1751477348"));
  CHECK(contains(said(~std::uint64_t{0}, 2), "beyond 2^64"));
  for (const auto& [first, seeds] :
       {std::pair{kHeldOutSeed - 5, 5}, std::pair{kHeldOutSeed + 1, 5}, std::pair{~std::uint64_t{0}, 1}}) {
    Settings settings;
    settings.first_seed = first, settings.seeds = seeds;
    CHECK_NOTHROW(check_seeds(settings));
  }
}

TEST_CASE("reproduce: a file whose head or runs do not fit each other is refused") {
  const Experiment& e = experiment_named("context");
  Settings settings;
  Results results(e, settings);
  const std::string row = e.rows(settings)[1];
  for (const std::uint64_t seed : {0, 1})
    results.add(row, seed, {.numbers = {{"loss", 1.0}}, .curves = {{"loss by place", {1, 2, 3}}}});
  const std::string text = to_jsonl(results, {});
  CHECK(parse_jsonl(text, "file", "context").results.known() == 2);
  const auto said = [&](const std::string& from, const std::string& to, const std::string& name = "context") {
    std::string changed = text;
    const std::size_t at = changed.rfind(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    return message_of<IoError>([&] { static_cast<void>(parse_jsonl(changed, "file", name)); });
  };
  CHECK(contains(said("context", "context", "ascent"), "these are runs of 'context', and not of ascent"));
  for (const char* seeds : {"5.9", "4294967301", "-1", "0", "\"3\""}) {
    CAPTURE(seeds);
    CHECK(contains(said("\"seeds\":3", fmt::format("\"seeds\":{}", seeds)),
                   "not a whole number from 1 to 1000"));
  }
  CHECK(contains(said("\"first_seed\":0", "\"first_seed\":0.5"), "\"first_seed\" is 0.5"));
  CHECK(contains(said("\"first_seed\":0", "\"first_seed\":1751477348"), "hold 1751477348"));
  CHECK(contains(said("\"seed\":1", "\"seed\":1.5"), "file, line 3: \"seed\" is 1.5"));
  CHECK(contains(
      said("[1.0,2.0,3.0]", "[1.0,2.0]"),
      fmt::format(
          "file, line 3: the run of row '{}' with seed 1 is unlike others: its curve 'loss by place' has 2 "
          "numbers, that of another run of the row 3",
          row)));
  CHECK(contains(said("\"loss\":1.0", "\"other\":1.0"),
                 "it has not the numbers that the row's other runs have"));
}

TEST_CASE("agreement: a row that doubles is named, numbers that do not vary are not overlapping ones") {
  const DeclaredClaim claim = below("a", "b", "loss", "");
  const Made first(claim, {{"a", {1, 1.5, 0.8}}, {"b", {2, 2, 2}}}, 3);
  const auto again_of = [&](double times, double still) {
    Settings settings = first.results->settings();
    settings.first_seed = 10;
    Results again(first.experiment, settings);
    for (const auto& [i, x] : {std::pair{0, 1.1}, std::pair{1, 0.9}, std::pair{2, 1.4}}) {
      again.add("a", 10 + static_cast<std::uint64_t>(i), {.numbers = {{"loss", times * x}}});
      again.add("b", 10 + static_cast<std::uint64_t>(i), {.numbers = {{"loss", still}}});
    }
    return Journal{std::move(again), {}};
  };
  const Journal of_first{*first.results, {}};
  const Agreement same = agreement_of(of_first, again_of(1, 2)),
                  doubled = agreement_of(of_first, again_of(2, 2.5));
  CHECK(
      text_of(same) ==
      "2 numbers in both: of 1 that vary 1 have overlapping intervals, of 1 that do not 1 are the same; no means differ");
  CHECK(same.moved.empty());
  CHECK(contains(text_of(doubled), "of 1 that do not 0 are the same"));
  REQUIRE(doubled.moved.size() == 1);
  CHECK(doubled.moved[0].row == "a");
  CHECK(doubled.moved[0].ratio == doctest::Approx(2 * 3.4 / 3.3));
  CHECK(doubled.numbers[0].p ==
        doctest::Approx(2 * unpaired_difference(doubled.numbers[0].first, doubled.numbers[0].again).p));
  CHECK(doubled.numbers[1].p == doctest::Approx(0.1));  // 2 of the 20 ways to share six runs out
  const std::string section = markdown_of(of_first, again_of(2, 2));
  CHECK(contains(section, "| a | loss | 1 | 2.06 |"));
  CHECK(contains(section, "a mean had to be about"));
  CHECK(contains(markdown_of(of_first, again_of(1, 2)), "No numbers of a row are 1.5 times as large"));
}

TEST_CASE("agreement: a difference as large as is said to be found is found four times in five") {
  int found = 0;
  const int worlds = 400;
  for (std::uint64_t world = 0; world < worlds; ++world) {
    const auto drawn = [&](std::uint64_t stream, double mean) {
      std::vector<double> out;
      const Array x = random_normal({DType::f64, {5}}, mean, 1, world, stream);
      for (std::int64_t i = 0; i < 5; ++i) out.push_back(x.at(i));
      return out;
    };
    const Made none(below("a", "a", "loss", ""), {{"a", drawn(0, 100)}}, 5);
    // Of this size on the average: deviations are 1.
    constexpr double kFound = 2.01;
    Settings settings;
    settings.seeds = 5, settings.first_seed = 10;
    Results again(none.experiment, settings);
    const std::vector<double> other = drawn(1, 100 + kFound);
    for (std::size_t i = 0; i < 5; ++i) again.add("a", 10 + i, {.numbers = {{"loss", other[i]}}});
    const Agreement a = agreement_of({*none.results, {}}, {again, {}});
    CHECK(a.least_found > 0);
    found += !a.apart.empty();
  }
  CHECK(found > worlds * 0.72);
  CHECK(found < worlds * 0.88);
}
