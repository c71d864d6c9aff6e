#include "engine/cluster.h"

#include <algorithm>
#include <cstring>

#include "engine/threads.h"

namespace nestgrad {

namespace {

std::size_t uz(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr std::int64_t kBlock = 512;      // elements
constexpr std::int64_t kGrain = 1 << 15;  // elements that a thread does at once
constexpr std::size_t kMostTemporaries = 8, kMostOperands = 32, kMostDims = kMostClusterRank;

// An input that is spread over the output: runs of `run` elements, contiguous or all the same.
struct Spread {
  struct Dim {
    std::int64_t size, stride;  // of runs, innermost first; stride in elements of the input
  };
  std::int64_t run = 1;
  bool repeats = false;
  std::vector<Dim> dims;

  Spread(const Spec& in, const Spec& out) {
    const Shape strides = strides_of(in.shape);
    std::vector<Dim> all;
    for (int d = out.rank(); d-- > 0;) {
      const std::int64_t size = out.shape[uz(d)];
      if (size == 1) continue;
      const int axis = d - (out.rank() - in.rank());
      const std::int64_t stride = axis < 0 || in.shape[uz(axis)] == 1 ? 0 : strides[uz(axis)];
      if (!all.empty() && stride == all.back().stride * all.back().size) all.back().size *= size;
      else all.push_back({size, stride});
    }
    if (all.empty()) return;
    run = all[0].size, repeats = all[0].stride == 0;
    dims.assign(all.begin() + 1, all.end());
  }

  // Elements begin..end of the output's order.
  template <class T>
  void expand(const T* in, std::int64_t begin, std::int64_t end, T* out) const {
    std::int64_t counter[kMostDims], index = begin / run, within = begin % run;
    for (std::size_t d = 0; d < dims.size(); index /= dims[d++].size) {
      counter[d] = index % dims[d].size;
      in += counter[d] * dims[d].stride;
    }
    for (std::int64_t at = begin;;) {
      const std::int64_t n = std::min(run - within, end - at);
      if (repeats) std::fill_n(out, n, *in);
      else std::copy_n(in + within, n, out);
      if ((at += n) == end) return;
      out += n, within = 0;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        in += dims[d].stride;
        if (++counter[d] < dims[d].size) break;
        in -= dims[d].stride * dims[d].size, counter[d] = 0;
      }
    }
  }
};

struct Step {
  ElementLoop loop;
  std::vector<int> operands;  // inputs, or ~temporary
  int out;                    // temporary; -1: the cluster's output
};

template <class T>
class Cluster {
 public:
  Cluster(const std::vector<ClusterOp>& ops, const std::vector<Spec>& inputs, const Spec& out)
      : size_(out.size()), inputs_(inputs.size()) {
    std::vector<std::size_t> free(kMostTemporaries);
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = free.size() - 1 - i;
    const auto take = [&] {
      const std::size_t t = free.back();
      free.pop_back();
      return static_cast<int>(t);
    };
    for (const Spec& in : inputs) {
      const bool whole = in.size() == size_, one = in.size() == 1 && size_ != 1;
      kinds_.push_back(whole ? Kind::whole : one ? Kind::one : Kind::spread);
      spreads_.emplace_back(in, out);
    }
    std::vector<int> home(ops.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      Step step{nullptr, {}, -1};
      std::vector<char> stretched;
      std::vector<int> done;  // temporaries that this op is the last to read: each value has one reader
      for (int o : ops[i].operands) {
        stretched.push_back(o >= 0 && kinds_[uz(o)] == Kind::one);
        step.operands.push_back(o >= 0 ? o : ~home[uz(~o)]);
        if (o < 0 && std::ranges::find(done, home[uz(~o)]) == done.end()) done.push_back(home[uz(~o)]);
      }
      for (int t : done) free.push_back(uz(t));  // before the output is placed: it may be written over them
      if (i + 1 < ops.size()) home[i] = step.out = take();
      step.loop = ops[i].op->loop(out.dtype, stretched);
      steps_.push_back(std::move(step));
    }
  }

  void operator()(const std::byte* const* in, std::byte* out) const {
    in_blocks(size_, kGrain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T temporaries[kMostTemporaries][kBlock];
      alignas(64) T expanded[kMostOperands][kBlock];
      const std::byte* at[kMostOperands];
      for (std::int64_t block = begin; block < end; block += kBlock) {
        const std::int64_t n = std::min(kBlock, end - block);
        for (std::size_t k = 0; k < inputs_; ++k) {
          const T* x = reinterpret_cast<const T*>(in[k]);
          if (kinds_[k] == Kind::spread)
            spreads_[k].expand(x, block, block + n, expanded[k]), x = expanded[k];
          else if (kinds_[k] == Kind::whole) x += block;
          at[k] = reinterpret_cast<const std::byte*>(x);
        }
        T* y = reinterpret_cast<T*>(out) + block;
        for (const Step& s : steps_) {
          const std::byte* operands[kMostArity];
          for (std::size_t k = 0; k < s.operands.size(); ++k)
            operands[k] = s.operands[k] >= 0
                              ? at[s.operands[k]]
                              : reinterpret_cast<const std::byte*>(temporaries[~s.operands[k]]);
          s.loop(operands, reinterpret_cast<std::byte*>(s.out < 0 ? y : temporaries[s.out]), n);
        }
      }
    });
  }

 private:
  static constexpr std::size_t kMostArity = 3;
  enum class Kind : std::uint8_t { whole, one, spread };

  std::int64_t size_;
  std::size_t inputs_;
  std::vector<Kind> kinds_;
  std::vector<Spread> spreads_;
  std::vector<Step> steps_;
};

}  // namespace

Kernel cluster_kernel(const std::vector<ClusterOp>& ops, const std::vector<Spec>& inputs, const Spec& out) {
  if (out.dtype == DType::f32) return Cluster<float>(ops, inputs, out);
  if (out.dtype == DType::f64) return Cluster<double>(ops, inputs, out);
  return Cluster<std::int32_t>(ops, inputs, out);
}

}  // namespace nestgrad
