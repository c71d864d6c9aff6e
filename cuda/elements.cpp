// The kernel of a scan whose steps are elementwise: compiled for it, launched for each stretch of steps.
#include <algorithm>
#include <optional>
#include <utility>

#include "cuda/elements_source.h"
#include "cuda/kernel_maker.h"
#include "cuda/loop_table.h"
#include "cuda/scan_arguments.h"

namespace nestgrad::cuda {

namespace {

using Kernel = void (*)(const StepTableView* table, Bases bases, Stretch steps,
                        const std::byte* const* literals, int blocks);

// A text, with what a launch of it needs.
struct Variant {
  Variant(ElementsSource source, std::int64_t slices)
      : text(std::move(source.text)), extent(for_each_of(source.threads, kElementsThreads)) {
    blocks = static_cast<int>(extent.blocks);
    extent.blocks *= slices;
  }
  std::string text;
  Extent extent;
  int blocks;  // of a slice
  Kernel kernel = nullptr;
};

// Its kernel; null where it does not compile.
Kernel made(const std::string& text, const CudaBackend& backend) {
  const MadeKernel made = make_kernel(text, kElementsFunction, backend.index());
  return reinterpret_cast<Kernel>(const_cast<void*>(made.function));
}

class ElementsKernel final : public LoopKernel {
 public:
  // single: with an element a thread, where the usual one has four.
  ElementsKernel(const ScanStep& step, CudaBackend& backend, Variant usual, std::optional<Variant> single)
      : backend_(backend),
        usual_(std::move(usual)),
        single_(std::move(single)),
        bases_(step.table.bases.size()),
        literals_(literal_addresses(step, backend)),
        table_(uploaded(step.table)) {}

  void run(std::byte* const* at, const Stretch& steps) override {
    Bases bases{};
    std::copy_n(at, bases_, bases.at);
    Variant& variant = !single_ || all_whole(at + 1, at + bases_) ? usual_ : *single_;
    if (!variant.kernel) variant.kernel = made(variant.text, backend_);
    if (!variant.kernel) throw DeviceError("[scan] its kernel with an element a thread does not compile");
    launch(backend_, variant.extent, variant.kernel, table_.as<const StepTableView>(), bases, steps,
           literals_.as<const std::byte*>(), variant.blocks);
  }
  std::string describe() const override { return "one kernel, compiled for it, a thread an element"; }
  std::string source() const override { return usual_.text; }

 private:
  DeviceTable uploaded(const StepTable& from) {
    StepTableView view = from.view();
    upload_table(from, backend_, lists_, view);
    return {backend_, &view, sizeof(view)};
  }

  CudaBackend& backend_;
  Variant usual_;
  std::optional<Variant> single_;
  std::size_t bases_;
  std::vector<DeviceTable> lists_;
  DeviceTable literals_, table_;
};

}  // namespace

std::unique_ptr<LoopKernel> elements_kernel(const ScanStep& step, CudaBackend& backend) {
  ElementsSource source = elements_source(step);
  if (source.text.empty() || step.table.bases.size() > kMostBases) return nullptr;
  const std::int64_t each = source.each;
  Variant usual(std::move(source), step.table.slices);
  usual.kernel = made(usual.text, backend);
  if (!usual.kernel) return nullptr;
  std::optional<Variant> single;
  if (each > 1) single.emplace(elements_source(step, false), step.table.slices);
  return std::make_unique<ElementsKernel>(step, backend, std::move(usual), std::move(single));
}

}  // namespace nestgrad::cuda
