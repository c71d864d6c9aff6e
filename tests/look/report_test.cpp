// Pages: tables, trees, views with their claims.

#include "engine/io/file.h"
#include "tests/look/pictures.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Kind = Diagram::Arrow::Kind;

TEST_CASE("numbers have three significant digits") {
  for (const auto& [number, text] : {std::pair{0.0, "0"},
                                     {-0.0, "0"},
                                     {1.0, "1"},
                                     {-17.0, "-17"},
                                     {1234.0, "1234"},
                                     {1234.5, "1234"},
                                     {0.12345, "0.123"},
                                     {-12.345, "-12.3"},
                                     {123.45, "123"},
                                     {0.0123456, "0.0123"},
                                     {0.001, "0.00100"},
                                     {0.00012345, "1.23e-4"},
                                     {2.5e-16, "2.50e-16"},
                                     {9.9996, "10.0"},
                                     {0.99996, "1.00"},
                                     {123456.0, "1.23e5"},
                                     {1e300, "1.00e300"},
                                     {kNan, "NaN"},
                                     {kInf, "\xe2\x88\x9e"},
                                     {-kInf, "-\xe2\x88\x9e"}}) {
    const double value = number;
    CAPTURE(value);
    CHECK(format_number(value) == text);
  }
}

TEST_CASE("a check holds within its tolerance only, and never with NaN") {
  CHECK(Claim{"", 1e-9, 1e-8}.holds());
  CHECK(Claim{"", 0, 0}.holds());
  CHECK_FALSE(Claim{"", 1e-7, 1e-8}.holds());
  CHECK_FALSE(Claim{"", kNan, 1e-8}.holds());
  CHECK_FALSE(Claim{"", 0, kNan}.holds());
  CHECK_FALSE(Claim{"", kInf, 1}.holds());
}

TEST_CASE("the page says of each view whether its invariants hold, in words, with error and tolerance") {
  const std::string page = html_report(
      "t", "", {},
      {{.id = "good", .title = "Good", .claims = {{"sum", 1e-9, 1e-8}}},
       {.id = "bad", .title = "Bad", .claims = {{"close", 1e-12, 1e-8}, {"lost", kNan, 1e-6, "nats"}}},
       {.id = "none", .title = "None"}});
  const std::size_t start = page.find("<nav"), end = page.find("</nav>");
  REQUIRE(end != std::string::npos);
  const std::string nav = page.substr(start, end - start);
  CHECK(contains(
      nav,
      "<a href=\"#good\">Good</a></td><td><span class=\"state holds\">\xe2\x9c\x93 holds</span></td>"
      "<td class=\"num\">1.00e-9</td><td class=\"num\">1.00e-8 <span class=\"unit\">relative</span></td>"));
  CHECK(contains(
      nav,
      "<a href=\"#bad\">Bad</a></td><td><span class=\"state fails\">\xe2\x9c\x97 1 of 2 fail</span></td>"
      "<td class=\"num\">NaN</td><td class=\"num\">1.00e-6 <span class=\"unit\">nats</span></td>"));
  CHECK(contains(nav,
                 "<a href=\"#none\">None</a></td><td><span class=\"state none\">no invariant</span></td>"));
  CHECK(contains(page, "\xe2\x9c\x97 1 of 3 invariants fails"));
  CHECK(count(page, "<tr class=\"failing\">") == 1);
  const std::string fine =
      html_report("t", "", {}, {{.id = "good", .claims = {{"sum", 0, 0}, {"product", 0, 0}}}});
  CHECK(contains(fine, "\xe2\x9c\x93 All 2 invariants hold"));
  CHECK(contains(fine, "\xe2\x9c\x93 all 2 hold"));
}

TEST_CASE("duplicate and unusable ids are refused") {
  CHECK_THROWS_WITH_AS(html_report("", "", {}, {{.id = "a"}, {.id = "b"}, {.id = "a"}}),
                       "[html_report] two views have the id 'a'", ValueError);
  for (const std::string id : {"", "a b", "\"", "caf\xc3\xa9"}) {
    CAPTURE(id);
    CHECK_THROWS_AS(html_report("", "", {}, {{.id = id}}), ValueError);
  }
}

