// The published systems, one file each.
#include "ttt/learners/catalogue.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

const std::vector<System>& systems() {
  static const std::vector<System> all = [] {
    std::vector<System> list{ttt_linear(),
                             ttt_mlp(),
                             naive_ttt(),
                             titans_linear(),
                             titans_mlp(),
                             kv_binding(),
                             self_modifying(),
                             linear_attention(),
                             gated_linear_attention(),
                             delta_net(),
                             gated_delta_net(),
                             mesa_net(),
                             mesa_net_exact(),
                             lact(),
                             lact_sgd(),
                             lact_prenorm(),
                             lact_low_rank(),
                             lact_nvs()};
    for (std::vector<System> more : {lact_ladder(), std::vector{vittt()}, t5()})
      for (System& s : more) list.push_back(std::move(s));
    return list;
  }();
  return all;
}

const System& system_named(std::string_view name) {
  std::vector<std::string> known;
  for (const System& s : systems()) {
    if (s.name == name) return s;
    known.push_back(s.name);
  }
  throw ConfigError(
      fmt::format("[learner] there is no learner '{}'; there are {}", name, fmt::join(known, ", ")));
}

}  // namespace nestgrad::ttt
