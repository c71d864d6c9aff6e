#include "programs/other_learners.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/config.h"
#include "ttt/system.h"

namespace nestgrad {

namespace {

constexpr OtherLearner kOthers[] = {
    {.name = "nadaraya-watson",
     .title = "Softmax attention, the Nadaraya-Watson estimator",
     .source = "Sun et al. 2024, section 2.6, theorem 2",
     .model = "sum_s kappa(q, k_s) v_s / sum_s kappa(q, k_s), kappa(q, k) = exp(<q, k> / sqrt(dim))",
     .loss = "none: the weights are the training set itself",
     .optimizer = "none: to learn is to keep k and v of a token",
     .policy = "online, a token is kept and then read",
     .form =
         "attention: all tokens at once, each reads itself and those before it; token by token a cache of keys and values",
     .why_no_form =
         "there are no weights of a fixed size that a gradient step changes, and each form is a way to make such steps",
     .why_no_system = "it has no inner loop: it keeps every example"},
    {.name = kEndToEnd,
     .title = "TTT-E2E, a whole model that goes on training",
     .source = "Tandon et al. 2025",
     .model = "the last blocks of a transformer with a sliding window, through MLPs of their own",
     .loss = "cross-entropy of the next token, that of the model",
     .optimizer = "SGD, the gradient of a sequence clipped",
     .policy = "chunks of mini_batch_size tokens, a step per chunk, read before write",
     .form =
         "chunk after chunk, as a scan of the whole model: a chunk is read, and the gradient of its loss is derived",
     .why_no_form =
         "the loss is that of the model's last layer and not of one layer's k and v, and a chunk is read with keys and values that "
         "earlier weights made: each form is of the inner loop of one layer",
     .why_no_system = "it is no layer: the whole model learns"},
};

}  // namespace

std::span<const OtherLearner> other_learners() { return kOthers; }

const OtherLearner* find_other_learner(std::string_view name) {
  const auto at = std::ranges::find(kOthers, name, &OtherLearner::name);
  return at == std::end(kOthers) ? nullptr : at;
}

std::vector<std::string> system_names() {
  std::vector<std::string> out;
  for (const ttt::System& s : ttt::systems()) out.push_back(s.name);
  return out;
}

CLI::Validator system_name() {
  const std::vector<std::string> names = system_names();
  return {[names](std::string& name) -> std::string {
            if (std::ranges::find(names, name) != names.end()) return "";
            if (const OtherLearner* other = find_other_learner(name))
              return fmt::format(
                  "of {} there is no inner loop of a layer to look at: {}; see learners explain {}", name,
                  other->why_no_system, name);
            return fmt::format("{} not in {{{}}}", name, fmt::join(names, ","));
          },
          fmt::format("{{{}}}", fmt::join(names, ","))};
}

}  // namespace nestgrad