TEST_CASE("tables align numbers at the right and refuse ragged rows") {
  const Table table{.title = "Costs",
                    .columns = {"layer", "time (ms)", "note"},
                    .rows = {{"1", "0.12", "-"}, {"b", "1.23e-16", "12"}, {"c", "NaN", "x"}}};
  const std::string page = html_report("", "", {}, {{.id = "a", .pictures = {table}}});
  CHECK(contains(page,
                 "<th scope=\"col\">layer</th><th scope=\"col\" class=\"num\">time (ms)</th><th "
                 "scope=\"col\">note</th>"));
  CHECK(contains(page, "<td>b</td><td class=\"num\">1.23e-16</td><td>12</td>"));
  CHECK_THROWS_WITH_AS(html_report("", "", {}, {{.id = "a", .pictures = {Table{"T", {"x"}, {{"1", "2"}}}}}}),
                       "[html_report] a row of table 'T' has 2 cells for 1 columns", ValueError);
}

TEST_CASE("trees nest as parts that unfold; leaves do not") {
  const Tree tree{"root", "3 nodes", 0, {{"left", "", 1, {{"leaf", "f32[4]"}}}, {"right"}}};
  const std::string page = html_report("", "", {}, {{.id = "a", .pictures = {tree}}});
  const std::size_t root = page.find("<span>root</span>"), left = page.find("<span>left</span>"),
                    leaf = page.find("<span>leaf</span><span class=\"detail\">f32[4]</span></div>"),
                    right = page.find("<span>right</span></div>");
  REQUIRE(right != std::string::npos);
  CHECK(root < left);
  CHECK(left < leaf);
  CHECK(leaf < right);
  CHECK(count(page, "<details class=\"node\"") == 2);
  CHECK(count(page, "<details class=\"node\" open=\"\">") == 1);
  CHECK(count(page.substr(leaf, right - leaf), "</details>") == 1);  // left ends between its leaf and right
  CHECK(contains(page, "<span class=\"level v1\">level 1</span>"));
}

// --- A page with one of each picture

namespace {

std::vector<ReportView> sample_views() {
  const auto wave = [](double x, double rate) { return 0.35 + 1.9 * std::exp(-x / rate); };
  Series initial{"at the first weights", {}, {}}, before{"before the step", {}, {}},
      after{"after the step", {}, {}};
  for (int t = 0; t < 256; ++t) {
    const double noise = 0.04 * std::sin(0.9 * t) + 0.03 * std::sin(0.31 * t * t);
    for (Series* s : {&initial, &before, &after}) s->x.push_back(t);
    initial.y.push_back(2.2 + noise);
    before.y.push_back(t == 130 ? kNan : wave(t, 60) + noise);
    after.y.push_back(0.82 * wave(t, 50) + noise);
  }
  const Chart inner{.title = "Inner loss while reading",
                    .x_label = "token",
                    .y_label = "inner loss (squared error)",
                    .series = {initial, before, after},
                    .reference_lines = {{"zero weights", 2.31}}};
  Series norm{"gradient of the fast weights", {}, {}}, meta{"gradient of the initial weights", {}, {}};
  for (int t = 1; t <= 1000; t += 3) {
    norm.x.push_back(t), norm.y.push_back(3 / std::sqrt(t) * (1 + 0.2 * std::sin(t)));
    meta.x.push_back(t), meta.y.push_back(0.8 * std::pow(t, -1.3));
  }
  const Chart decay{.title = "Norms fall as powers",
                    .x_label = "inner step",
                    .y_label = "norm (2-norm)",
                    .series = {norm, meta},
                    .log_x = true,
                    .log_y = true};

  Heatmap attention{.title = "Effective attention",
                    .x_label = "token that is learnt from",
                    .y_label = "token that answers",
                    .value_label = "weight (no unit)",
                    .rows = 64,
                    .columns = 64,
                    .diverging = true};
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 64; ++column)
      attention.values.push_back(
          column > row ? 0 : std::cos(0.35 * (row - column)) * std::exp(-0.05 * (row - column)));
  Heatmap flow{.title = "Size of the gradient",
               .x_label = "layer",
               .y_label = "distance to the loss",
               .value_label = "2-norm, relative to the loss",
               .rows = 8,
               .columns = 12,
               .log = true};
  for (int row = 0; row < 8; ++row) {
    flow.row_names.push_back(fmt::format("{} steps", 1 << row));
    for (int column = 0; column < 12; ++column)
      flow.values.push_back(row == 6 && column == 3  ? kNan
                            : row == 7 && column > 8 ? 0
                                                     : std::pow(10, -0.5 * row - 0.08 * column * (row % 3)));
  }
  for (int column = 0; column < 12; ++column) flow.column_names.push_back(fmt::format("layers.{}", column));
  Heatmap writes{.title = "What each token writes",
                 .x_label = "token",
                 .y_label = "head",
                 .value_label = "norm of the step (2-norm)",
                 .rows = 4,
                 .columns = 300};
  for (int i = 0; i < 1200; ++i) writes.values.push_back(1 + std::sin(0.03 * i) * std::sin(0.4 * i));

