#include "ttt/forms/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "ttt/forms/chunk_parallel.h"
#include "ttt/forms/primal.h"
#include "ttt/forms/wy.h"

namespace nestgrad::ttt {

namespace {

constexpr std::int64_t kFewTokens = 8;  // of a chunk

constexpr std::pair<FormChoice, std::string_view> kNames[] = {{FormChoice::automatic, "automatic"},
                                                              {FormChoice::primal, "primal"},
                                                              {FormChoice::dual, "dual"},
                                                              {FormChoice::parallel, "parallel"},
                                                              {FormChoice::wy, "wy"},
                                                              {FormChoice::chunk_parallel, "chunk-parallel"}};

template <class F>
std::unique_ptr<Form> make(const DerivedLearner& learner, const Weights& first) {
  return std::make_unique<F>(learner, first);
}

// When a form is possible but not worth it (measured on a CPU: docs/performance.md). With a step per token,
// forms that take more tokens at once do less work. With a step per chunk they do the same work on weights
// that have left the cache: parallel pays for chunks of a few tokens, chunk-parallel where one member leaves
// threads without work.
bool has_large_chunks(const DerivedLearner& d) { return d.policy().chunk > kFewTokens; }
bool has_members_to_share_or_parallel(const DerivedLearner& d) {
  return d.members() > 1 || why_impossible(row_of(FormChoice::parallel, d.policy().update), d).empty();
}

}  // namespace

void require_meaning(const DerivedLearner& d, FormChoice wanted, std::int64_t of_chunk) {
  if (wanted != FormChoice::primal && !d.has(Property::separate_members))
    throw FormError(d.why_not(Property::separate_members));
  // In a chunk of one token there is no other, and the primal form is given one chunk at a time.
  const bool alone = wanted == FormChoice::primal && of_chunk == 1;
  if (!d.per_chunk() && !alone && !d.has(Property::separate_tokens))
    throw FormError(d.why_not(Property::separate_tokens));
  d.require_one_text();
  if (!d.per_chunk() && d.policy().chunk != 1 && d.optimizer().moves_gradient_point_by_token())
    throw ConfigError(
        "[policy] the optimiser moves the point where the gradient is taken by each token's own gate, so the "
        "gradient must be taken token by token: use chunk = 1, or a step per chunk, which takes the gate's mean");
}

std::string_view name(FormChoice form) {
  for (const auto& [choice, name] : kNames)
    if (choice == form) return name;
  return "?";
}

FormChoice form_named(std::string_view wanted) {
  for (const auto& [choice, name] : kNames)
    if (name == wanted) return choice;
  throw ConfigError(
      fmt::format("[form] there is no form '{}'; there are {}", wanted, fmt::join(form_names(), ", ")));
}

std::vector<std::string> form_names() {
  std::vector<std::string> out;
  for (const auto& [choice, name] : kNames) out.emplace_back(name);
  return out;
}

// Of each Update, the first row is taken whose needs are met and that is not slower. parallel is DualForm
// over blocks of many chunks.
const std::vector<FormRow>& form_rows() {
  using enum Property;
  using Update = Policy::Update;
  static const auto& rows = *new std::vector<FormRow>{
      {FormChoice::parallel,
       Update::per_token,
       "linear attention: no factor of a gradient depends on a learning weight and the step is linear, so "
       "blocks of any length are worked on at once",
       {factored_uses, constant_factors, linear_step, no_position, uncut_meta, one_document},
       BlockSize::any,
       nullptr,
       make<DualForm>},
      {FormChoice::wy,
       Update::per_token,
       "the gradients of a block solve one triangular system (WY form): each depends on the weight linearly, "
       "through one use",
       {factored_uses, linear_step, online, affine_use, no_position, full_meta, one_document},
       BlockSize::any,
       nullptr,
       make<WyForm>},
      {FormChoice::dual,
       Update::per_token,
       "recurrent, chunk after chunk; inside a chunk gradients are outer products and the weights they give "
       "are applied as masked attention",
       {factored_uses, linear_step},
       BlockSize::one_chunk,
       nullptr,
       make<DualForm>},
      {FormChoice::primal,
       Update::per_token,
       "recurrent; the weights of every token are materialised",
       {},
       BlockSize::one_chunk,
       nullptr,
       make<PrimalForm>},
      {FormChoice::parallel,
       Update::per_chunk,
       "plain linear attention with a mask of chunks: no factor of a gradient depends on a learning weight "
       "and the step is linear, so all tokens are worked on at once",
       {separate_tokens, factored_uses, constant_factors, linear_step, one_step, uncut_meta, several_chunks,
        one_document},
       BlockSize::whole_chunks,
       has_large_chunks,
       make<DualForm>},
      {FormChoice::chunk_parallel,
       Update::per_chunk,
       "all chunks at once: no factor of a gradient depends on a learning weight, so what the optimiser makes "
       "of the chunks' gradients is computed for all of them and the weights are a running sum",
       {separate_tokens, factored_uses, constant_factors, affine_step, one_step, uncut_meta, several_chunks,
        one_document},
       BlockSize::all_chunks,
       has_members_to_share_or_parallel,
       make<ChunkParallelForm>},
      {FormChoice::dual,
       Update::per_chunk,
       "recurrent, chunk after chunk; each chunk's gradient from its factors",
       {separate_tokens, factored_uses},
       BlockSize::one_chunk,
       nullptr,
       make<FactoredChunkForm>},
      {FormChoice::primal,
       Update::per_chunk,
       "recurrent, chunk after chunk; gradients taken whole",
       {},
       BlockSize::one_chunk,
       nullptr,
       make<PerChunkForm>}};
  return rows;
}

const FormRow& row_of(FormChoice form, Policy::Update update) {
  for (const FormRow& row : form_rows())
    if (row.form == form && row.update == update) return row;
  const bool per_chunk = update == Policy::Update::per_chunk;
  throw FormError(fmt::format("[form] {} is for a step per {}; this policy makes one per {}", name(form),
                              per_chunk ? "token" : "chunk", per_chunk ? "chunk" : "token"));
}

std::string why_impossible(const FormRow& row, const DerivedLearner& d) {
  const std::string why = d.why_not(row.needs);
  return why.empty() && row.block != BlockSize::one_chunk ? d.why_chunks_meet() : why;
}

FormPlan choose_form(const DerivedLearner& d, FormChoice wanted) {
  require_meaning(d, wanted, std::min(d.chunk(), d.time()));
  FormPlan plan;
  if (wanted != FormChoice::automatic) {
    const FormRow& row = row_of(wanted, d.policy().update);
    plan.form = row.form;
    if (const std::string why = why_impossible(row, d); !why.empty())
      throw FormError(fmt::format("[form] {} is impossible: {}", name(wanted), why));
    return plan;
  }
  for (const FormRow& row : form_rows()) {
    if (row.update != d.policy().update) continue;
    if (const std::string why = why_impossible(row, d); !why.empty()) {
      plan.refused.push_back({row.form, why});
    } else if (row.slower && row.slower(d)) {
      plan.slower.push_back(row.form);
    } else {
      plan.form = row.form;
      break;
    }
  }
  return plan;
}

}  // namespace nestgrad::ttt
