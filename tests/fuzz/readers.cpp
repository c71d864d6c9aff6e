#include "tests/fuzz/readers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/idx.h"
#include "engine/io/npy.h"
#include "engine/io/png.h"
#include "engine/io/safetensors.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/metrics.h"
#include "models/tokenizer.h"
#include "models/trainer.h"
#include "models/vision/vision_checkpoint.h"
#include "tests/golden_check/verify.h"
#include "tests/image_files.h"
#include "ttt/reference.h"
#include "ttt/verification.h"

namespace nestgrad::fuzz {

namespace {

constexpr int kQuick = 10;
constexpr const char* kModel = "model.safetensors";

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

// Folders of published models (tests/published), of each of which one file is damaged; what is read is used for
// one token, as it is of a model of ours. Each reader has a copy of its own.
std::vector<Reader> published_readers(const std::string& data, const std::string& folder) {
  namespace fs = std::filesystem;
  struct Damaged {
    const char *folder, *file;
    bool framed;
  };
  std::vector<Reader> out;
  for (const auto& [name, file, framed] : {Damaged{"pytorch", "config.json", false},
                                           {"pytorch", "model.safetensors.index.json", false},
                                           {"pytorch", "model-00002-of-00002.safetensors", true},
                                           {"pytorch", "tokenizer.model", false},
                                           {"jax", "streaming_params", false},
                                           {"jax_train_state", "config.json", false},
                                           {"jax_train_state", "streaming_train_state_7", false}}) {
    const std::string from = fmt::format("{}/published/{}", data, name),
                      copy = fmt::format("{}/published {}", folder, out.size());
    fs::copy(from, copy);
    const bool tokenizer = file == std::string("tokenizer.model");
    const auto read = [copy, path = copy + "/" + file, tokenizer](const std::string& bytes) {
      write_file_atomically(path, bytes);
      if (tokenizer) {
        const auto made = read_tokenizer(copy, 61);
        for (const std::int32_t token : made->encode("a model of\n text \xff")) made->bytes(token);
        return;
      }
      const Checkpoint model = read_checkpoint(copy);
      Decoder(model.config, model.params, DType::f32, 1, 4).step(Array::zeros(DType::i32, {1}));
    };
    out.push_back({fmt::format("{} of {}", file, name), {read_file(from + "/" + file)}, framed, read});
  }
  return out;
}

vision::VisionConfig small_classifier() {
  return {.height = 4,
          .image_width = 4,
          .channels = 1,
          .patch = 2,
          .width = 4,
          .depth = 1,
          .heads = 1,
          .classes = 2,
          .mixer = vision::mixer_named("t5-swiglu")};
}
vision::DiffusionConfig small_diffusion() {
  return {.height = 4,
          .image_width = 4,
          .patch = 2,
          .width = 4,
          .depth = 1,
          .heads = 1,
          .classes = 2,
          .levels = 30,
          .mixer = vision::mixer_named("t5-swiglu")};
}
vision::ViewSynthesisConfig small_views() {
  return {.height = 4, .image_width = 4, .patch = 2, .width = 4, .depth = 1, .heads = 1};
}

// Of the fields and of the weights of a model of images, each damaged beside the other whole.
template <class Config>
std::vector<Reader> image_model_readers(const std::string& what, const std::string& folder,
                                        const Config& config) {
  vision::write_checkpoint(folder, vision::ModelCheckpoint<Config>{
                                       config, initial_parameters(parameters_of(config), DType::f32, 0)});
  const auto read = [folder](const std::string& fields, const std::string& weights) {
    write_file_atomically(folder + "/config.json", fields);
    write_file_atomically(folder + "/" + kModel, weights);
    vision::read_checkpoint<Config>(folder);
  };
  const std::string fields = read_file(folder + "/config.json"), weights = read_file(folder + "/" + kModel);
  return {{"config of " + what, {fields}, false, [=](const std::string& bytes) { read(bytes, weights); }},
          {what, {weights}, true, [=](const std::string& bytes) { read(fields, bytes); }}};
}

}  // namespace

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

  const ttt::System& delta_net = ttt::system_named("delta-net");
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
      {"png",
       {format_png(Array::full(DType::f32, {5, 7, 3}, 0.5)), testing::one_bit_png()},
       false,
       [](const std::string& b) { parse_png(as_bytes(b), "file"); },
       kQuick},
      {"idx",
       {testing::small_idx(), testing::gzipped(testing::small_idx())},
       false,
       [](const std::string& b) { parse_idx(as_bytes(b), "file"); },
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
      {"inputs of a reference",
       {format_safetensors({ttt::random_inputs(delta_net, {.time = 4, .dim = 2}, {}), {}, {}})},
       true,
       [&delta_net](const std::string& bytes) {
         const SafeTensors file = parse_safetensors(as_bytes(bytes), "file");
         ttt::verify({ttt::reference(delta_net, file.tensors, {}).outputs, {}, {}}, file, {});
       }},
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
  for (std::vector<Reader> some :
       {image_model_readers("an image model", folder + "/images", small_classifier()),
        image_model_readers("a model of diffusion", folder + "/diffusion", small_diffusion()),
        image_model_readers("a model of views", folder + "/views", small_views())})
    for (Reader& reader : some) out.push_back(std::move(reader));
  for (Reader& reader : published_readers(data, folder)) out.push_back(std::move(reader));
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
  out.push_back(
      {"reference",
       {"--policy\nchunk=4,read=before-write\n--form\nprimal\n--dtype\nf64\n--gates\nraw\n--state-every\n4\n"
        "--seed\n3\n--base-lr\n0.5\n--intermediates\n--describe\n--json"},
       false,
       program("reference", {"--system", "delta-net", "--inputs", none})});
  out.push_back({"verify",
                 {"--tolerance\n1e-9\n--all\n--json"},
                 false,
                 program("verify", {"--reference", none, "--kernel", none})});
  return out;
}

}  // namespace nestgrad::fuzz
