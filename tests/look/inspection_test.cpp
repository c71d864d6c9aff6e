// The inspection of a learner and of a layer of a trained model: the layer's inner loop is the model's, and
// the page holds every view.
#include "look/inspection.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "look/views.h"
#include "tests/look/inspected_loops.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Checkpoint untrained(const LanguageModelConfig& config) {
  const TracedModel model = logits_model(config, DType::f32, i32({1, 4}));
  return {config, initial_parameters(model.params, DType::f32, 7)};
}

}  // namespace

TEST_CASE("inspection: a layer's inspected has the gradients of the whole model") {
  for (const Backbone backbone : {Backbone::transformer, Backbone::mamba})
    for (const std::string type : {"linear", "mlp", "titans-mlp", "lact"}) {
      CAPTURE(type);
      const LanguageModelConfig config = small_model(type, backbone);
      const Checkpoint checkpoint = untrained(config);
      const Array tokens = random_tokens(1, 9, config.vocab_size);
      const TracedModel whole = training_model(config, DType::f64, tokens.spec());
      StateDict params;
      for (const auto& [name, value] : checkpoint.params) params.emplace(name, value.cast(DType::f64));
      const Arrays gradients = whole.function(whole.bind({tokens}, {&params}));

      for (std::int64_t layer : {0, 1}) {
        const look::InspectedLoop s = inspected_layer(checkpoint, tokens, layer);
        CHECK(s.time() == 8);
        CHECK(s.outer_loss.size() == 8);
        CHECK(check_same_gradients(s, whole, gradients,
                                   fmt::format("model.layers.{}.seq_modeling_block.", layer)) > 0);
      }
    }
}

TEST_CASE("inspection: layers that do not exist or do not learn are refused") {
  const Checkpoint checkpoint = untrained(small_model("linear"));
  const Array tokens = random_tokens(1, 9, 13);
  CHECK(contains(message_of<ConfigError>([&] { inspected_layer(checkpoint, tokens, 2); }), "no layer 2"));
  const Checkpoint attention = untrained(small_model("attention"));
  CHECK(contains(message_of<ConfigError>([&] { inspected_layer(attention, tokens, 0); }), "no inner loop"));
}

TEST_CASE(
    "inspection: of a model that learns as a whole the parts are those of the loop that it trains with") {
  LanguageModelConfig config = small_model(kEndToEnd);
  config.num_hidden_layers = 8;  // of which two learn
  config.attention_window = 3;
  const Array tokens = random_tokens(1, 13, config.vocab_size);
  const TracedModel whole = training_model(config, DType::f64, tokens.spec());
  const Checkpoint checkpoint{config, random_parameters(whole, DType::f64)};
  const Inspection r = inspect_end_to_end(checkpoint, tokens);
  CHECK(r.holds());
  REQUIRE(r.views.size() == 4);
  for (const ReportView& view : r.views) {
    CAPTURE(view.id);
    CHECK((view.id == "precision" || !view.claims.empty()));
    CHECK(!view.pictures.empty());
  }
  // The norm of the full gradient, from the program that training runs.
  const Arrays gradients = whole.function(whole.bind({tokens}, {&checkpoint.params}));
  double squares = 0;
  for (std::size_t i = 0; i < whole.params.size(); ++i)
    if (contains(whole.params[i].name, "feed_forward_prime"))
      for (const double g : gradients[i + 1].to_vector()) squares += g * g;
  CHECK(contains(r.views[1].preformatted, fmt::format("full {:.6g} = first order", std::sqrt(squares))));
  // Steps teach: the parts of all but the last are there, and tokens after the first chunk are read with what they left.
  const Array& norms = r.arrays.at("step_norm");
  REQUIRE(norms.size() == 3);
  CHECK(norms.at(0) > 1e-6);
  CHECK(norms.at(1) > 1e-6);
  CHECK(norms.at(2) == 0);
  CHECK(std::abs(r.arrays.at("loss_before").at(5) - r.arrays.at("loss_initial").at(5)) > 1e-6);
  CHECK(r.arrays.at("inner_gradient_norm").size() == 3);

  const TemporaryFolder folder;
  r.save(folder / "page");
  CHECK(contains(read_file(folder / "page/report.html"), "The meta-gradient by inner step"));
  CHECK(!std::filesystem::exists(folder / "page/graph.dot"));
  CHECK(contains(message_of<ConfigError>([&] { inspected_layer(checkpoint, tokens, 0); }),
                 "inspect_end_to_end"));
  const Checkpoint layers = untrained(small_model("linear"));
  for (const Shape& shape : {Shape{5}, Shape{2, 5}, Shape{1, 1}, Shape{}})
    CHECK(contains(
        message_of<ShapeError>([&] { inspect_end_to_end(checkpoint, Array::zeros(DType::i32, shape)); }),
        "they must be i32[1, time + 1]"));
  CHECK(contains(message_of<ConfigError>([&] { inspect_end_to_end(layers, tokens); }),
                 "inspect a layer of it"));
}

