// Running a plan into given arrays allocates nothing. Counts every way to ask for memory while a plan runs.
#include <cmath>
#include <cstdlib>

#include "tests/autograd/deriving.h"
#include "tests/fuzz/compare.h"

namespace {

// volatile: the compiler believes that malloc reads no variable of ours.
thread_local volatile bool counting = false;
thread_local volatile long allocations = 0;

void note() {
  if (counting) allocations = allocations + 1;
}

}  // namespace

#ifdef NESTGRAD_SANITIZED
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                         void (*)(const volatile void*));
namespace {
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { note(); }, [](const volatile void*) {});
}
#else
// operator new, Eigen and the C library all end here.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) { return note(), __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) { return note(), __libc_calloc(n, size); }
void* realloc(void* p, std::size_t n) { return note(), __libc_realloc(p, n); }
void* aligned_alloc(std::size_t alignment, std::size_t n) { return note(), __libc_memalign(alignment, n); }
void* memalign(std::size_t alignment, std::size_t n) { return note(), __libc_memalign(alignment, n); }
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
  note();
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : 12;  // ENOMEM
}
}
#endif

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

template <class Fn>
long allocations_in(Fn&& fn) {
  allocations = 0;
  counting = true;
  fn();
  counting = false;
  return allocations;
}

long allocations_of_replay(const Function& f, const Arrays& in, const PlanOptions& options = {}) {
  Plan plan = f.plan(options);
  Arrays out = plan.run(in);
  return allocations_in([&] { plan.run(std::span<const Array>(in), std::span(out)); });
}

// Some entries of c = op(a) op(b), each summed by itself.
void check_product(const Array& a, const Array& b, MatmulOptions flags, const Array& c) {
  const std::int64_t rows = c.shape()[0], cols = c.shape()[1], inner = a.size() / rows;
  for (std::int64_t i = 0; i < c.size(); i += std::max<std::int64_t>(1, c.size() / 97)) {
    const std::int64_t row = i / cols, col = i % cols;
    double expected = 0;
    for (std::int64_t k = 0; k < inner; ++k)
      expected +=
          a.at(flags.a ? k * rows + row : row * inner + k) * b.at(flags.b ? col * inner + k : k * cols + col);
    CHECK(std::abs(c.at(i) - expected) <
          (c.dtype() == DType::f32 ? 1e-5 : 1e-13) * static_cast<double>(inner));
  }
}

}  // namespace

TEST_CASE("The counter counts") {
  CHECK(allocations_in([] { Array::zeros(DType::f64, {4}); }) > 0);
  CHECK(allocations_in([] {
          auto* memory = static_cast<volatile char*>(std::malloc(100));
          memory[0] = 1;  // used, so that it cannot be optimised away
          std::free(const_cast<char*>(memory));
        }) == 1);
  CHECK(allocations_in([] {}) == 0);
}

TEST_CASE("Replaying a plan allocates nothing, whatever the ops") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    fuzz::Draws draws(seed);
    const fuzz::Subject s = fuzz::random_subject(draws);
    CHECK(allocations_of_replay(s.f, fuzz::numbers_for(s.specs, seed)) == 0);
  }
}

TEST_CASE("Replaying the derivatives of scans allocates nothing, under any schedule") {
  const auto specs = learner_specs(6);
  for (const int every : {0, 1, 4}) {
    const Function f = derivative([](const Tensors& in) { return nested_learner(in, as_scan); }, specs, 2);
    CHECK(allocations_of_replay(f, random(specs, 1), {.checkpoint_every = every}) == 0);
  }
}

TEST_SUITE("slow") {
  TEST_CASE("Matrix products of the sizes met in training allocate nothing") {
    struct Sizes {
      Shape a, b;
      MatmulOptions flags;
    };
    const Sizes cases[] = {
        {{2048, 256}, {256, 256}, {}},
        {{2048, 256}, {256, 256}, {false, true}},
        {{2048, 256}, {2048, 256}, {true, false}},
        {{256, 2048}, {512, 256}, {true, true}},
        {{16, 4, 16, 64}, {16, 4, 64, 64}, {}},
        {{16, 4, 16, 64}, {16, 4, 64, 64}, {false, true}},
        {{16, 4, 16, 64}, {16, 4, 16, 64}, {true, false}},
        {{16, 4, 16, 64}, {64, 64}, {}},
        {{1, 256}, {256, 1024}, {}},
        {{256, 1024}, {1024, 1}, {}},
        {{256, 1024}, {256, 1}, {true, false}},
        {{1, 50000}, {50000, 8}, {}},
        {{50000, 1}, {50000, 8}, {true, false}},
        {{1, 50000}, {8, 50000}, {false, true}},
        {{8, 50000}, {50000, 1}, {}},
        {{8, 50000}, {1, 50000}, {false, true}},
        {{50000, 1}, {1, 8}, {}},
    };
    for (const DType type : {DType::f32, DType::f64})
      for (const Sizes& c : cases) {
        CAPTURE(to_string(c.a));
        CAPTURE(to_string(c.b));
        const std::vector<Spec> specs{{type, c.a}, {type, c.b}};
        const Function f =
            trace([&](Tensor x, Tensor y) { return matmul(x, y, c.flags); }, specs[0], specs[1]);
        const Arrays in = random(specs, 1);
        CHECK(allocations_of_replay(f, in) == 0);
        if (c.a.size() == 2) check_product(in[0], in[1], c.flags, f(in)[0]);
      }
  }
}

TEST_CASE("Composites of a transformer block and their gradients allocate nothing") {
  const std::vector<Spec> specs{f32({2, 8, 16}), f32({16}), f32({16, 1, 4}), i32({2, 8}), f32({12, 16})};
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        const Tensor x = in[0] + gather(in[4], in[3]);
        const Tensor h =
            causal_conv1d(layer_norm(x, in[1], in[1]), in[2], in[1]) + rms_norm(x, in[1]) + l2_norm(x);
        const Tensor turned = rope(h, iota(DType::f32, {8}, 0)),
                     scores = tril(matmul(turned, turned, {false, true}));
        const Tensor y = gelu_tanh(matmul(softmax(scores, -1), silu(h)));
        const Tensor loss = mean(cross_entropy(matmul(y, in[4], {false, true}), in[3]));
        return grad(loss, {in[0], in[1], in[2], in[4]});
      },
      specs);
  Arrays in = random({specs[0], specs[1], specs[2]}, 3);
  in.push_back(Array::full(DType::i32, {2, 8}, 5));
  in.push_back(random(specs[4], 9));
  CHECK(allocations_of_replay(f, in) == 0);
}
