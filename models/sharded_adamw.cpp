#include "models/sharded_adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/processes/ranks.h"
#include "engine/run/function.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kBlock = 4096;  // numbers whose squares are added up by one process
constexpr std::size_t kScalars = 4;  // inputs of the plan before the pieces: rate, two corrections, clipping

std::span<const std::byte> part_of_array(const Array& a, IndexRange elements) {
  return {a.data() + uz(elements.begin) * sizeof(float), uz(elements.size()) * sizeof(float)};
}
std::span<std::byte> part_of_array(Array& a, IndexRange elements) {
  return {a.data() + uz(elements.begin) * sizeof(float), uz(elements.size()) * sizeof(float)};
}

bool is_whole(IndexRange elements, const ParamSpec& spec) { return elements.size() == numel(spec.shape); }

Array copied(const Array& whole, IndexRange elements) {
  Array out(DType::f32, {elements.size()});
  std::ranges::copy(part_of_array(whole, elements), out.data());
  return out;
}

// Eight sums side by side, in f64, added in a fixed order.
double sum_of_squares_of(std::span<const float> numbers) {
  double lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= numbers.size(); i += 8)
    for (std::size_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(numbers[i + k]) * numbers[i + k];
  for (; i < numbers.size(); ++i) lanes[i % 8] += static_cast<double>(numbers[i]) * numbers[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// What each process sends of a step before its losses.
struct StepHead {
  double rate;
  std::uint64_t kind;
  bool operator==(const StepHead&) const = default;
};

}  // namespace

ShardedAdamW::ShardedAdamW(const std::vector<ParamSpec>& specs, const std::vector<ParameterRule>& rules,
                           const std::vector<bool>& stepped, const AdamWOptions& options,
                           double average_decay, std::int64_t grains, std::shared_ptr<Transport> processes)
    : specs_(specs),
      options_(options),
      kinds_(average_decay > 0 ? 3 : 2),
      grains_(grains),
      processes_(std::move(processes)) {
  std::int64_t blocks = 0;
  for (const ParamSpec& p : specs_) blocks += (numel(p.shape) + kBlock - 1) / kBlock;
  for (int r = 0; r < processes_->size(); ++r) {
    const IndexRange own = part_of(blocks, r, processes_->size());
    std::vector<Piece>& pieces = pieces_.emplace_back();
    std::int64_t first = 0;
    int number = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const std::int64_t n = numel(specs_[i].shape), here = (n + kBlock - 1) / kBlock;
      const IndexRange elements{std::clamp((own.begin - first) * kBlock, std::int64_t{0}, n),
                                std::clamp((own.end - first) * kBlock, std::int64_t{0}, n)};
      if (elements.size() > 0) pieces.push_back({i, elements, stepped[i] ? number : -1});
      if (stepped[i]) ++number;
      first += here;
    }
  }
  make_plan(rules, options, average_decay);
}

void ShardedAdamW::make_plan(const std::vector<ParameterRule>& rules, const AdamWOptions& options,
                             double average_decay) {
  std::vector<Spec> inputs(kScalars, Spec{DType::f32, {}});
  std::vector<const Piece*> pieces;
  for (const Piece& p : mine())
    if (p.stepped >= 0) pieces.push_back(&p);
  if (pieces.empty()) return;
  // All gradients, then all parameters, then each kind of state: what is written over is one run of inputs.
  for (std::size_t kind = 0; kind < 2 + kinds_; ++kind)
    for (const Piece* p : pieces) inputs.push_back({DType::f32, {p->elements.size()}});
  const std::size_t n = pieces.size();
  const Function f = trace(TraceFn([&](const std::vector<Tensor>& in) {
                             std::vector<Tensor> out((1 + kinds_) * n);
                             for (std::size_t i = 0; i < n; ++i) {
                               const auto at = [&](std::size_t kind) { return in[kScalars + kind * n + i]; };
                               const AdamWParameter r =
                                   adamw_parameter({at(1), at(2), at(3)}, at(0) * in[3],
                                                   {in[0], in[1], in[2]}, options, rules[pieces[i]->param]);
                               out[i] = r.param, out[n + i] = r.m, out[2 * n + i] = r.v;
                               if (kinds_ > 2)
                                 out[3 * n + i] = at(4) * average_decay + r.param * (1 - average_decay);
                             }
                             return out;
                           }),
                           inputs);
  plan_ = std::make_unique<Plan>(
      f.plan({.device = Device::cpu(), .donate = donations((1 + kinds_) * n, 0, kScalars + n)}));
}

