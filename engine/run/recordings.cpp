#include "engine/run/recordings.h"

#include <algorithm>

namespace nestgrad {

void Recordings::run(Backend& backend, const std::vector<std::byte*>& addresses,
                     const std::function<void()>& work) {
  if (!why_not_.empty()) return work();
  const auto known = std::ranges::find(seen_, addresses, &Seen::addresses);
  if (known == seen_.end()) {
    if (seen_.size() == kMostSeen) {
      // There is one: fewer are recorded.
      seen_.erase(std::ranges::find_if(seen_, [](const Seen& s) { return s.recording == nullptr; }));
    }
    seen_.push_back({addresses, nullptr});
    return work();
  }
  std::rotate(known, known + 1, seen_.end());
  Seen& now = seen_.back();
  if (!now.recording) {
    auto [recording, why_not] = backend.record(work, take_oldest());
    if (!recording) {
      why_not_ = std::move(why_not);
      seen_.clear();
      return work();
    }
    now.recording = std::move(recording);
    ++made_;
    if (now.recording->was_changed()) ++changed_;
    while (pieces() > kMostPieces && take_oldest()) {
    }
  }
  now.recording->replay();
}

std::unique_ptr<Backend::Recording> Recordings::take_oldest() {
  const auto recorded = [](const Seen& s) { return s.recording != nullptr; };
  const bool full = std::ranges::count_if(seen_, recorded) >= static_cast<std::ptrdiff_t>(kMost);
  if (!full && pieces() <= kMostPieces) return nullptr;
  const auto oldest = std::ranges::find_if(seen_, recorded);
  if (oldest + 1 == seen_.end()) return nullptr;  // the one in use stays, whatever its size
  return std::move(oldest->recording);
}

std::size_t Recordings::pieces() const {
  std::size_t n = 0;
  for (const Seen& s : seen_)
    if (s.recording) n += s.recording->pieces();
  return n;
}

}  // namespace nestgrad
