// One function per published system; each is defined in the file of its name.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

System ttt_linear();
System ttt_mlp();
System naive_ttt();
System titans_linear();
System titans_mlp();
System kv_binding();
System self_modifying();
System linear_attention();
System gated_linear_attention();
System delta_net();
System gated_delta_net();
System mesa_net();
System mesa_net_exact();
System lact();
System lact_sgd();
System lact_prenorm();
System lact_low_rank();
System lact_nvs();
System vittt();
std::vector<System> t5();           // t5-gated, t5-two-layers, ..
std::vector<System> lact_ladder();  // lact-v1 .. lact-v6

}  // namespace nestgrad::ttt
