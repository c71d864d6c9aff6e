// Promises of the inner loop as a whole: its closed forms, and who may influence whom.
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/ttt/named_learners.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr FormChoice kForms[] = {FormChoice::primal, FormChoice::dual};

// f(x) = x W, loss 1/2 |k W - v|^2.
NamedLearner plain(const Sizes& s) {
  return formula(
      "x W",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {s.heads, s.dim, s.dim}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"]); });
}

Function outputs_of(const NamedLearner& named, const Sizes& sizes, FormChoice form) {
  return reading(named, sizes, [&](const Reading& r) {
    return values_of(
        ttt::train_along(r.learner, r.start, r.views, {.policy = {.chunk = sizes.mini_batch}, .form = form}));
  });
}

// Row t of one sequence of x [batch, heads, time, dim].
std::vector<double> token(const Array& x, std::int64_t sequence, std::int64_t t) {
  const std::int64_t time = x.shape()[2], dim = x.shape()[3];
  std::vector<double> out;
  for (std::int64_t d = 0; d < dim; ++d) out.push_back(x.at((sequence * time + t) * dim + d));
  return out;
}
double inner(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The linear learner from W = 0, in closed form. With eta[i, j] = position_i token_j:
//   batch    o = (eta o tril(Q K')) V
//   online   o = (eta o tril(Q K')) E,  E = (I + (eta o tril(K K', -1)))^-1 V   (the delta rule)
Array closed_form(const Arrays& in, bool online) {
  const Array &k = in[0], &v = in[1], &q = in[2];
  const std::int64_t sequences = k.shape()[0] * k.shape()[1], time = k.shape()[2], dim = k.shape()[3];
  Array out(DType::f64, k.shape());
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto eta = [&](std::int64_t i, std::int64_t j) {
      return std::exp(in[4].at(online ? 0 : i)) / (1 + std::exp(-in[3].at(s * time + j)));
    };
    std::vector<std::vector<double>> learnt;  // rows of E, or of V
    for (std::int64_t t = 0; t < time; ++t) {
      learnt.push_back(token(v, s, t));
      for (std::int64_t j = 0; online && j < t; ++j)
        for (std::size_t d = 0; d < learnt.back().size(); ++d)
          learnt.back()[d] -=
              eta(t, j) * inner(token(k, s, t), token(k, s, j)) * learnt[static_cast<std::size_t>(j)][d];
      for (std::int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (std::int64_t j = 0; j <= t; ++j)
          sum += eta(t, j) * inner(token(q, s, t), token(k, s, j)) *
                 learnt[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
        out.as<double>()[static_cast<std::size_t>((s * time + t) * dim + d)] = sum;
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("one mini-batch of the linear learner from zero is masked linear attention") {
  const Sizes sizes{.time = 8, .mini_batch = 8};
  for (const FormChoice form : kForms) {
    const Function f = outputs_of(plain(sizes), sizes, form);
    Arrays in = numbers_for(f);
    in.back() = Array::zeros(DType::f64, in.back().shape());
    CHECK(relative_error(f(in)[0], closed_form(in, false)) < 1e-12);
    CHECK(relative_error(f(in)[0], closed_form(in, true)) > 0.01);  // the control
  }
}

TEST_CASE("the linear learner online from zero is the delta rule") {
  const Sizes sizes{.time = 8, .mini_batch = 1};
  for (const FormChoice form : kForms) {
    const Function f = outputs_of(plain(sizes), sizes, form);
    Arrays in = numbers_for(f);
    in.back() = Array::zeros(DType::f64, in.back().shape());
    CHECK(relative_error(f(in)[0], closed_form(in, true)) < 1e-12);
  }
}

namespace {

// x with one block of rows (from, length in elements) drawn again.
Array redrawn(const Array& x, std::int64_t from, std::int64_t length) {
  Array out = x.clone();
  const Array fresh = random(f64({length}), 77);
  std::copy_n(fresh.as<double>().data(), length, out.as<double>().data() + from);
  return out;
}
bool same_block(const Array& a, const Array& b, std::int64_t from, std::int64_t length) {
  return std::memcmp(a.as<double>().data() + from, b.as<double>().data() + from,
                     static_cast<std::size_t>(length) * sizeof(double)) == 0;
}

}  // namespace

TEST_CASE("sequences and heads do not see each other, to the last bit") {
  const Sizes sizes;
  const std::int64_t sequences = sizes.batch * sizes.heads;
  for (const NamedLearner& named : named_learners(sizes))
    for (const FormChoice form : kForms) {
      CAPTURE(named.name);
      const Function f = outputs_of(named, sizes, form);
      const Arrays in = numbers_for(f), before = f(in);
      for (std::size_t input = 0; input < 4; ++input) {
        const std::int64_t touched = 4, each = in[input].size() / sequences;
        Arrays changed = in;
        changed[input] = redrawn(in[input], touched * each, each);
        const Arrays after = f(changed);
        for (std::size_t o = 0; o < after.size(); ++o)
          for (std::int64_t s = 0; s < sequences; ++s) {
            const std::int64_t size = after[o].size() / sequences;
            const bool reads_q_only = input == 2 && o > 0;  // weights do not learn from q
            CHECK(same_block(before[o], after[o], s * size, size) == (s != touched || reads_q_only));
          }
      }
    }
}

TEST_CASE("a token changes nothing that was read before it, to the last bit") {
  const Sizes sizes{.batch = 1, .heads = 1};
  for (const NamedLearner& named : named_learners(sizes))
    for (const FormChoice form : kForms) {
      CAPTURE(named.name);
      const Function f = outputs_of(named, sizes, form);
      const Arrays in = numbers_for(f);
      const Array before = f(in)[0];
      for (std::int64_t t = 0; t < sizes.time; ++t)
        for (std::size_t input = 0; input < 4; ++input) {
          const std::int64_t each = in[input].size() / sizes.time;
          Arrays changed = in;
          changed[input] = redrawn(in[input], t * each, each);
          const Array after = f(changed)[0];
          for (std::int64_t read = 0; read < sizes.time; ++read) {
            const bool may_change = input == 2 ? read == t : read >= t;
            CHECK(same_block(before, after, read * sizes.dim, sizes.dim) == !may_change);
          }
        }
    }
}

TEST_CASE("a learner that closes over a function of its first weights learns through its fast weights only") {
  const Sizes sizes;
  const NamedLearner named{"x W + h(W0)", [](const Params& p) {
                             const Tensor W0 = p("W", {3, 4, 4}), h = tanh(sum(W0, {-2}, kKeep));
                             return std::make_unique<FormulaLearner>(
                                 Weights{matrix("W", W0)},
                                 [h](const Weights& w, Tensor x) { return tanh(matmul(x, w["W"])) + h; });
                           }};
  const auto numbers = [&](const Run& run) {
    const Function f = derivatives(named, sizes, run, 2);
    return f(numbers_for(f));
  };
  const Arrays primal = numbers(along({.policy = {.chunk = 4}, .form = FormChoice::primal}));
  CHECK(worst_error(numbers(along({.policy = {.chunk = 4}, .form = FormChoice::dual})), primal) < 1e-12);
  CHECK(worst_error(numbers(by_hand(4)), primal) < 1e-12);
  // The control: with the path through h the first gradient is another.
  const Function f = reading(named, {.time = 1}, [](const Reading& r) {
    const Tensor W0 = r.inputs.back();
    const auto loss = [&](Tensor w) {
      return sum(r.learner.loss(ttt::for_batch(Weights{matrix("W", w)}, 2), r.views.k, r.views.v));
    };
    const Tensor probed = probe(W0);
    return Tensors{grad(loss(W0), W0), grad(loss(probed), probed)};
  });
  const Arrays g = f(numbers_for(f));
  CHECK(relative_error(g[0], g[1]) > 0.01);
}

TEST_CASE(
    "an inner loop refuses blocks, alignments and position rates that make no sense, read whole and by tokens") {
  const Sizes sizes;  // chunks of 4
  const auto along_with = [&](const auto& change) {
    static_cast<void>(reading(plain(sizes), sizes, [&](const Reading& r) {
      InnerLoopOptions options{.policy = {.chunk = sizes.mini_batch}};
      Views views = r.views;
      change(options, views);
      return Tensors{ttt::train_along(r.learner, r.start, views, options).output};
    }));
  };
  const auto by_tokens = [&](const auto& change) {
    static_cast<void>(reading(plain(sizes), sizes, [&](const Reading& r) {
      InnerLoopOptions options{.policy = {.chunk = sizes.mini_batch}};
      Views views = ttt::part(r.views, 0, 1);
      change(options, views);
      ttt::Stream stream(ttt::Stream::Mode::step);
      return Tensors{ttt::train_step(r.learner, r.start, views, stream.counter("slot", 4, DType::f64),
                                     options, stream, "loop")};
    }));
  };
  const auto as_it_is = [](InnerLoopOptions&, Views&) {};
  along_with(as_it_is), by_tokens(as_it_is);
  for (const std::int64_t wrong : {0, -1}) {
    CAPTURE(wrong);
    const auto block = [&](InnerLoopOptions& o, Views&) { o.block = wrong; };
    CHECK(contains(message_of<ConfigError>([&] { along_with(block); }), "InnerLoopOptions::block"));
    CHECK(contains(message_of<ConfigError>([&] { by_tokens(block); }), "InnerLoopOptions::block"));
    const auto alignment = [&](InnerLoopOptions&, Views& v) { v.alignment = wrong; };
    CHECK(contains(message_of<ConfigError>([&] { along_with(alignment); }), "Views::alignment"));
  }
  const auto schedule = [](InnerLoopOptions& o, Views&) { o.checkpoint_every = -1; };
  CHECK(contains(message_of<ConfigError>([&] { along_with(schedule); }), "checkpoint_every is -1"));
  for (const Shape& shape : {Shape{3}, Shape{5}, Shape{10}, Shape{4, 1}, Shape{}}) {
    CAPTURE(to_string(shape));
    const auto position = [&](InnerLoopOptions&, Views& v) { v.position = full(DType::f64, shape, 1); };
    const std::string whole = message_of<ShapeError>([&] { along_with(position); });
    CHECK(contains(whole, "position rates are f64" + to_string(shape)));
    CHECK(contains(whole, "they must be [4]"));
    CHECK(contains(message_of<ShapeError>([&] { by_tokens(position); }),
                   "position rates are f64" + to_string(shape)));
  }
  const auto before = [](InnerLoopOptions& o, Views&) { o.chunks_before = full(DType::f64, {2}, 1); };
  CHECK(contains(message_of<ShapeError>([&] { along_with(before); }),
                 "chunks_before is f64[2]; it must be [1]"));
  const auto packed = [](InnerLoopOptions& o, Views& v) {
    o.chunks_before = full(DType::f64, {1}, 1);
    v.starts = full(DType::f64, {v.k.dim(0), 1, v.k.dim(2), 1}, 0);
    v.alignment = v.k.dim(2);
  };
  CHECK(contains(message_of<ConfigError>([&] { along_with(packed); }),
                 "chunks_before is for sequences of one document"));
  // A chunk that is longer than any memory has sizes that no arithmetic holds.
  const auto chunk = [](InnerLoopOptions& o, Views&) {
    o.policy.chunk = std::numeric_limits<std::int64_t>::max();
  };
  CHECK(contains(message_of<ConfigError>([&] { along_with(chunk); }), "the chunk has at most"));
}

TEST_CASE("an eager graph gives the numbers of the traced program") {
  const Sizes sizes;
  for (const NamedLearner& named : {ttt_linear(sizes), ttt_mlp(sizes)}) {
    const Function f = derivatives(named, sizes, along({.policy = {.chunk = 4}}), 1);
    const Arrays in = numbers_for(f);
    Graph graph(GraphMode::eager);
    const GraphScope scope(graph);
    Tensors given;
    for (const Array& a : in) given.push_back(graph.input(a));
    Arrays values;
    for (Tensor t : f(std::span<const Tensor>(given))) values.push_back(eval(t));
    CHECK(max_error(values, f(in)) < 1e-14);
  }
}

TEST_CASE("offsets are one for each chunk beside each weight that learns, or refused by name") {
  const ttt::System system = ttt::system_named("ttt-linear");
  ttt::trace_system(
      system, {.batch = 1, .heads = 2, .dim = 4, .time = 10, .chunk = 4}, DType::f64,
      [](const ttt::SystemProgram& p) {
        const auto run = [&](const std::function<void(InnerLoopOptions&)>& ask) {
          InnerLoopOptions options{.policy = p.policy};
          ask(options);
          return ttt::train_along(*p.learner, p.start, p.views, options);
        };
        for (const auto offsets : {&InnerLoopOptions::gradient_offset, &InnerLoopOptions::state_offset}) {
          const char* const name =
              offsets == &InnerLoopOptions::gradient_offset ? "gradient_offset" : "state_offset";
          const auto refused = [&](Tensors given, const char* why) {
            const std::string text =
                message_of<ShapeError>([&] { run([&](InnerLoopOptions& o) { o.*offsets = given; }); });
            CHECK(contains(text, name));
            CHECK(contains(text, why));
          };
          Tensors fit = ttt::zero_offsets(p.start, 3);
          REQUIRE(fit.size() == 2);
          refused({fit[0]}, "has 1 tensors, and 2 weights learn");
          refused({fit[0], fit[1], fit[1]}, "has 3 tensors");
          refused(ttt::zero_offsets(p.start, 2), "must be [3,");
          refused(ttt::zero_offsets(p.start, 7), "must be [3,");
          refused({fit[0], {}}, "is undefined");
          CHECK(run([&](InnerLoopOptions& o) { o.*offsets = fit; }).output.defined());
        }
        return Tensors{p.views.q};
      });
}
