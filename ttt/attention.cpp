#include "ttt/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "ttt/causal_attention.h"
#include "ttt/masked_softmax.h"

namespace nestgrad::ttt {

namespace {

// Without q only keys and values are checked.
void check(std::string_view op, Tensor q, Tensor k, Tensor v, bool as_many_queries, Loc loc) {
  const std::string queries = q.defined() ? fmt::format("q is {}, ", to_string(q.spec())) : "";
  const auto check_that = [&]<class Error = ShapeError>(bool holds, std::string_view why) {
    if (!holds)
      throw call_error<Error>(op, loc, "{}: {}k is {}, v is {}", why, queries, to_string(k.spec()),
                              to_string(v.spec()));
  };
  if (!q.defined()) q = k;
  const auto each = [&](auto holds) { return holds(q) && holds(k) && holds(v); };
  check_that(
      each([](Tensor x) { return x.rank() == 4 && x.spec().size() != 0; }),
      "needs q [batch, heads, time, dim], k [batch, groups, time, dim] and v [batch, groups, time, out], none empty");
  check_that.operator()<DTypeError>(
      each([&](Tensor x) { return is_float(x.dtype()) && x.dtype() == q.dtype(); }),
      "operands must be of one floating type, cast() first");
  check_that(k.dim(0) == q.dim(0) && v.dim(0) == q.dim(0) && v.dim(1) == k.dim(1),
             "batch, or heads of k and v, differ; repeat operands with broadcast_to() first");
  check_that(q.dim(1) % k.dim(1) == 0,
             "every head of k and v is read by as many heads of q; need q.heads to be a multiple of k.heads");
  check_that(q.dim(3) == k.dim(3), "need q.dim == k.dim");
  check_that(k.dim(2) == v.dim(2), "need k.time == v.time, one value a key");
  check_that(!as_many_queries || q.dim(2) == k.dim(2),
             "need q.time == k.time; only attention without a mask takes other queries");
}

double checked_scale(std::string_view op, double scale, Loc loc) {
  if (!std::isfinite(scale) || scale < 0)
    throw call_error<ConfigError>(op, loc,
                                  "scale must be positive and finite, or 0 for 1/sqrt(dim); it is {}", scale);
  return scale;
}

// A neighbourhood of `window` along an axis of `extent` tokens.
void check_window(std::string_view op, std::int64_t window, std::int64_t extent, std::string_view axis,
                  Loc loc) {
  if (window < 1 || window % 2 == 0)
    throw call_error<ConfigError>(
        op, loc, "a window around a token must be odd and positive, it is {}; need 1, 3, 5, ..", window);
  if (window > extent)
    throw call_error<ConfigError>(
        op, loc,
        "a window of {} tokens does not fit into a {} of {}; need a window of at most that, or "
        "attention without a window",
        window, axis, extent);
}

// Is s in the neighbourhood of t? The window is moved inside at the borders.
bool in_neighbourhood(std::int64_t t, std::int64_t s, std::int64_t window, std::int64_t extent) {
  const std::int64_t begin = std::clamp<std::int64_t>(t - window / 2, 0, extent - window);
  return begin <= s && s < begin + window;
}

// [time, time]: 1 where reads(t, s), for tokens t and s.
template <class Reads>
Array mask_of(DType dtype, std::int64_t time, const Reads& reads) {
  Array mask(dtype, {time, time});
  dispatch(dtype, [&]<class T>(T) {
    auto at = mask.as<T>().begin();
    for (std::int64_t t = 0; t < time; ++t)
      for (std::int64_t s = 0; s < time; ++s) *at++ = static_cast<T>(reads(t, s));
  });
  return mask;
}

// [batch, 1, time, time]: 1 where token t reads s, of the same document, not later, and in the window.
Tensor within_documents(Tensor places, std::int64_t window, Tensor q, Loc loc) {
  const std::int64_t batch = q.dim(0), time = q.dim(2);
  if (places.shape() != Shape{batch, time})
    throw call_error<ShapeError>(
        "attention", loc, "places of packed documents are {}; they must be {}: q is {}",
        to_string(places.spec()), to_string(Shape{batch, time}), to_string(q.spec()));
  const Tensor back =
      iota(q.dtype(), {time, time}, 0) - iota(q.dtype(), {time, time}, 1);  // how far s lies behind t
  const Tensor reads =
      less_equal(back, reshape(cast(places, q.dtype()), {batch, 1, time, 1})) * less_equal(0.0, back);
  return window > 0 ? reads * less(back, static_cast<double>(window)) : reads;
}

Tensor scaled(Tensor q, double scale) {
  return q * (scale == 0 ? 1.0 / std::sqrt(static_cast<double>(q.dim(3))) : scale);
}

// x y, or x y', of each head's rows and those that its group has. Heads of a group are rows of one product.
Tensor times(Tensor x, Tensor y, bool transposed) {
  const std::int64_t groups = y.dim(1), each = x.dim(1) / groups;
  if (each == 1) return matmul(x, y, {.b = transposed});
  const Tensor rows = reshape(x, {x.dim(0), groups, each * x.dim(2), x.dim(3)});
  const Tensor out = matmul(rows, y, {.b = transposed});
  return reshape(out, {x.dim(0), x.dim(1), x.dim(2), out.dim(3)});
}

// softmax(scale q k') v, reading where the mask is not zero; everywhere if there is none.
Tensor read(Tensor q, Tensor k, Tensor v, double scale, Tensor mask) {
  const Tensor scores = times(scaled(q, scale), k, true);
  return times(mask.defined() ? masked_softmax(mask, scores) : softmax(scores, -1), v, false);
}

}  // namespace

Tensor attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Loc loc) {
  const CompositeScope scope("attention", loc);
  const std::int64_t window = options.window;
  const bool masked = options.causal || window != 0;
  check("attention", q, k, v, masked, loc);
  const double scale = checked_scale("attention", options.scale, loc);
  if (options.places.defined() && !options.causal)
    throw call_error<ConfigError>(
        "attention", loc,
        "places of packed documents are for causal attention; without causal, documents would "
        "be read together. Set causal, or leave places out");
  if (!masked) return read(q, k, v, scale, {});
  const std::int64_t time = q.dim(2);
  if (options.causal) {
    if (window < 0)
      throw call_error<ConfigError>("attention", loc,
                                    "the window must be positive, or 0 for no bound; it is {}", window);
    if (options.places.defined())
      return read(q, k, v, scale, within_documents(options.places, window, q, loc));
    return slice(causal_attention(scaled(q, scale), k, v, window, loc), 3, 0, v.dim(3));
  }
  check_window("attention", window, time, "sequence", loc);
  const auto reads = [&](auto t, auto s) { return in_neighbourhood(t, s, window, time); };
  return read(q, k, v, scale, q.graph().constant(mask_of(q.dtype(), time, reads)));
}

