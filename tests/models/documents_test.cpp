// The promise: of documents that share a sequence each is read, and trained on, as if it stood alone.
#include "models/documents.h"

#include <fstream>
#include <numeric>

#include "models/trainer.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kChunk = 4;
constexpr std::int64_t kTime = 26;
// Where a document begins, and its tokens.
struct Part {
  std::int64_t begin, length;
};
using Layout = std::vector<Part>;
const Layout kAny{{0, 7}, {8, 4}, {12, 1}, {16, 9}};
// A row alone is a vector, whose products are added up in another order: no document, and no last chunk, of one token.
const Layout kRows{{0, 7}, {8, 4}, {12, 3}, {16, 10}};

Array places(const Layout& layout) {
  Array out(DType::f64, {1, kTime});
  for (std::int64_t t = 0, begin = 0; t < kTime; ++t) {
    for (const Part& l : layout)
      if (l.begin == t) begin = t;
    out.as<double>()[static_cast<std::size_t>(t)] = static_cast<double>(t - begin);
  }
  return out;
}

// tokens [1, time], places -> logits, and the gradient of the sum of their squares over documents.
TracedModel packed_model(const LanguageModelConfig& config, DType dtype, ttt::FormChoice form,
                         const Layout& layout = kAny, std::int64_t align = kChunk) {
  return trace_model(
      dtype, {i32({1, kTime}), Spec{dtype, {1, kTime}}}, [&](ParamTable& table, const Tensors& in) {
        ttt::Stream stream;
        stream.pack(in[1], align);
        const Tensor logits = LanguageModel(config, Params(table), {.form = form}).logits(in[0], stream);
        CHECK(stream.has_looked());
        Tensor loss;
        for (const Part& l : layout) {
          const Tensor part = sum(square(slice(logits, 1, l.begin, l.begin + l.length)));
          loss = loss.defined() ? loss + part : part;
        }
        Tensors out{logits};
        for (const Tensor& g : grad(loss, table.tensors(), {.allow_zero = true})) out.push_back(g);
        return out;
      });
}
// The same of one document alone.
TracedModel lone_model(const LanguageModelConfig& config, DType dtype, std::int64_t length,
                       ttt::FormChoice form) {
  return trace_model(dtype, {i32({1, length})}, [&](ParamTable& table, const Tensors& in) {
    ttt::Stream stream;
    const Tensor logits = LanguageModel(config, Params(table), {.form = form}).logits(in[0], stream);
    Tensors out{logits};
    for (const Tensor& g : grad(sum(square(logits)), table.tensors(), {.allow_zero = true})) out.push_back(g);
    return out;
  });
}

Array part_of(const Array& x, std::int64_t begin, std::int64_t end) {
  return trace([&](Tensor all) { return slice(all, 1, begin, end); }, x.spec())(x);
}

// Largest errors of logits and of gradients against documents read alone; whether all logits have the same bits.
struct Comparison {
  double logits = 0, gradients = 0;
  bool same_bits = true;
};
Comparison compared(const LanguageModelConfig& config, DType dtype, ttt::FormChoice packed_form,
                    ttt::FormChoice lone_form, const Layout& layout) {
  const TracedModel packed = packed_model(config, dtype, packed_form, layout);
  const StateDict params = random_parameters(packed, dtype);
  const Array tokens = random_tokens(1, kTime, config.vocab_size);
  const Arrays together = packed.function(packed.bind({tokens, places(layout).cast(dtype)}, {&params}));
  Comparison out;
  std::map<std::string, std::vector<double>> sums;
  for (const Part& l : layout) {
    const TracedModel lone = lone_model(config, dtype, l.length, lone_form);
    const Arrays alone = lone.function(lone.bind({part_of(tokens, l.begin, l.begin + l.length)}, {&params}));
    const Array here = part_of(together[0], l.begin, l.begin + l.length);
    out.logits = std::max(out.logits, relative_error(here, alone[0]));
    out.same_bits = out.same_bits && here.same_bits(alone[0]);
    for (std::size_t i = 0; i < lone.params.size(); ++i) {
      std::vector<double>& sum = sums[lone.params[i].name];
      const std::vector<double> g = alone[i + 1].to_vector();
      sum.resize(g.size());
      for (std::size_t k = 0; k < g.size(); ++k) sum[k] += g[k];
    }
  }
  for (std::size_t i = 0; i < packed.params.size(); ++i) {
    const Array expected = Array::of(sums.at(packed.params[i].name), packed.params[i].shape);
    out.gradients = std::max(out.gradients, relative_error(together[i + 1].cast(DType::f64), expected, 1e-3));
  }
  return out;
}