  Bars parts{.title = "The gradient, step by step", .y_label = "projection on the whole (nats)"};
  for (const char* name : {"first order", "step 1", "step 2", "step 3", "step 4", "step 5", "step 6"})
    parts.names.push_back(name);
  parts.groups = {{"second order", {1.62, 0.31, 0.22, -0.18, 0.09, -0.05, kNan}}};
  Bars time{.title = "Where time goes", .y_label = "time (ms)", .stacked = true};
  for (int i = 0; i < 9; ++i)
    time.names.push_back(i % 3 == 0 ? "matmul+add+softmax" : i % 3 == 1 ? "layer_norm_vjp" : "reduce_sum");
  for (const char* level : {"level 0", "level 1", "level 2"}) {
    time.groups.push_back({level, {}});
    for (int i = 0; i < 9; ++i)
      time.groups.back().values.push_back(10.0 / (i + 1) *
                                          (1 + 0.5 * static_cast<double>(time.groups.size())));
  }
  Points keys{.title = "Queries and keys",
              .x_label = "component 1 (no unit)",
              .y_label = "component 2 (no unit)",
              .groups = {{"queries", {}, {}}, {"keys", {}, {}}, {"values", {}, {}}}};
  for (int i = 0; i < 240; ++i) {
    Points::Group& group = keys.groups[static_cast<std::size_t>(i % 3)];
    const double angle = 2.4 * i, radius = 0.1 * std::sqrt(i);
    group.x.push_back(radius * std::cos(angle) + 0.9 * (i % 3)),
        group.y.push_back(radius * std::sin(angle) - 0.5 * (i % 3));
  }
  Points precision{.title = "Two ways to the same gradient",
                   .x_label = "|gradient|, single precision",
                   .y_label = "|gradient|, double precision",
                   .groups = {{"weights", {}, {}}},
                   .log_x = true,
                   .log_y = true,
                   .diagonal = true};
  for (int i = 0; i < 150; ++i) {
    const double size = std::pow(10, -6 + 0.04 * i);
    precision.groups[0].x.push_back(size),
        precision.groups[0].y.push_back(size * (1 + 0.2 * std::sin(5 * i) / (1 + 0.05 * i)));
  }

