// The promise: a program replaces no file that it did not write, and goes on where it was stopped.
#include "programs/out_folder.h"

#include <cstdio>
#include <filesystem>

#include "engine/io/file.h"
#include "look/inspection.h"
#include "models/metrics.h"
#include "models/vision/vision_checkpoint.h"
#include "programs/program.h"
#include "programs/training_folder.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string lines(std::int64_t steps) {
  std::string out;
  for (std::int64_t step = 1; step <= steps; ++step) out += to_line({step, 1, 1, 1, 1});
  return out;
}

// What a run whose first checkpoint is due at step 3 says of the folder; empty: it begins.
std::string begins(const std::string& folder) {
  try {
    prepare_folder(folder, false, small_model("linear"), 3);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "a training run begins where one was killed before its first checkpoint, and nowhere else in place of files") {
  const TemporaryFolder folder;
  CHECK(begins(folder.path) == "");  // config.json is there from now on
  for (const std::int64_t steps : {0, 1, 3}) {
    write_file_atomically(folder / "metrics.jsonl", lines(steps));
    CHECK(begins(folder.path) == "");
  }
  const std::vector<std::pair<std::string, std::string>> protected_files = {
      {"metrics.jsonl", lines(4)},  // of a run whose checkpoint is elsewhere
      {"metrics.jsonl", "notes\n"},      {"config.json", "{}"},
      {"report.html", "a page"},         {"loss_by_position.svg", "a picture"},
      {"inner_loss.1.svg", "a picture"}, {"nonfinite.safetensors", "an op"},
      {"summary.jsonl", "{}"},           {"model.safetensors", "weights"}};
  for (const auto& [name, text] : protected_files) {
    CAPTURE_BOUND(name);
    write_file_atomically(folder / name, text);
    const std::string said = begins(folder.path);
    CHECK_MESSAGE(contains(said, folder.path.string() + " holds " + name), said);
    CHECK_MESSAGE(contains(said, "choose another --out, or move it away"), said);
    CHECK(read_file(folder / name) == text);
    std::filesystem::remove(folder / name);
  }
  write_file_atomically(folder / "notes.txt", "mine");
  std::filesystem::create_symlink("nowhere", folder / "report.html");
  CHECK(begins(folder.path) == "");
  std::filesystem::create_directory(folder / "loss_by_position.svg.d");
  write_file_atomically(folder / "checkpoint.safetensors", "");
  CHECK(contains(begins(folder.path), "already holds a training run"));
  prepare_folder(folder.path, true, small_model("linear"), 3);
}

TEST_CASE("what a run could not write in the end is found before it begins") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "report.html");
  write_file_atomically(folder / "checkpoint.safetensors", "");
  CHECK_THROWS_AS(prepare_folder(folder.path, true, small_model("linear"), 3), IoError);
  CHECK_FALSE(std::filesystem::exists(folder / "config.json"));
  CHECK(folder.files() == 2);
}

TEST_CASE("a page replaces a page, a model of images such a model, and neither anything else") {
  const TemporaryFolder folder;
  const auto page_said = [&] {
    return message_of<ConfigError>([&] { check_replaceable(folder.path, inspection_rule(folder.path)); });
  };
  check_replaceable(folder / "none", inspection_rule(folder / "none"));
  Inspection page;
  page.views.push_back({.id = "a", .title = "A", .question = "What?"});
  page.save(folder.path);
  check_replaceable(folder.path, inspection_rule(folder.path));
  for (const char* name : {"metrics.jsonl", "checkpoint.safetensors", "config.json"}) {
    write_file_atomically(folder / name, "");
    CHECK(contains(page_said(), fmt::format("holds {}", name)));
    std::filesystem::remove(folder / name);
  }
  write_file_atomically(folder / "summary.jsonl", "{\"summary\": \"of something else\"}\n");
  CHECK(contains(page_said(), "holds report.html"));
  std::filesystem::remove(folder / "report.html");
  CHECK(contains(page_said(), "holds summary.jsonl"));
  std::filesystem::remove(folder / "summary.jsonl");
  check_replaceable(folder.path, inspection_rule(folder.path));  // views is empty
  write_file_atomically(folder / "views/notes.npy", "");
  CHECK(contains(page_said(), "holds views"));

  const vision::VisionConfig config{.height = 4,
                                    .image_width = 4,
                                    .channels = 1,
                                    .patch = 2,
                                    .width = 4,
                                    .depth = 1,
                                    .heads = 1,
                                    .classes = 2,
                                    .mixer = vision::mixer_named("softmax")};
  const std::string model = folder / "model";
  vision::write_checkpoint(model, {config, random_parameters(parameters_of(config), DType::f32)});
  check_replaceable(model, image_model_rule(model, "FOLDER"));
  write_file_atomically(model + "/config.json", vision::to_json(config));  // without its last line break
  CHECK(
      contains(message_of<ConfigError>([&] { check_replaceable(model, image_model_rule(model, "FOLDER")); }),
               "choose another FOLDER"));
}

TEST_CASE("what a reader does not take is an error at once") {
  std::FILE* const full = std::fopen("/dev/full", "w");
  REQUIRE(full);
  std::fputc('x', full);
  CHECK(contains(message_of<IoError>([&] { pass_on(full); }), "standard output cannot be written"));
  CHECK_THROWS_AS(pass_on(full), IoError);  // and stays one
  std::fclose(full);
  std::FILE* const taken = std::fopen("/dev/null", "w");
  REQUIRE(taken);
  std::fputc('x', taken);
  pass_on(taken);
  std::fclose(taken);
}
