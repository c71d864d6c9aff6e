#include "models/check_reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/core/index.h"
#include "engine/processes/threads.h"
#include "models/random_reading.h"
#include "ops/collectives.h"

namespace nestgrad {

namespace {

// Tokens [begin, end) of each sequence, and what is answered to them.
Array tokens_of(const Array& all, std::int64_t begin, std::int64_t end) {
  const std::int64_t batch = all.shape()[0], time = all.shape()[1];
  Array out(DType::i32, {batch, end - begin});
  for (std::int64_t b = 0; b < batch; ++b)
    std::copy_n(all.as<std::int32_t>().begin() + b * time + begin, end - begin,
                out.as<std::int32_t>().begin() + b * (end - begin));
  return out;
}

// logits: of tokens [begin, end) of each sequence, read another way. ConfigError where the whole's are others.
void require_same(const RandomReading& whole, const std::vector<double>& logits, std::int64_t begin,
                  std::int64_t end, std::string_view read, std::string_view advice) {
  const std::int64_t batch = whole.tokens.shape()[0], time = whole.tokens.shape()[1], vocab = whole.vocab;
  const double largest = whole.largest();
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t v = 0; v < vocab; ++v) {
        const double here = logits[uz((b * (end - begin) + t - begin) * vocab + v)],
                     wanted = whole.logits[uz((b * time + t) * vocab + v)];
        if (const double error = std::abs(here - wanted) / largest; !(error <= whole.tolerance))
          throw ConfigError(fmt::format(
              "[model] {} the model answers something else, from token {} on (the first is 0): logit {} of sequence {} "
              "is {:.6g} and not {:.6g}, which is {:.2g} of the largest logit apart. {}, see docs/guide/own_model.md",
              read, t, v, b, here, wanted, error, advice));
      }
}

}  // namespace

void check_slices(const LogitsFn& model, std::int64_t slices, const CheckDecodingOptions& o) {
  const RandomReading whole = read_at_random("check_slices", model, o);
  if (slices < 2 || o.tokens % slices != 0)
    throw ConfigError(fmt::format("[model] check_slices of {} slices of {} tokens: need 2 or more that divide them",
                                  slices, o.tokens));
  const std::int64_t each = o.tokens / slices;
  std::vector<std::vector<double>> answers(uz(slices));
  run_as_processes(static_cast<int>(slices), [&](Transport& rank) {
    const ProcessGroup ranks(std::shared_ptr<Transport>(&rank, [](Transport*) {}));
    const TracedModel part = trace_model(
        o.dtype, {{DType::i32, {o.batch, each}}}, [&](ParamTable& table, const std::vector<Tensor>& in) {
          ttt::Stream stream;
          stream.cut(ranks);
          const Params own_params = Params(table).through(
              [params = Params(table), ranks](const Params::Request& r) { return own(params.get(r), ranks); });
          return std::vector<Tensor>{logits_of(model, own_params, own(in[0], ranks), stream)};
        });
    const std::int64_t begin = rank.rank() * each;
    answers[uz(rank.rank())] =
        part.function(part.bind({tokens_of(whole.tokens, begin, begin + each)}, {&whole.params}))[0].to_vector();
  });
  for (std::int64_t s = 0; s < slices; ++s)
    require_same(whole, answers[uz(s)], s * each, (s + 1) * each, fmt::format("cut into {} slices", slices),
                 "What a slice's first tokens need of those before them, the function has to ask the stream for: "
                 "with_history(), before(), conv() or positions(); where further tokens meet, whole_time()");
}

void check_packing(const LogitsFn& model, std::int64_t align, const CheckDecodingOptions& o) {
  if (align < 1 || 2 * align > o.tokens)
    throw ConfigError(fmt::format(
        "[model] check_packing of documents that begin at multiples of {} tokens, in a sequence of {}: need 1 or more, and "
        "room for two",
        align, o.tokens));
  RandomReading apart = read_at_random("check_packing", model, o);
  const std::int64_t second = o.tokens / 2 / align * align;
  std::vector<double> place;
  for (std::int64_t i = 0; i < o.batch * o.tokens; ++i) {
    const std::int64_t t = i % o.tokens;
    place.push_back(static_cast<double>(t < second ? t : t - second));
  }
  const Array places = Array::of(place, {o.batch, o.tokens}, o.dtype);
  const TracedModel packed = trace_model(
      o.dtype, {apart.tokens.spec(), places.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        stream.pack(in[1], align);
        return std::vector<Tensor>{logits_of(model, Params(table), in[0], stream)};
      });
  const std::vector<double> together =
      packed.function(packed.bind({apart.tokens, places}, {&apart.params}))[0].to_vector();
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, second}, {second, o.tokens}}) {
    const Array document = tokens_of(apart.tokens, begin, end);
    const TracedModel alone = traced_whole(model, o.dtype, document.spec());
    const std::vector<double> logits =
        alone.function(alone.bind({document}, {&apart.params}))[0].to_vector();
    for (std::int64_t b = 0; b < o.batch; ++b)
      std::copy_n(logits.begin() + b * (end - begin) * apart.vocab, (end - begin) * apart.vocab,
                  apart.logits.begin() + (b * o.tokens + begin) * apart.vocab);
  }
  require_same(apart, together, 0, o.tokens,
               fmt::format("packed with another document (the second begins at token {})", second),
               "Where a document begins, the function has to ask the stream: places(), before(), conv() or positions()");
}

}  // namespace nestgrad
