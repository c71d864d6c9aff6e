#include "ops/gemm.h"

#include <algorithm>

#include "engine/core/threads.h"

namespace nestgrad {

template <class T>
typename Gemm<T>::Sharing Gemm<T>::sharing(std::int64_t count) const {
  constexpr std::int64_t kPartsOfAThread = 8;  // so that threads which are held up do not hold up the others
  const std::int64_t threads = thread_count(), shares = 2 * plan_.m * plan_.n * plan_.k * count / kShare;
  if (shares < 2 || threads == 1) return {1, 1};
  if (count % threads == 0 || count >= 4 * threads)
    return {static_cast<int>(std::min(count, kPartsOfAThread * threads)), 1};
  const std::int64_t each =
      plan_.along ? 1
                  : std::min({shares, threads, std::max<std::int64_t>(1, plan_.units / kernel_.tile_rows)});
  return {static_cast<int>(count * each), static_cast<int>(each)};
}

template <class T>
void Gemm<T>::part(const T* a, const T* b, const T* d, T* c, int i, int parts) const {
  if (plan_.along) {
    const std::int64_t grain = std::max<std::int64_t>(1, kShare / (2 * std::max<std::int64_t>(1, plan_.k)));
    return in_blocks(plan_.units, grain, [&](std::int64_t begin, std::int64_t end) {
      kernel_.run(plan_, a, b, d, c, begin, end);
    });
  }
  kernel_.run(plan_, a, b, d, c, i * plan_.units / parts, (i + 1) * plan_.units / parts);
}

template class Gemm<float>;
template class Gemm<double>;

}  // namespace nestgrad