  const Diagram program{.title = "Where gradients flow",
                        .boxes = {{"tokens", "x_t"},
                                  {"initial weights", "W_0", 0},
                                  {"key, value, query", "projections of x_t", 0},
                                  {"fast weights", "W_t, carried from step to step", 1},
                                  {"inner loss", "|W k - v|^2", 1},
                                  {"step", "W - eta g", 1},
                                  {"answer", "W_t q", 0},
                                  {"outer loss", "nats per byte", 0}},
                        .arrows = {{0, 2},
                                   {1, 3},
                                   {2, 4, Kind::forward, false, "k, v"},
                                   {3, 4},
                                   {4, 5, Kind::inner_gradient, false, "g"},
                                   {3, 5},
                                   {5, 6, Kind::forward, false, "W_t"},
                                   {2, 6, Kind::forward, false, "q"},
                                   {6, 7},
                                   {7, 6, Kind::meta_gradient},
                                   {6, 5, Kind::meta_gradient, false, "lambda"},
                                   {5, 4, Kind::meta_gradient, true, "second order"},
                                   {4, 2, Kind::meta_gradient},
                                   {5, 5, Kind::forward, false, "next token"}}};
  const Table costs{.title = "Estimators of the gradient",
                    .columns = {"estimator", "norm (2-norm)", "cosine with full", "time (ms)", "memory (kB)",
                                "work (Mflop)"},
                    .rows = {{"full", format_number(1.6234), format_number(1), format_number(12.31),
                              format_number(40231), format_number(812.3)},
                             {"first order", format_number(1.31), format_number(0.9412), format_number(4.1),
                              format_number(9120), format_number(301.2)},
                             {"truncated after 4 steps", format_number(1.6), format_number(0.99921),
                              format_number(8.24), format_number(21034), format_number(550.1)}}};
  const Table short_table{
      .title = "Time by level",
      .columns = {"level", "time (us)", "share (%)"},
      .rows = {{"0, the program as written", "412", "31.2"}, {"1, inner gradient", "305", "23.1"}}};
  const Tree nodes{"program",
                   "214 nodes",
                   0,
                   {{"layers.0.seq_modeling_block",
                     "120 nodes",
                     0,
                     {{"%12 = matmul", "f32[2,16,64] ttt/learners/linear.cpp:41", 0},
                      {"inner loop",
                       "64 nodes; by level 20 30 14",
                       1,
                       {{"%20 = subtract", "f32[2,16,64] ttt/learners/linear.cpp:44", 1},
                        {"%21 = matmul", "f32[64,64]", 2}}}}},
                    {"loss", "94 nodes", 0}}};

  // Waves of several widths, and a colour for each.
  const auto image = [](int k, std::int64_t channels) {
    Array out(DType::f32, {12, 16, channels});
    for (std::int64_t i = 0; i < out.size(); ++i)
      out.as<float>()[static_cast<std::size_t>(i)] =
          static_cast<float>(0.5 + 0.5 * std::sin(0.3 * k * static_cast<double>(i / channels % 16) +
                                                  static_cast<double>(i % channels)));
    return out;
  };
  Images seen{.title = "Twelve of the test", .columns = 12};
  for (int k = 0; k < 12; ++k)
    seen.tiles.push_back({image(k, 1), fmt::format("{} ({} %)", k, 90 - k), k % 5 == 4 ? "bad" : "good"});
  Images drawn{.title = "Views of a scene",
               .columns = 6,
               .scale = 8,
               .row_names = {"input", "prediction, after five steps", "truth"}};
  for (int k = 0; k < 18; ++k) drawn.tiles.push_back({image(k, 3)});

  return {
      {.id = "losses",
       .title = "The inner loss, token by token",
       .question = "Does the layer learn while it reads?",
       .reading =
           "Each token is a training example of the inner model. Its loss is shown with the weights from "
           "before the first token, just before the step on that token, and just after it.\n\n"
           "Where the second line falls below the first, the layer has learnt from earlier tokens.",
       .claims = {{"the loss after the step is the loss of the next weights", 3.1e-16, 1e-12}},
       .pictures = {inner, decay}},
      {.id = "attention",
       .title = "The learner as attention",
       .question = "Which tokens does an answer come from?",
       .reading = "Row t holds the weights of the values of earlier tokens in the answer to token t.",
       .claims = {{"rows times values are the layer's own answers", 4.4e-13, 1e-9},
                  {"no weight lies above the diagonal", 0, 0, "cells"}},
       .pictures = {attention, flow, writes}},
      {.id = "steps",
       .title = "The gradient by inner step",
       .question = "Which inner steps shape the outer gradient?",
       .reading = "All bars add up to the norm of the full gradient; negative bars pull against it.",
       .claims = {{"the parts add up to the whole", kNan, 1e-9},
                  {"first order equals the gradient with every step cut", 2e-3, 1e-6, "nats"}},
       .pictures = {parts, time}},
      {.id = "keys",
       .title = "Queries and keys",
       .question = "Do queries find their keys?",
       .reading = "The two directions of largest variance.",
       .pictures = {keys, precision}},
      {.id = "program",
       .title = "The program",
       .question = "What is computed, and which gradient wrote it?",
       .reading =
           "Level 0 is the program as written, level 1 what the inner gradient added. Arrows are coloured "
           "by the gradient that they belong to; where a gradient is stopped the arrow is cut.",
       .claims = {{"the groups hold every node once", 0, 0, "nodes"}},
       .pictures = {program}},
      {.id = "costs",
       .title = "What estimators cost",
       .question = "What does a cheaper gradient lose, and what does it save?",
       .pictures = {costs, short_table}},
      {.id = "nodes",
       .title = "All nodes",
       .question = "What is in the graph?",
       .pictures = {nodes},
       .open = false},
      {.id = "images",
       .title = "Images",
       .question = "Does it see what is there?",
       .reading = "What the network was given, what it made of it, and what is true.",
       .pictures = {seen, drawn}},
      {.id = "sample",
       .title = "A sample",
       .question = "What does it write?",
       .preformatted = "a line of text that is long enough to need breaking on a narrow page, "
                       "and-a-word-without-any-space-in-it-that-is-also-very-long-indeed\n<end> & more",
       .open = false}};
}

}  // namespace

