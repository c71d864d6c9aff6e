#include "cuda/exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "engine/core/index.h"

namespace nestgrad::cuda {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// "host 0000:01:00.0": a GPU, whoever asks.
std::string gpu_of(const CudaBackend& backend) {
  std::array<char, 32> id{};
  NESTGRAD_CUDA(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), backend.index()));
  return fmt::format("{} {}", host_name(), id.data());
}

NcclLibrary wanted_nccl() {
  const char* asked = std::getenv("NESTGRAD_NCCL");
  if (!asked || std::string_view(asked).empty()) return nccl_library();
  if (std::string_view(asked) != "none")
    throw ConfigError(fmt::format(
        "[cuda] NESTGRAD_NCCL is '{}'; it must be none (bytes go through the host), or unset", asked));
  return {"", "NESTGRAD_NCCL=none"};
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool DeviceExchange::connect() {
  if (connected_) return waits_on_device() || processes_->size() == 1;
  if (processes_->size() == 1) return connected_ = true;
  // What each rank says: its GPU, the version of NCCL, why it has none.
  const NcclLibrary library = wanted_nccl();
  const std::string mine = fmt::format("{}\n{}\n{}", gpu_of(backend_), library.version, library.why_not);
  std::set<std::string> gpus, versions;
  int rank = 0;
  for (const Bytes& said : processes_->all_gather(std::as_bytes(std::span(mine)))) {
    const std::string text = text_of(said);
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    const std::string gpu = text.substr(0, first), why = text.substr(second + 1);
    if (why_host_.empty() && !why.empty()) why_host_ = fmt::format("rank {}: {}", rank, why);
    if (!gpus.insert(gpu).second && why_host_.empty())
      why_host_ = fmt::format("rank {} has the same GPU as another ({})", rank, gpu);
    versions.insert(text.substr(first + 1, second - first - 1));
    ++rank;
  }
  if (why_host_.empty() && versions.size() > 1)
    why_host_ = fmt::format("ranks have different versions of NCCL ({} and {})", *versions.begin(),
                            *versions.rbegin());
  if (!why_host_.empty()) {
    connected_ = true;
    return false;
  }
  const std::string id = processes_->from_first([] { return new_nccl_id(); });
  nccl_ = std::make_unique<NcclRank>(backend_, *processes_, id);
  return connected_ = true;
}

std::string DeviceExchange::description() const {
  if (!connected_ || processes_->size() == 1) return "";
  return fmt::format(
      "{} processes: collectives {}\n", processes_->size(),
      why_host_.empty() ? "by NCCL " + nccl_library().version : "through the host (" + why_host_ + ")");
}

void DeviceExchange::exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in) {
  if (!ended_.empty()) throw ProcessError(ended_);
  if (nccl_) nccl_->exchange(out, in);
  else through_host(out, in);
}

void DeviceExchange::through_host(std::span<const Transport::Send> out,
                                  std::span<const Transport::Receive> in) {
  std::vector<Bytes> sent, received;
  std::vector<Transport::Send> sends;
  std::vector<Transport::Receive> receives;
  for (const Transport::Send& s : out) {
    sent.emplace_back(s.bytes.size());
    backend_.download(s.bytes.data(), sent.back().data(), sent.back().size());
    sends.push_back({s.to, sent.back()});
  }
  for (const Transport::Receive& r : in) received.emplace_back(r.bytes.size());
  for (std::size_t i = 0; i < in.size(); ++i) receives.push_back({in[i].from, received[i]});
  processes_->exchange(sends, receives);
  for (std::size_t i = 0; i < in.size(); ++i)
    backend_.upload(received[i].data(), in[i].bytes.data(), received[i].size());
}

std::string DeviceExchange::problem(std::chrono::nanoseconds waited) const {
  if (!nccl_) return "";
  if (const std::string failed = nccl_->problem(); !failed.empty())
    return fmt::format(
        "[processes] an exchange between GPUs failed at rank {} of {} ({}): another process ended, or cannot be "
        "reached. What was saved is intact; go on with --resume",
        processes_->rank(), processes_->size(), failed);
  if (waited <= processes_->stall_limit()) return "";
  return fmt::format(
      "[processes] rank {} of {} has waited for the GPUs of others for {} s (NESTGRAD_STALL_LIMIT): one of them is "
      "stopped, overloaded or cut off. What was saved is intact; go on with --resume",
      processes_->rank(), processes_->size(),
      std::chrono::duration<double>(processes_->stall_limit()).count());
}

void DeviceExchange::end(const std::string& problem) {
  if (!nccl_) return;
  nccl_->abort();
  nccl_.reset();
  ended_ = problem;
}

}  // namespace nestgrad::cuda
