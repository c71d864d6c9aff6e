// The promise: the rows of a run survive its file, and a file that lost some is refused.
#include "models/metrics.h"

#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string row(std::int64_t step) { return to_line({step, 2.5, 0.1, 3e-3, 1234.5}); }

std::string refusal_of(const std::string& text) {
  return message_of<IoError>([&] { parse_metrics(text, "metrics.jsonl"); });
}

}  // namespace

TEST_CASE("metrics survive their file") {
  const std::vector<Metric> rows = parse_metrics(row(3) + row(4), "");
  REQUIRE(rows.size() == 2);
  CHECK(to_line(rows[0]) + to_line(rows[1]) == row(3) + row(4));
  CHECK(parse_metrics("", "").empty());
}

TEST_CASE("metrics that are damaged are refused by their line") {
  CHECK(contains(refusal_of(row(1) + row(2).substr(0, 20)), "metrics.jsonl: line 2 is not a JSON object"));
  CHECK(contains(refusal_of(row(1) + "\n" + row(2)), "line 2 is not a JSON object"));
  CHECK(contains(refusal_of(row(1) + row(3)), "line 2 is of step 3, the one before of 1"));
  CHECK(contains(refusal_of(row(1) + row(1)), "line 2 is of step 1, the one before of 1"));
  CHECK(contains(refusal_of(row(0)), "line 1 is of step 0"));
  CHECK(contains(refusal_of(R"({"step":1,"loss":"low"})"), "line 1 has no number 'loss'"));
  CHECK(contains(refusal_of(R"({"step":1.5})"), "line 1 has no number 'step'"));
  CHECK(contains(refusal_of(std::string(100'000, '[')), "line 1 is not a JSON object"));
}