Tensor neighbourhood_attention_2d(Tensor q, Tensor k, Tensor v, std::int64_t height, std::int64_t width,
                                  std::int64_t window, double scale, Loc loc) {
  constexpr std::string_view op = "neighbourhood_attention_2d";
  const CompositeScope scope(op, loc);
  check(op, q, k, v, true, loc);
  checked_scale(op, scale, loc);
  if (!is_grid(q.dim(2), height, width))
    throw call_error<ShapeError>(
        op, loc,
        "an image of height {} and width {} does not have {} tokens; need height * width == time: q is {}",
        height, width, q.dim(2), to_string(q.spec()));
  check_window(op, window, height, "height", loc);
  check_window(op, window, width, "width", loc);
  Array mask = mask_of(q.dtype(), height * width, [&](auto t, auto s) {
    return in_neighbourhood(t / width, s / width, window, height) &&
           in_neighbourhood(t % width, s % width, window, width);
  });
  return read(q, k, v, scale, q.graph().constant(std::move(mask)));
}

Tensor attention_step(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Stream& stream,
                      const std::string& name, Loc loc) {
  const CompositeScope scope("attention_step", loc);
  check("attention_step", q, k, v, true, loc);
  const double scale = checked_scale("attention_step", options.scale, loc);
  if (q.dim(2) != 1)
    throw call_error<ShapeError>(
        "attention_step", loc,
        "reads one token, q has {}; use attention() for the whole of a sequence: q is {}", q.dim(2),
        to_string(q.spec()));
  if (!options.causal)
    throw call_error<ConfigError>(
        "attention_step", loc,
        "a token cannot read what comes after it; set causal, or use attention() on the whole of a sequence");
  if (options.places.defined())
    throw call_error<ConfigError>(
        "attention_step", loc,
        "places of packed documents are for whole sequences; let each document have a stream of its own");
  const bool ring = options.window != 0;
  const std::int64_t rows = ring ? options.window : options.capacity;
  if (rows < 1)
    throw call_error<ConfigError>(
        "attention_step", loc,
        "needs a window or a capacity, the most tokens that it will read; they are {} and {}", options.window,
        options.capacity);
  if (rows > Stream::kForever / 2)
    throw call_error<ConfigError>("attention_step", loc, "keeps {} tokens, and counts to {} of them at most",
                                  rows, Stream::kForever / 2);
  const DType dtype = q.dtype();
  const Tensor places = iota(dtype, {rows, 1}, 0);
  // Tokens before this one. In a ring the count turns back from 2 rows to rows, so that its place (modulo
  // rows) and whether the ring is full stay known, and exact in f32, for ever.
  const Tensor seen =
      stream.counter(name + ".seen", ring ? Stream::Count{2 * rows, rows} : Stream::Count{rows, rows}, dtype);
  Tensor place;
  if (ring) {
    const double full = static_cast<double>(rows);
    place = select(less(seen, full), seen, seen - full);
  } else {  // looked up in 0, 1, 2, ..: the count itself, or an error when there is no such row
    place = cast(gather(iota(DType::i32, {rows}, 0), cast(seen, DType::i32)), dtype);
  }
  const auto carried = [&](Tensor row, const std::string& id) {
    const Tensor before = stream.state(id, zeros(dtype, {row.dim(0), row.dim(1), rows, row.dim(3)}));
    stream.carry_row(id, select(equal(places, place), row, before), row, place);
    return before;
  };
  // The new row is read beside the others, so that nobody has to make arrays that hold all.
  const Tensor keys = carried(k, name + ".keys"), values = carried(v, name + ".values");
  const Tensor here = equal(reshape(places, {1, rows}), place), asked = scaled(q, scale);
  const Tensor scores = select(here, times(asked, k, true), times(asked, keys, true));
  const Tensor weights = masked_softmax(less_equal(reshape(places, {1, rows}), seen), scores);
  return times(select(here, zero_like(weights), weights), values, false) +
         times(sum(select(here, weights, zero_like(weights)), {-1}, kKeep), v, false);
}

