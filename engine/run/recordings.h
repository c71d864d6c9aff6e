// Recordings: what the runs of a plan queue on a GPU, recorded, so that a later run queues it as a whole. A recording is
// of certain addresses; callers alternate between few sets of arrays. Owned by the plan, and used by one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/backend.h"

namespace nestgrad {

class Recordings {
 public:
  // Has a run's work queued, which reads and writes at these addresses. For addresses that were not seen lately the work is
  // done as it is: the device loads what it uses for the first time, and many runs never come again. When they come
  // again it is recorded, and from then on replayed.
  void run(Backend& backend, const std::vector<std::byte*>& addresses, const std::function<void()>& work);

  const std::string& why_not() const { return why_not_; }  // why runs are not recorded; empty: they are
  std::size_t made() const { return made_; }               // in all
  std::size_t changed() const { return changed_; }         // of these, by changing one that was there

 private:
  static constexpr std::size_t kMost = 4, kMostSeen = 8;            // that are recorded; sets of addresses
  static constexpr std::size_t kMostPieces = std::size_t{1} << 19;  // of all recordings: some 200 MB of a GPU
  struct Seen {
    std::vector<std::byte*> addresses;
    std::unique_ptr<Backend::Recording> recording;  // null: not yet
  };

  // Takes a recording out where there would be too many: the one that was not used for longest. Null: there is room.
  std::unique_ptr<Backend::Recording> take_oldest();
  std::size_t pieces() const;

  std::vector<Seen> seen_;  // the last used last
  std::string why_not_;
  std::size_t made_ = 0, changed_ = 0;
};

}  // namespace nestgrad