void ShardedAdamW::place(const std::vector<Array>& moments) {
  state_.clear();
  for (std::size_t kind = 0; kind < kinds_; ++kind)
    for (const Piece& p : mine())
      state_.push_back(copied(moments[kind * specs_.size() + p.param].to(Device::cpu()), p.elements));
}

// Sent from where they lie to where they belong.
std::vector<Array> ShardedAdamW::gathered() const {
  std::vector<Array> out;
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  const int me = processes_->rank();
  for (std::size_t kind = 0; kind < kinds_; ++kind) {
    const std::span<const Array> own = std::span(state_).subspan(kind * mine().size(), mine().size());
    if (me != 0) {
      for (const Array& a : own) sends.push_back({0, {a.data(), a.bytes()}});
      continue;
    }
    const std::size_t first = out.size();
    for (const ParamSpec& p : specs_) out.emplace_back(DType::f32, p.shape);
    for (int r = 0; r < processes_->size(); ++r)
      for (std::size_t i = 0; i < pieces_[uz(r)].size(); ++i) {
        const Piece& p = pieces_[uz(r)][i];
        const std::span<std::byte> to = part_of_array(out[first + p.param], p.elements);
        if (r == me) std::copy_n(own[i].data(), to.size(), to.data());
        else receives.push_back({r, to});
      }
  }
  processes_->exchange(sends, receives);
  return out;
}

void ShardedAdamW::add(Gradients& a, Gradients& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    float* const to = a[i].as<float>().data();
    const float* const from = b[i].as<float>().data();
    in_blocks(a[i].size(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k) to[k] += from[k];
    });
  }
}

// The gradient of the whole batch, of each piece of mine that is stepped. Sent from where it lies, and added up there.
std::vector<Array> ShardedAdamW::gradient_pieces(std::vector<TreeSum<Gradients>::Node> gradients) {
  std::vector<Array> out;
  if (processes_->size() == 1) {
    for (const Array& a : gradients.at(0).value) out.push_back(a.reshaped({a.size()}));
    return out;
  }
  using Parts = std::vector<std::span<float>>;  // of each piece of mine
  const auto of_pieces = [](Gradients& from, const std::vector<Piece>& pieces) {
    Parts numbers;
    for (const Piece& p : pieces)
      if (p.stepped >= 0)
        numbers.push_back(
            from[uz(p.stepped)].as<float>().subspan(uz(p.elements.begin), uz(p.elements.size())));
    return numbers;
  };
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  std::vector<std::vector<float>> received;
  TreeSum<Parts>::Add add = [](Parts& a, Parts& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t k = 0; k < a[i].size(); ++k) a[i][k] += b[i][k];
  };
  std::vector<TreeSum<Parts>::Node> nodes;  // of all, in order
  for (int r = 0; r < processes_->size(); ++r) {
    if (r == processes_->rank()) {
      for (auto& root : gradients) nodes.push_back({root.leaves, of_pieces(root.value, mine())});
      continue;
    }
    for (auto& root : gradients)
      for (const std::span<float> numbers : of_pieces(root.value, pieces_[uz(r)]))
        sends.push_back({r, std::as_bytes(numbers)});
    for (const IndexRange& root : roots_of(part_of(grains_, r, processes_->size()), grains_)) {
      Parts& numbers = nodes.emplace_back(TreeSum<Parts>::Node{root, {}}).value;
      for (const Piece& p : mine()) {
        if (p.stepped < 0) continue;
        numbers.emplace_back(received.emplace_back(uz(p.elements.size())));
        receives.push_back({r, std::as_writable_bytes(numbers.back())});
      }
    }
  }
  processes_->exchange(sends, receives);
  TreeSum<Parts> tree(grains_, add);
  for (auto& node : nodes) tree.push(node.leaves, std::move(node.value));
  for (const std::span<float> numbers : tree.roots().at(0).value) {
    Array& a = out.emplace_back(DType::f32, Shape{std::ssize(numbers)});
    std::ranges::copy(numbers, a.as<float>().begin());
  }
  return out;
}

// Each process's pieces, which it has stepped, to all others, from where they lie to where they belong.
void ShardedAdamW::share(std::vector<Array>& stepped, std::vector<Array>& params) {
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  for (int r = 0; r < processes_->size(); ++r) {
    const bool is_mine = r == processes_->rank();
    auto made = stepped.begin();
    for (const Piece& p : pieces_[uz(r)]) {
      if (p.stepped < 0) continue;
      const std::span<std::byte> here = part_of_array(params[p.param], p.elements);
      if (!is_mine) receives.push_back({r, here});
      else if (made->data() != here.data()) std::copy_n(made->data(), here.size(), here.data());
      if (is_mine) ++made;
    }
    if (!is_mine)
      for (const Array& a : stepped) sends.push_back({r, {a.data(), a.bytes()}});
  }
  processes_->exchange(sends, receives);
}

