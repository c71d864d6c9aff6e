// The kernel of a scan whose steps are elementwise: compiled for it, launched for each stretch of steps.
#include <algorithm>
#include <utility>

#include "cuda/elements_source.h"
#include "cuda/kernel_maker.h"
#include "cuda/loop_table.h"
#include "cuda/scan_arguments.h"

namespace nestgrad::cuda {

namespace {

using Kernel = void (*)(const StepTableView* table, Bases bases, Stretch steps,
                        const std::byte* const* literals, int blocks);

class ElementsKernel final : public LoopKernel {
 public:
  ElementsKernel(const ScanStep& step, CudaBackend& backend, Kernel kernel, ElementsSource source)
      : backend_(backend),
        kernel_(kernel),
        source_(std::move(source.text)),
        bases_(step.table.bases.size()),
        extent_(for_each_of(source.threads, kElementsThreads)),
        blocks_(static_cast<int>(extent_.blocks)),
        literals_(literal_addresses(step, backend)),
        table_(uploaded(step.table)) {
    extent_.blocks *= step.table.slices;
  }

  void run(std::byte* const* at, const Stretch& steps) override {
    Bases bases{};
    std::copy_n(at, bases_, bases.at);
    launch(backend_, extent_, kernel_, table_.as<const StepTableView>(), bases, steps,
           literals_.as<const std::byte*>(), blocks_);
  }
  std::string describe() const override { return "one kernel, compiled for it, a thread an element"; }
  std::string source() const override { return source_; }

 private:
  DeviceTable uploaded(const StepTable& from) {
    StepTableView view = from.view();
    upload_table(from, backend_, lists_, view);
    return {backend_, &view, sizeof(view)};
  }

  CudaBackend& backend_;
  Kernel kernel_;
  std::string source_;
  std::size_t bases_;
  Extent extent_;
  int blocks_;  // of a slice
  std::vector<DeviceTable> lists_;
  DeviceTable literals_, table_;
};

}  // namespace

std::unique_ptr<LoopKernel> elements_kernel(const ScanStep& step, CudaBackend& backend) {
  ElementsSource source = elements_source(step);
  if (source.text.empty() || step.table.bases.size() > kMostBases) return nullptr;
  const MadeKernel made = make_kernel(source.text, kElementsFunction, backend.index());
  if (!made.function) return nullptr;
  return std::make_unique<ElementsKernel>(
      step, backend, reinterpret_cast<Kernel>(const_cast<void*>(made.function)), std::move(source));
}

}  // namespace nestgrad::cuda
