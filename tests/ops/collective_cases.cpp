#include "tests/ops/collective_cases.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "ops/collectives.h"
#include "tests/lent_transport.h"
#include "tests/testing.h"

namespace nestgrad::testing {

namespace {

// What a collective makes of each process's own x, on several processes and on one that has them all.
struct Case {
  const char* name;
  Shape shape;  // of each one's own x, for so many processes
  std::function<Tensor(Tensor x, const ProcessGroup&)> here;
  std::function<Tensors(const Tensors& all)> whole;
};

Tensor part(Tensor x, int axis, int index, int parts) {
  const std::int64_t size = x.shape()[static_cast<std::size_t>(axis)] / parts;
  return slice(x, axis, index * size, (index + 1) * size);
}
Tensors on_each(std::size_t n, const std::function<Tensor(int)>& fn) {
  Tensors out;
  for (std::size_t r = 0; r < n; ++r) out.push_back(fn(static_cast<int>(r)));
  return out;
}

std::vector<Case> cases(int size) {
  const auto n = static_cast<std::size_t>(size);
  const auto sum_of = [](const Tensors& all) {
    Tensor out = all[0];
    for (std::size_t r = 1; r < all.size(); ++r) out = out + all[r];
    return out;
  };
  const auto transposed = [n, size](int split, int join) {
    return [=](const Tensors& all) {
      return on_each(n, [&](int r) {
        return concat(
            on_each(n, [&](int s) { return part(all[static_cast<std::size_t>(s)], split, r, size); }), join);
      });
    };
  };
  return {
      {"all_sum",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return vary(all_sum(x, g), g); },
       [=](const Tensors& all) { return on_each(n, [&](int) { return sum_of(all); }); }},
      {"exchange", {size, 2}, exchange, transposed(0, 0)},
      {"all_to_all 1, 2",
       {2, 2 * size, 3},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, 1, 2, g); },
       transposed(1, 2)},
      {"all_to_all 2, 0",
       {2, 1, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, 2, 0, g); },
       transposed(2, 0)},
      {"all_to_all -1, -1",
       {2, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return all_to_all(x, -1, -1, g); },
       transposed(1, 1)},
      {"all_gather 1",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return all_gather(x, 1, g); },
       [=](const Tensors& all) { return on_each(n, [&](int) { return concat(all, 1); }); }},
      // With x itself, so that there is a derivative by each.
      {"rank_before",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return x + 2.0 * rank_before(x, g); },
       [=](const Tensors& all) {
         return on_each(n, [&](int r) {
           const auto at = static_cast<std::size_t>(r);
           return r > 0 ? all[at] + 2.0 * all[at - 1] : all[at];
         });
       }},
      {"rank_after",
       {2, 3},
       [](Tensor x, const ProcessGroup& g) { return x + 2.0 * rank_after(x, g); },
       [=](const Tensors& all) {
         return on_each(n, [&](int r) {
           const auto at = static_cast<std::size_t>(r);
           return r + 1 < size ? all[at] + 2.0 * all[at + 1] : all[at];
         });
       }},
      {"own_part of a sum",
       {2, 2 * size},
       [](Tensor x, const ProcessGroup& g) { return own_part(all_sum(x, g), 1, g); },
       [=](const Tensors& all) { return on_each(n, [&](int r) { return part(sum_of(all), 1, r, size); }); }},
  };
}

// The loss, and gradients of squares of gradients, up to order 3: of w first, then of each x.
Tensors orders(Tensor loss, Tensor w, const Tensors& x, const std::function<Tensor(Tensor)>& over_all) {
  Tensors out{loss};
  for (int order = 1; order <= 3; ++order) {
    Tensors to{w};
    to.insert(to.end(), x.begin(), x.end());
    const Tensors g = grad(loss, to);
    out.insert(out.end(), g.begin(), g.end());
    Tensor own_squares = sum(square(g[1]));
    for (std::size_t i = 2; i < g.size(); ++i) own_squares = own_squares + sum(square(g[i]));
    loss = sum(square(g[0])) + over_all(own_squares);
  }
  return out;
}

}  // namespace

void check_collectives(RankThreads& ranks, const std::function<Device(int rank)>& device_of) {
  const int size = ranks.size();
  for (const Case& c : cases(size)) {
    CAPTURE(size);
    CAPTURE(c.name);
    const auto n = static_cast<std::size_t>(size);
    std::vector<Spec> specs{f64()};
    for (std::size_t r = 0; r < n; ++r) specs.push_back(f64(c.shape));
    const Arrays in = random(specs, 7);
    const Function whole = trace(TraceFn([&](const Tensors& all) {
                                   const Tensors x{all.begin() + 1, all.end()};
                                   Tensors scaled;
                                   for (const Tensor& one : x) scaled.push_back(sin(one * all[0]));
                                   const Tensors made = c.whole(scaled);
                                   Tensor loss = sum(sin(made[0]) * 1.0);
                                   for (std::size_t r = 1; r < n; ++r)
                                     loss = loss + sum(sin(made[r]) * static_cast<double>(r + 1));
                                   return orders(loss, all[0], x, [](Tensor t) { return t; });
                                 }),
                                 specs);
    const Arrays expected = whole(in);
    std::vector<Arrays> got(n);
    std::vector<char> same(n);
    ranks.run([&](Transport& all) {
      const ProcessGroup group(lent(all));
      const auto rank = static_cast<std::size_t>(all.rank());
      const Function mine =
          trace(TraceFn([&](const Tensors& t) {
                  const Tensor x = own(t[1], group);
                  const Tensor made = c.here(sin(x * vary(t[0], group)), group);
                  const Tensor loss = all_sum(sum(sin(made) * static_cast<double>(rank + 1)), group);
                  return orders(loss, t[0], {t[1]}, [&](Tensor s) { return all_sum(s, group); });
                }),
                {specs[0], specs[1]});
      const Function there = mine.to(device_of(all.rank()));
      got[rank] = there({in[0], in[1 + rank]});
      const Arrays again = there({in[0], in[1 + rank]});  // a GPU replays what it recorded
      same[rank] = std::ranges::equal(again, got[rank], &Array::same_bits);
    });
    for (std::size_t r = 0; r < n; ++r) {
      // Of each order: the value of w, then of this process's x.
      Arrays wanted{expected[0]};
      for (std::size_t order = 0; order < 3; ++order) {
        wanted.push_back(expected[1 + order * (n + 1)]);
        wanted.push_back(expected[2 + order * (n + 1) + r]);
      }
      CHECK(max_error(got[r], wanted) < 1e-12);
      CHECK(same[r]);
      CHECK(got[r][0].same_bits(got[0][0]));
      CHECK(got[r][1].same_bits(got[0][1]));
    }
  }
}

}  // namespace nestgrad::testing
