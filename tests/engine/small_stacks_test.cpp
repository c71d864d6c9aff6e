// The promise: a program that uses the library can have threads with small stacks, and call functions on them.
#include <link.h>
#include <pthread.h>

#include <exception>
#include <functional>

#include "engine/core/threads.h"
#include "tests/models/model_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// What sanitizers put between variables is on the stack too.
constexpr std::size_t kKiB = kSanitized ? 16 * 1024 : 1024;

// Runs fn on a thread with so many bytes of stack.
void on_stack_of(std::size_t bytes, const std::function<void()>& fn) {
  struct Call {
    const std::function<void()>& fn;
    std::exception_ptr error = {};
  } call{fn};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  pthread_t thread{};
  const auto run = [](void* given) -> void* {
    auto& own = *static_cast<Call*>(given);
    try {
      own.fn();
    } catch (...) {
      own.error = std::current_exception();
    }
    return nullptr;
  };
  const int failed = pthread_create(&thread, &attributes, run, &call);
  pthread_attr_destroy(&attributes);
  REQUIRE(failed == 0);
  pthread_join(thread, nullptr);
  if (call.error) std::rethrow_exception(call.error);
}

// Bytes that each thread has of thread_local variables of the program and of the library, in its stack.
std::size_t bytes_of_each_thread() {
  std::size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* sum) {
        const std::string_view name = object->dlpi_name;
        for (int i = 0; i < object->dlpi_phnum; ++i)
          if (object->dlpi_phdr[i].p_type == PT_TLS && (name.empty() || contains(name, "nestgrad")))
            *static_cast<std::size_t*>(sum) += object->dlpi_phdr[i].p_memsz;
        return 0;
      },
      &bytes);
  return bytes;
}

}  // namespace

TEST_CASE("what each thread has from its start is small") {
  if (kSanitized) return;
  CHECK(bytes_of_each_thread() > 0);  // it is found
  CHECK(bytes_of_each_thread() < 64 * 1024);
}

TEST_CASE("a thread with a stack of 256 KiB runs products and fused ops, of any type") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Spec square{dtype, {300, 300}}, line{dtype, {1, 300}};
    const Function f = trace(
        [](Tensor a, Tensor b, Tensor row) {
          const Tensor product = matmul(tanh(matmul(a, b, {.a = true})), b, {.b = true});
          return Tensors{product, softmax(product * row, -1) + exp(-nestgrad::square(a)) * row};
        },
        square, square, line);
    const Arrays in{random(square, 1), random(square, 2), random(line, 3)};
    const Arrays expected = f.plan().run(in);
    Plan plan = f.plan();
    Arrays out;
    on_stack_of(256 * kKiB, [&] { out = plan.run(in); });
    CHECK(same_bits(out, expected));
    on_stack_of(256 * kKiB, [&] {
      const SingleThreadScope alone;
      out = plan.run(in);
    });
    CHECK(same_bits(out, expected));
  }
}

TEST_CASE("a thread with a stack of 512 KiB traces a learner, differentiates it and runs it") {
  for (const char* layer : {"linear", "mlp"}) {
    CAPTURE(layer);
    const auto run = [&] {
      const LanguageModelConfig config = small_model(layer);
      const Array tokens = random_tokens(2, 9, config.vocab_size);
      const TracedModel model =
          trace_model(DType::f32, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
            ttt::Stream stream;
            const Tensor loss = mean(next_token_loss(config, Params(table), in[0], stream));
            Tensors out{loss};
            for (const Tensor& g : grad(loss, table.tensors())) out.push_back(g);
            return out;
          });
      const StateDict params = random_parameters(model, DType::f32);
      return model.function(model.bind({tokens}, {&params}));
    };
    const Arrays expected = run();
    Arrays out;
    on_stack_of(512 * kKiB, [&] { out = run(); });
    CHECK(same_bits(out, expected));
  }
}
