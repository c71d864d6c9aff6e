// The table of forms, and the choice among them. A row is all that is said of a form: explain(), the choice,
// the inner loop, the conformance checks and the command line read it. To add a form, add its row.
#pragma once

#include "ttt/derived_learner.h"
#include "ttt/forms/form.h"

namespace nestgrad::ttt {

// Tokens that a form is given at once.
enum class BlockSize : std::uint8_t {
  one_chunk,
  any,           // as many as asked for (InnerLoopOptions::block): borders of chunks do not matter
  whole_chunks,  // the same, in whole chunks
  all_chunks,    // all whole chunks of the sequence
};

struct FormRow {
  FormChoice form;
  Policy::Update update;        // a step per token and a step per chunk have rows of their own
  std::string_view sentence;    // what it does
  std::vector<Property> needs;  // in the order in which failures are told
  BlockSize block;
  bool (*slower)(const DerivedLearner&);  // possible, but not worth it at this shape; null: never
  std::unique_ptr<Form> (*make)(const DerivedLearner&, const Weights& first);  // see Form
};

// The rows, for each Policy::Update those that do most at once first.
const std::vector<FormRow>& form_rows();
// Why a form cannot run this learner; the kind of step that its row is for is not looked at. Empty if it can.
std::string why_impossible(const FormRow& row, const DerivedLearner& learner);
// FormError if the form is not for this kind of step.
const FormRow& row_of(FormChoice form, Policy::Update update);
// All of FormChoice, automatic first.
std::vector<std::string> form_names();

// A form, and why not the others that do more at once.
struct FormPlan {
  FormChoice form = FormChoice::primal;
  struct Refusal {
    FormChoice form;
    std::string why;
  };
  std::vector<Refusal> refused;    // impossible
  std::vector<FormChoice> slower;  // possible, and slower at this shape; they run when asked for
};

// FormError or ConfigError, with the reason, where no form gives what the policy says: a step per token of a learner that lets tokens
// meet has no loss of one token, unless chunks have one. Members that meet are learnt from in the primal form alone, which has to be
// asked for. of_chunk: tokens that a chunk has.
void require_meaning(const DerivedLearner& learner, FormChoice wanted, std::int64_t of_chunk);

// The form asked for, or the fastest valid one. FormError, with the reason, if the one asked for is
// impossible; as require_meaning() if there is none.
FormPlan choose_form(const DerivedLearner& learner, FormChoice wanted);

}  // namespace nestgrad::ttt