Tensor attention_along(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Stream& stream,
                       const std::string& name, Loc loc) {
  if (stream.stepping()) return attention_step(q, k, v, options, stream, name, loc);
  if (!stream.is_cut()) return attention(q, k, v, options, loc);
  const int slices = stream.ranks().size();
  if (q.dim(1) % slices != 0 || k.dim(1) % slices != 0)
    throw ConfigError(fmt::format(
        "[attention] '{}' has {} heads, and {} groups of keys and values, which {} slices of a sequence cannot share "
        "equally: cut it into a divisor of both",
        name, q.dim(1), k.dim(1), slices));
  AttentionOptions of_all = options;
  if (options.places.defined()) of_all.places = stream.of_all_tokens(options.places, 1);
  const auto whole = [&](Tensor x) { return stream.whole_time(name, x); };
  const Tensor all_q = whole(q), all_k = whole(k), all_v = whole(v);
  return stream.whole_heads(attention(all_q, all_k, all_v, of_all, loc));
}

NadarayaWatson::NadarayaWatson(double scale, Loc loc) : scale_(checked_scale("nadaraya_watson", scale, loc)) {
  if (scale == 0)
    throw call_error<ConfigError>("nadaraya_watson", loc,
                                  "scale 0 makes every example count alike; need more than 0");
}

void NadarayaWatson::train(Tensor k, Tensor v, Loc loc) {
  const CompositeScope scope("nadaraya_watson", loc);
  check("nadaraya_watson", {}, k, v, false, loc);
  if (examples() == 0) {
    k_ = k;
    v_ = v;
    return;
  }
  const auto joins = [](Tensor set, Tensor more) {
    return more.dtype() == set.dtype() && more.dim(0) == set.dim(0) && more.dim(1) == set.dim(1) &&
           more.dim(3) == set.dim(3);
  };
  if (!joins(k_, k) || !joins(v_, v))
    throw call_error<ShapeError>(
        "nadaraya_watson", loc,
        "examples differ from those before in more than their number: k is {} and was {}, v is {} and was {}",
        to_string(k.spec()), to_string(k_.spec()), to_string(v.spec()), to_string(v_.spec()));
  k_ = concat({k_, k}, 2);
  v_ = concat({v_, v}, 2);
}

Tensor NadarayaWatson::predict(Tensor q, Loc loc) const {
  const CompositeScope scope("nadaraya_watson", loc);
  if (examples() == 0)
    throw call_error<ShapeError>("nadaraya_watson", loc,
                                 "there is no example to predict from; train() first: q is {}",
                                 to_string(q.spec()));
  check("nadaraya_watson", q, k_, v_, false, loc);
  return read(q, k_, v_, scale_, {});
}

}  // namespace nestgrad::ttt
