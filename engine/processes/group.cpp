#include "engine/processes/group.h"

#include <map>
#include <mutex>

namespace nestgrad {

namespace {

struct Groups {
  std::mutex mutex;
  int last = 0;
  std::map<int, std::weak_ptr<Transport>> known;
};
Groups& groups() {
  static auto& out = *new Groups;
  return out;
}

const std::shared_ptr<Transport>& alone() {
  static const auto& out = *new std::shared_ptr<Transport>(std::make_shared<OneProcess>());
  return out;
}

}  // namespace

ProcessGroup::ProcessGroup() : processes_(alone()) {}

ProcessGroup::ProcessGroup(std::shared_ptr<Transport> processes) : processes_(std::move(processes)) {
  if (!processes_)
    throw ProcessError(
        "[processes] a group was given no transport: give it that of open_processes(), or leave it out for this "
        "process alone");
  Groups& g = groups();
  const std::lock_guard lock(g.mutex);
  std::erase_if(g.known, [](const auto& entry) { return entry.second.expired(); });
  id_ = ++g.last;
  g.known.emplace(id_, processes_);
}

std::shared_ptr<Transport> ProcessGroup::find(int id) {
  if (id == 0) return alone();
  Groups& g = groups();
  const std::lock_guard lock(g.mutex);
  const auto at = g.known.find(id);
  return at == g.known.end() ? nullptr : at->second.lock();
}

}  // namespace nestgrad