TEST_CASE("inspection: every view has its picture, its numbers and its invariants, saved whole") {
  const look::InspectedLoop s = look::inspected_learner(
      ttt::system_named("ttt-linear"), {.batch = 1, .heads = 2, .dim = 4, .time = 12, .chunk = 4}, 1);
  double last = -1;
  Inspection r = inspect(s, {.token = 3, .progress = [&](const std::string&, double done) {
                               CHECK(done > last);
                               last = done;
                             }});
  CHECK(last == 1);
  const auto of_images = std::ranges::count_if(look::views(), &look::View::of_images);
  CHECK(std::ssize(r.views) == std::ssize(look::views()) - of_images);
  CHECK(r.holds());
  std::size_t with_invariants = 0;
  for (const ReportView& v : r.views) {
    CAPTURE(v.id);
    CHECK((!v.pictures.empty() || !v.preformatted.empty()));
    CHECK_FALSE(v.question.empty());
    if (!v.claims.empty()) ++with_invariants;
  }
  CHECK(with_invariants >= 11);

  const TemporaryFolder folder;
  r.save(folder.path);
  const std::string page = read_file(folder / "report.html");
  for (const ReportView& v : r.views) CHECK(contains(page, fmt::format("id=\"{}\"", v.id)));
  CHECK(page.size() < 5'000'000);
  CHECK(read_npy(folder / "views/channel_gradient.npy").shape() == Shape{12, 12});
  CHECK(contains(read_file(folder / "graph.dot"), "digraph"));
  CHECK(nlohmann::json::parse(read_file(folder / "trace.json")).contains("traceEvents"));
  std::istringstream lines(read_file(folder / "summary.jsonl"));
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("files")) continue;
    ++count;
    for (const auto& invariant : json["invariants"]) CHECK(invariant["holds"] == true);
  }
  CHECK(count == r.views.size());

  // A view that lies is seen.
  r.views[0].claims[0].error = 1;
  CHECK_FALSE(r.holds());
  CHECK(contains(r.summary(), "\"holds\":false"));
}

TEST_CASE("inspection: a page leaves nothing of the page before it, and everything else") {
  const TemporaryFolder folder;
  Inspection first;
  first.views.push_back({.id = "old", .title = "Old", .question = "What was?"});
  first.views[0].pictures.push_back(
      Chart{.title = "t", .x_label = "x", .y_label = "y", .series = {look::line("a", {1, 2})}});
  first.arrays.emplace("both", Array::scalar(1));
  first.arrays.emplace("before", Array::scalar(1));
  first.graph_dot = "digraph {}", first.graph_text = "text", first.trace = "{}";
  CHECK_FALSE(inspected_files(folder.path));
  first.save(folder.path);
  const std::vector<std::string> of_first = {"graph.dot",       "graph.txt",        "trace.json",
                                             "views/old-1.svg", "views/before.npy", "views/both.npy"};
  CHECK(inspected_files(folder.path) == of_first);
  for (const std::string& name : of_first) CHECK(std::filesystem::exists(folder / name));
  write_file_atomically(folder / "views/mine.npy", "mine");
  write_file_atomically(folder / "mine.txt", "mine");

  Inspection second;
  second.views.push_back({.id = "new", .title = "New", .question = "What is?"});
  second.arrays.emplace("both", Array::scalar(2));
  second.save(folder.path);
  CHECK(inspected_files(folder.path) == std::vector<std::string>{"views/both.npy"});
  for (const std::string& name : of_first)
    CHECK(std::filesystem::exists(folder / name) == (name == "views/both.npy"));
  CHECK(read_npy(folder / "views/both.npy").item() == 2);
  CHECK(read_file(folder / "views/mine.npy") == "mine");
  CHECK(read_file(folder / "mine.txt") == "mine");

  // A list that names files of others.
  const std::string summary = second.summary();
  write_file_atomically(
      folder / "summary.jsonl",
      summary +
          R"({"files": ["mine.txt", "../x.npy", "views/../mine.npy", "views/a/b.npy", "views/x.npy", 3]})");
  CHECK(inspected_files(folder.path) == std::vector<std::string>{"views/x.npy"});
  for (const char* other : {"", "{}\n", "notes\n", "{\"files\": []}\n"}) {
    write_file_atomically(folder / "summary.jsonl", other);
    CHECK_FALSE(inspected_files(folder.path));
  }
}

TEST_CASE("inspection: the precision of a model's gradients is told tensor by tensor") {
  const LanguageModelConfig config = small_model("linear");
  const Checkpoint checkpoint = untrained(config);
  const look::PrecisionProbe r = model_precision(checkpoint, random_tokens(1, 9, config.vocab_size));
  CHECK(r.entries.size() == checkpoint.params.size());
  CHECK(r.cosine > 1 - 1e-6);
}