TEST_CASE("a report is one file that needs nothing else") {
  const Chart chart{.title = "Loss", .series = {{"training", {0, 1}, {1, 0}}}};
  const std::string page =
      html_report("Run", "small", {{"steps", "100"}},
                  {{.id = "loss",
                    .title = "Loss",
                    .question = "Does it fall?",
                    .reading = "First.\n\nSecond.",
                    .pictures = {chart, chart}},
                   {.id = "sample", .title = "Sample", .preformatted = "to be\nor", .open = false}});
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(contains(page, "<dt>steps</dt><dd>100</dd>"));
  CHECK(contains(page, "<p>First.</p>\n<p>Second.</p>"));
  CHECK(contains(page, "<pre>\nto be\nor</pre>"));
  CHECK(count(page, "<pre>") == 1);
  CHECK(count(page, "<svg ") == 2);
  CHECK(contains(page, "<details class=\"view\" id=\"loss\" open=\"\">\n<summary><h2>Loss</h2>"));
  CHECK(contains(page, "<details class=\"view\" id=\"sample\">\n<summary>"));
  CHECK(contains(page, "prefers-color-scheme:dark"));
}

TEST_CASE(
    "a page with one of each picture is well-formed, small and without references to anything outside") {
  const std::string page = html_report(
      "A look inside layers.0", "256 tokens, inner mini-batches of 16, 2 heads of 64 features",
      {{"policy", "full gradient, every step stored"},
       {"inner steps", "16"},
       {"outer loss", "1.4142 nats per byte"},
       {"checkpoint", "runs/a-folder-with-a-very-long-name/that-does-not-fit/checkpoint.safetensors"}},
      sample_views());
  CHECK(tags_match(page));
  CHECK(page.size() < 500000);
  CHECK(count(page, "<svg ") == 10);
  CHECK(count(page, "<figure ") == 15);
  CHECK(count(page, "<details class=\"view\"") == 9);
  CHECK(count(page, "src=") == count(page, "src=\"data:image/png;base64,"));
  for (const std::string outside : {"http:", "https:", "url(", "@import", "<link", "<iframe", "<object"}) {
    CAPTURE(outside);
    CHECK_FALSE(contains(page, outside));
  }
  CHECK(count(page, "href=\"") == count(page, "href=\"#"));
  // For the test in a browser.
  if (const char* folder = std::getenv("NESTGRAD_PAGE_FOLDER"))
    write_file_atomically(std::string(folder) + "/sample.html", page);
}

TEST_CASE("what is too much of a chart is red above the value, and nowhere without one") {
  Chart chart{"c", "x", "y", {{"s", {0, 1}, {0, 2}}}};
  CHECK_FALSE(contains(svg(chart), "class=\"danger\""));
  chart.too_much = 1;
  CHECK(contains(svg(chart), "class=\"danger\""));
}