double ShardedAdamW::norm_of(const std::vector<Array>& gradients) const {
  std::vector<double> sums;
  for (const Array& a : gradients)
    for (std::int64_t at = 0; at < a.size(); at += kBlock)
      sums.push_back(sum_of_squares_of(a.as<float>().subspan(uz(at), uz(std::min(kBlock, a.size() - at)))));
  double total = 0;
  for (const Bytes& part : processes_->all_gather(std::as_bytes(std::span(sums))))
    for (std::size_t at = 0; at < part.size(); at += sizeof(double)) {
      double sum = 0;
      std::memcpy(&sum, part.data() + at, sizeof(double));
      total += sum;
    }
  return std::sqrt(total);
}

// The sum of all grains' losses. Each process sends its rate with its own: parts that were stepped at several would be the model of no run.
float ShardedAdamW::loss_of_all(std::span<const float> losses, double rate, std::uint64_t kind) const {
  const StepHead mine{rate, kind};
  Bytes sent(sizeof mine + losses.size_bytes());
  std::memcpy(sent.data(), &mine, sizeof mine);
  if (!losses.empty()) std::memcpy(sent.data() + sizeof mine, losses.data(), losses.size_bytes());
  TreeSum<float> loss(grains_, [](float& a, float& b) { a += b; });
  std::vector<StepHead> heads;
  std::vector<int> others;
  for (const Bytes& part : processes_->all_gather(sent)) {
    std::memcpy(&heads.emplace_back(), part.data(), sizeof mine);
    if (heads.back() != heads[0]) others.push_back(static_cast<int>(heads.size()) - 1);
    for (std::size_t at = sizeof mine; at < part.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, part.data() + at, sizeof(float));
      const std::int64_t grain = loss.roots().empty() ? 0 : loss.roots().back().leaves.end;
      loss.push({grain, grain + 1}, value);
    }
  }
  if (!others.empty()) {
    const StepHead& other = heads[uz(others[0])];
    throw ProcessError(fmt::format(
        "[train] {} {} a step of the batches of kind {} with rate {}, rank 0 one of kind {} with rate {}: every process makes the "
        "same calls",
        ranks_text(others), others.size() == 1 ? "makes" : "make", other.kind, other.rate, heads[0].kind,
        heads[0].rate));
  }
  return loss.roots().at(0).value;
}

ShardedAdamW::Result ShardedAdamW::step(std::span<const float> losses,
                                        std::vector<TreeSum<Gradients>::Node> gradients,
                                        std::vector<Array>& params, const Numbers& numbers,
                                        std::uint64_t kind) {
  const float loss = loss_of_all(losses, numbers.rate, kind);
  const std::vector<Array> own = gradient_pieces(std::move(gradients));
  Result out{loss, norm_of(own), true};
  out.stepped = std::isfinite(out.loss) && std::isfinite(out.grad_norm);
  if (!out.stepped) return out;

  const double clip = std::min(options_.clip / (out.grad_norm + 1e-6), 1.0);
  std::vector<Array> inputs, results, stepped;
  for (const double x : {numbers.rate, numbers.correction1, numbers.correction2, clip})
    inputs.push_back(Array::scalar(x, DType::f32));
  inputs.insert(inputs.end(), own.begin(), own.end());
  for (const Piece& p : mine())
    if (p.stepped >= 0)
      stepped.push_back(is_whole(p.elements, specs_[p.param]) ? params[p.param].reshaped({p.elements.size()})
                                                              : copied(params[p.param], p.elements));
  inputs.insert(inputs.end(), stepped.begin(), stepped.end());
  for (std::size_t kept = 0; kept < kinds_; ++kept)
    for (std::size_t i = 0; i < mine().size(); ++i)
      if (mine()[i].stepped >= 0) inputs.push_back(state_[kept * mine().size() + i]);
  if (plan_) {
    results.assign(inputs.begin() + static_cast<std::ptrdiff_t>(kScalars + own.size()), inputs.end());
    plan_->run(inputs, results);
  }
  if (processes_->size() > 1) share(stepped, params);
  return out;
}

std::size_t ShardedAdamW::bytes() const {
  std::size_t out = 0;
  for (const Array& a : state_) out += a.bytes();
  return out;
}

}  // namespace nestgrad
