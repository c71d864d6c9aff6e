#include "engine/plan/step_table.h"

#include <algorithm>

#include "engine/core/index.h"

namespace nestgrad {

int StepTable::base(const Place& place, std::size_t per_worker) {
  const auto known = std::ranges::find_if(bases, [&](const Base& b) {
    return b.place.kind == place.kind && b.place.at == place.at && b.per_worker == per_worker;
  });
  const auto number = static_cast<int>(known - bases.begin());
  if (known == bases.end()) bases.push_back({place, per_worker});
  return number;
}

StepPart StepTable::part(std::size_t bytes, const std::vector<std::size_t>& at,
                         const std::vector<char>& owner) {
  const StepPart out{static_cast<std::int64_t>(bytes), static_cast<int>(offsets.size())};
  offsets.insert(offsets.end(), at.begin(), at.end());
  owners.insert(owners.end(), owner.begin(), owner.end());
  return out;
}

StepTableView StepTable::view() const {
  return {.carries = static_cast<int>(carries.size()),
          .xs = static_cast<int>(xs.size()),
          .constants = static_cast<int>(constants.size()),
          .stacks = static_cast<int>(stacks.size()),
          .slices = slices,
          .reverse = reverse,
          .carry = carries.data(),
          .x = xs.data(),
          .constant = constants.data(),
          .stack = stacks.data(),
          .offsets = offsets.data(),
          .owners = owners.data()};
}

}  // namespace nestgrad