std::vector<std::uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// Documents that are one letter each, of lengths 1, 2, .. : "a", "bb", ..
ByteCorpus letters(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += std::string(static_cast<std::size_t>(i) + 1, static_cast<char>('a' + i)) + "\n\n";
  return {as_bytes(text), as_bytes(text)};
}

}  // namespace

TEST_CASE("documents: packed, each is read and differentiated as if it stood alone: every learner" *
          doctest::test_suite("slow")) {
  for (const std::string& learner : layer_names()) {
    if (learner == kEndToEnd) continue;
    for (const Backbone backbone : {Backbone::transformer, Backbone::mamba}) {
      CAPTURE(learner);
      const LanguageModelConfig config = small_model(layer_type(learner), backbone);
      const Comparison c =
          compared(config, DType::f64, ttt::FormChoice::automatic, ttt::FormChoice::automatic, kAny);
      CHECK(c.logits < 1e-10);
      CHECK(c.gradients < 1e-8);
    }
  }
}

TEST_CASE("documents: where forms go chunk by chunk, to the bit" * doctest::test_suite("slow")) {
  for (const char* layer : {"linear", "mlp", "lact", "delta-net"})
    for (const ttt::FormChoice form : {ttt::FormChoice::dual, ttt::FormChoice::primal}) {
      CAPTURE(layer);
      CAPTURE(name(form));
      LanguageModelConfig config = small_model(layer, Backbone::transformer);
      config.attention_window = 0;
      CHECK(compared(config, DType::f64, form, form, kRows).same_bits);
      CHECK(compared(config, DType::f32, form, form, kRows).same_bits);
    }
}

TEST_CASE(
    "documents: forms that take chunks together refuse, and say why; so does what would let documents meet") {
  LanguageModelConfig config = small_model("linear-attention");
  const std::string why =
      message_of<FormError>([&] { packed_model(config, DType::f64, ttt::FormChoice::parallel); });
  CHECK(contains(why, "parallel is impossible"));
  CHECK(contains(why, "documents are packed: the state begins anew between chunks"));
  // A document that could begin inside of a chunk.
  config.ttt_layer_type = "linear";
  for (const std::int64_t align : {1, 2, 6})
    CHECK(contains(message_of<ConfigError>(
                       [&] { packed_model(config, DType::f64, ttt::FormChoice::automatic, kAny, align); }),
                   fmt::format("begin at multiples of {} tokens, and chunks at multiples of 4", align)));
  CHECK_NOTHROW(packed_model(config, DType::f64, ttt::FormChoice::automatic, kAny, 8));
  // Documents as long as the sequence all begin with it: of one chunk, or of chunks that would not fit.
  for (const std::int64_t chunk : {4, 7, 12, 64}) {
    LanguageModelConfig whole = config;
    whole.mini_batch_size = chunk;
    CHECK_NOTHROW(packed_model(whole, DType::f64, ttt::FormChoice::automatic, kAny, 64));
  }
  config.mini_batch_size = 64;  // the whole sequence is a chunk
  config.ttt_layer_type = "lact";
  CHECK(
      contains(message_of<ConfigError>([&] { packed_model(config, DType::f64, ttt::FormChoice::automatic); }),
               "the whole sequence is one chunk"));
  trace(
      [](Tensor x) {
        ttt::Stream stream;
        stream.pack(zeros(DType::f64, {1, 5}), 1);
        CHECK(contains(message_of<ConfigError>([&] { stream.with_history("rows", x, 2); }),
                       "another document's"));
        CHECK(contains(message_of<ShapeError>([&] { stream.pack(zeros(DType::f64, {5}), 1); }),
                       "[batch, time]"));
        CHECK(contains(message_of<ConfigError>([&] {
                         stream.pack(zeros(DType::f64, {1, 5}), 0);
                       }),
                       "1 or more"));
        ttt::Stream step(ttt::Stream::Mode::initial);
        CHECK(contains(message_of<ConfigError>([&] {
                         step.pack(zeros(DType::f64, {1, 5}), 1);
                       }),
                       "read whole"));
        return x;
      },
      Spec{DType::f64, {1, 5, 2}});
}

