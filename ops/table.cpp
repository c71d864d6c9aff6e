#include "ops/table.h"

#include <algorithm>
#include <array>

namespace nestgrad {

std::span<const Op* const> op_table() {
  static const auto sorted = [] {
    std::array rows{
#define OP(NAME) &NAME##_op,
#include "ops/table.def"
    };
    std::ranges::sort(rows, {}, &Op::name);
    return rows;
  }();
  return sorted;
}

const Op* find_op(std::string_view name) {
  const auto rows = op_table();
  const auto at = std::ranges::lower_bound(rows, name, {}, &Op::name);
  return at != rows.end() && (*at)->name == name ? *at : nullptr;
}

}  // namespace nestgrad