TEST_CASE("documents: a text's are its files, or what empty lines divide") {
  const ByteCorpus corpus(as_bytes("one\ntwo\n\n\nthree\n\nfour"), as_bytes("\n\nfive"));
  const auto begins = corpus.documents(Split::training);
  CHECK(std::vector(begins.begin(), begins.end()) == std::vector<std::size_t>{0, 10, 17});
  CHECK(corpus.documents(Split::validation).size() == 1);
  const ByteCorpus returns(as_bytes("one\r\ntwo\r\n\r\n\r\nthree\r\n\r\nfour"), as_bytes("\r\n\r\nfive"));
  const auto lines = returns.documents(Split::training);
  CHECK(std::vector(lines.begin(), lines.end()) == std::vector<std::size_t>{0, 14, 23});
  CHECK(returns.documents(Split::validation).size() == 1);

  const TemporaryFolder folder;
  for (int i = 0; i < 12; ++i) std::ofstream(folder / fmt::format("{:02}", i)) << "file " << i << "\n\nends";
  const ByteCorpus files = ByteCorpus::load(folder.path, 5);
  CHECK(files.documents(Split::training).size() == 11);
  CHECK(files.documents(Split::validation).size() == 1);
  const auto text = files.bytes(Split::training);
  for (const std::size_t begin : files.documents(Split::training))
    CHECK(std::string(text.begin() + static_cast<std::ptrdiff_t>(begin),
                      text.begin() + static_cast<std::ptrdiff_t>(begin) + 5) == "file ");

  const auto wrong = [&](std::vector<std::size_t> begin) {
    return message_of<ConfigError>(
        [&] { ByteCorpus(as_bytes("abcd"), std::move(begin), as_bytes("abcd"), {0}); });
  };
  for (const std::vector<std::size_t>& begin : {std::vector<std::size_t>{}, {1}, {0, 2, 2}, {0, 4}})
    CHECK(contains(wrong(begin), "documents of the training part must begin at ascending bytes"));
}

TEST_CASE(
    "documents: a batch holds whole ones in their places, each at a chunk's beginning, and counts only their own targets") {
  const ByteCorpus corpus = letters(20);
  const std::int64_t context = 40, batch = 6;
  const PackedWindows w = packed_batch(corpus, Split::training, 3, batch, context, kChunk, 7);
  std::size_t documents = 0;
  for (std::int64_t row = 0; row < batch; ++row) {
    const auto token = [&](std::int64_t t) { return static_cast<int>(w.tokens.at(row * (context + 1) + t)); };
    const auto place = [&](std::int64_t t) {
      return static_cast<std::int64_t>(w.places.at(row * context + t));
    };
    CHECK(place(0) == 0);
    for (std::int64_t t = 0; t < context;) {
      CHECK(place(t) == 0);
      CHECK(t % kChunk == 0);
      ++documents;
      std::int64_t end = t + 1;
      for (; end < context && place(end) > 0; ++end) CHECK(place(end) == place(end - 1) + 1);
      std::int64_t letters = 0;
      while (t + letters <= context && token(t + letters) == token(t)) ++letters;
      // Whole: as many letters as its own is in the alphabet, and an empty line. Only the last one may be cut.
      const bool whole = letters == token(t) - 'a' + 1 && t + letters + 2 <= context + 1;
      CHECK((whole || end == context));
      const std::int64_t length = whole ? letters + 2 : context + 1 - t;
      for (std::int64_t at = t; at < end; ++at)
        CHECK((w.counted.at(row * context + at) == 1) == (at + 1 < t + length));
      if (whole) CHECK(token(t + letters) == '\n');
      t = end;
    }
  }
  CHECK(documents > 15);
  const PackedWindows again = packed_batch(corpus, Split::training, 3, batch, context, kChunk, 7),
                      later = packed_batch(corpus, Split::training, 4, batch, context, kChunk, 7);
  CHECK(again.tokens.same_bits(w.tokens));
  CHECK(again.places.same_bits(w.places));
  CHECK(!later.tokens.same_bits(w.tokens));

  // A document that is longer than a window begins somewhere.
  std::string numbers;
  for (int i = 0; i < 200; ++i) numbers += static_cast<char>(i + 11);
  const ByteCorpus one(as_bytes(numbers), as_bytes(numbers));
  const PackedWindows parts = packed_batch(one, Split::training, 0, 8, context, kChunk, 1);
  std::set<double> begins;
  for (std::int64_t row = 0; row < 8; ++row) begins.insert(parts.tokens.at(row * (context + 1)));
  CHECK(begins.size() > 4);
  CHECK(std::ranges::count(parts.counted.to_vector(), 0.0) == 0);

  // Validation: every byte but the first of each part is a target once.
  const PackedWindows all = packed_validation(corpus, context, kChunk, 1000);
  const std::vector<double> counted = all.counted.to_vector();
  CHECK(std::accumulate(counted.begin(), counted.end(), 0.0) == 20 * 21 / 2 + 2 * 20 - 20);
  CHECK(packed_validation(corpus, context, kChunk, 2).tokens.shape() == Shape{2, context + 1});

  // A loss of no token is no loss of 0.
  PackedWindows none = packed_validation(corpus, context, kChunk, 2);
  none.counted = Array::zeros(DType::f32, none.counted.shape());
  const std::vector<std::vector<double>> losses(2,
                                                std::vector<double>(static_cast<std::size_t>(context), 1.0));
  CHECK(contains(message_of<ValueError>([&] { validation_of_losses(losses, none); }),
                 "no token of these windows counts"));

  CHECK(contains(message_of<ConfigError>([&] { packed_batch(corpus, Split::training, 0, 1, 40, 41, 0); }),
                 "multiples of 41"));
  CHECK(contains(
      message_of<ConfigError>([&] { packed_validation(ByteCorpus(as_bytes("ab"), as_bytes("a")), 4, 1, 2); }),
      "the validation part has no document of two bytes"));
}

TEST_CASE("documents: training on them goes on to the bit, and scores each by its place") {
  const TemporaryFolder folder;
  LanguageModelConfig model = small_model("linear");
  model.vocab_size = 256;
  const TrainingOptions options{
      .model = model, .steps = 30, .batch = 3, .context = 24, .lr = 2e-2, .warmup = 2, .pack = kChunk};
  const ByteCorpus corpus = letters(12);
  Trainer straight(options, corpus), first(options, corpus), second(options, corpus);
  double loss = 0;
  for (int i = 0; i < 30; ++i) loss = straight.step().loss;
  CHECK(loss < 3);  // letters repeat, once they are known; it began at 5.5
  for (int i = 0; i < 11; ++i) first.step();
  first.save(folder / "checkpoint");
  second.load(folder / "checkpoint");
  for (int i = 11; i < 30; ++i) second.step();
  for (const auto& [name, value] : straight.parameters())
    CHECK(value.same_bits(second.parameters().at(name)));
  const PackedWindows windows = straight.validation_documents(50);
  const Validation v = straight.validate(windows);
  CHECK(v.loss_by_position.size() == 13);  // eleven letters and two newlines are targets
  CHECK(v.loss > 0);
  CHECK(v.loss < 3);
  CHECK(bigram_loss(corpus.bytes(Split::training), windows.tokens, windows.counted) < 1);
  CHECK(contains(message_of<ConfigError>([&] { straight.validate(straight.validation_windows(4)); }),
                 "packed documents"));
  CHECK(contains(message_of<ShapeError>([&] { straight.validate(packed_validation(corpus, 16, kChunk, 4)); }),
                 "must be tokens i32 [windows, 25]"));
  CHECK(contains(message_of<ShapeError>([&] { straight.validate(PackedWindows()); }), "must be tokens i32"));
  for (const float place : {-1.0f, 24.0f, 1e9f, 0.5f, std::nanf("")}) {
    PackedWindows wrong{windows.tokens, windows.places.clone(), windows.counted};
    wrong.places.as<float>()[3] = place;
    CHECK(contains(message_of<ValueError>([&] { straight.validate(wrong); }), "a token stands at place"));
  }
  PackedWindows fewer = windows;
  fewer.counted = Array::full(DType::f32, {1}, 1);
  CHECK(contains(message_of<ShapeError>([&] { straight.validate(fewer); }), "counted f32[1]"));

  TrainingOptions plain = options;
  plain.pack = 0;
  Trainer unpacked(plain, corpus);
  CHECK(contains(message_of<ConfigError>([&] { unpacked.load(folder / "checkpoint"); }), "pack = 4"));
  CHECK(contains(message_of<ConfigError>([&] { unpacked.validation_documents(1); }), "running text"));
  CHECK(contains(message_of<ConfigError>([&] { unpacked.validate(windows); }), "running text"));
  plain.pack = 6;
  CHECK(contains(message_of<ConfigError>([&] { Trainer(plain, corpus); }),
                 "multiples of 6 tokens, and chunks"));
  plain.pack = 25;
  CHECK(contains(message_of<ConfigError>([&] { Trainer(plain, corpus); }),
                 "multiples of 25 tokens in a context of 24"));
  const LogitsFn blind = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return gather(p("t", {256, 256}), tokens);
  };
  CHECK(contains(message_of<ConfigError>([&] { Trainer(options, corpus, blind); }),
                 "does not look where they begin"));
  TrainingOptions end_to_end = options;
  end_to_end.model.ttt_layer_type = kEndToEnd;
  CHECK(
      contains(message_of<ConfigError>([&] { Trainer(end_to_end, corpus); }), "reads one document in each"));
}
