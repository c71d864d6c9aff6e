// Stream: where a layer stands in its sequence. The same layer text serves two ways of reading:
//   whole   all tokens of a sequence at once, from its beginning;
//   step    one token, everything that came before being carried in named states.
// A layer asks the stream for what lies outside the rows that it is given. What is learnt at the end of a chunk is a
// program of its own, run by whoever counts the tokens (a Decoder), so that no other token pays for it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "engine/processes/group.h"
#include "ops/ops.h"

namespace nestgrad::ttt {

enum class SliceForm : std::uint8_t;  // ttt/slices.h; {}: the best for the shape

class Stream {
 public:
  enum class Mode : std::uint8_t {
    whole,
    initial,  // traces a step to learn the states and their starting values
    step,
    learn,    // traces what the end of a chunk makes of the states, see learning()
    chained,  // a step whose states are tensors of the same program
  };
  // sequences: how many there are, if each stands at a place of its own; 0: all stand at the same one.
  explicit Stream(Mode mode = Mode::whole, std::int64_t sequences = 0) : mode_(mode), sequences_(sequences) {}
  // Of chunks of so many tokens.
  static Stream learning(std::int64_t chunk, std::int64_t sequences = 0);
  // A step within a program that holds the steps before it: what they carried, or nothing before the first.
  explicit Stream(std::map<std::string, Tensor> before) : mode_(Mode::chained), before_(std::move(before)) {}
  bool stepping() const { return mode_ != Mode::whole; }

  // ---- stepping ----
  // The value carried from the previous token; `initial` before the first.
  Tensor state(const std::string& name, Tensor initial);
  // What the next token shall find. Every state must be set once in each step.
  void carry(const std::string& name, Tensor next);
  // The same of a state that changes only with the last token of each chunk of so many tokens, counted from the
  // beginning of the sequence: then it becomes `next`, made of rows that the chunk has gathered in other states; else
  // it stays. is_last: 1 for that token, else 0, as counter() has its shape. Whoever counts the tokens may have the ends
  // of chunks as programs of their own (learn_outside), traced by learning(): then no other token makes `next`. Undefined
  // is_last: they must be programs of their own.
  void carry_chunk(const std::string& name, Tensor next, std::int64_t chunk, Tensor is_last);
  void learn_outside() { learns_outside_ = true; }
  // The same of a state [.., rows, dim] of which one row changes, that at `place` (as counter() has its shape): it becomes
  // `next`, which has `row` [.., 1, dim] there. Whoever keeps the states may ask for row and place alone
  // (write_rows_outside), and puts the row there: then no other row is copied.
  void carry_row(const std::string& name, Tensor next, Tensor row, Tensor place);
  void write_rows_outside() { rows_outside_ = true; }
  // Whether states are asked for as the last token of a chunk leaves them: what it has gathered is complete.
  bool is_learning() const { return mode_ == Mode::learn; }
  // How tokens are counted: 0, 1, .. end - 1, then on from `again`. Where that is `end` itself there is no token behind,
  // and whoever decodes refuses it.
  static constexpr std::int64_t kForever = 1 << 24;  // the last number that f32 counts to
  struct Count {
    std::int64_t end = kForever, again = kForever;
    bool ends() const { return again == end; }
    std::int64_t after(std::int64_t tokens) const {
      return tokens < end || ends() ? tokens : again + (tokens - end) % (end - again);
    }
  };
  // A count from 0 on as a one-element tensor [1], or where each sequence stands at a place of its own [batch, 1, 1, 1],
  // which broadcasts against [batch, heads, time, dim].
  Tensor counter(const std::string& name, Count count, DType dtype);
  // 0 .. period-1 and around; kForever: it ends there.
  Tensor counter(const std::string& name, std::int64_t period, DType dtype) {
    return counter(name, Count{period, period == kForever ? kForever : 0}, dtype);
  }
  Shape counter_shape() const { return sequences_ > 0 ? Shape{sequences_, 1, 1, 1} : Shape{1}; }
  // The counters that the model asked for, by name.
  const std::map<std::string, Count>& counters() const { return counters_; }
  // The sizes of chunks that carry_chunk() was told of, ascending.
  const std::set<std::int64_t>& chunks() const { return chunks_; }

  // x [batch, time, dim] with the `rows` rows before it: zeros at the beginning of the sequence. ConfigError for packed
  // documents, of which rows may belong to another: there a layer asks for before() and conv().
  Tensor with_history(const std::string& name, Tensor x, std::int64_t rows);
  // The row before each of x [batch, time, dim]; zeros before the first of a sequence or document.
  Tensor before(const std::string& name, Tensor x);
  // conv1d (ops/ops.h) of x and the rows before it: weight [dim, 1, taps], bias [dim].
  Tensor conv(const std::string& name, Tensor x, Tensor weight, Tensor bias);
  // Each token's place in its sequence or document, as rope() takes it. capacity: where a count of tokens ends.
  Tensor positions(const std::string& name, Tensor x, std::int64_t capacity = kForever);

  // ---- packed documents ----
  // Read whole, sequences that each hold documents one after the other. places [batch, time]: of each token in its
  // document, 0, 1, 2, ..; what lies before a place 0 is not there for what follows. align: every document begins at a
  // multiple of so many tokens, as whoever packed them knows; an inner loop whose chunks do not divide it refuses.
  void pack(Tensor places, std::int64_t align);
  bool is_packed() const { return places_.defined(); }
  // As they were given; undefined if nothing is packed. Who packs can then ask whether anyone has looked.
  Tensor places() const { return has_looked_ = true, places_; }
  bool has_looked() const { return has_looked_; }
  std::int64_t alignment() const { return alignment_; }

  // ---- sequences cut in time ----
  // Read whole by the ranks of a group together: each is given a slice of every sequence, one after the other by rank, of the
  // same length, and its places if documents are packed. What stands before a slice, the rank before has: with_history(),
  // before(), conv() and positions() heed it. A layer in which further tokens meet gives each rank all tokens of some of its
  // heads (whole_time) and then its own tokens of all heads again (whole_heads).
  // form: how learners do it (ttt/slices.h).
  void cut(const ProcessGroup& ranks, SliceForm form = {});
  SliceForm slice_form() const { return slice_form_; }
  bool is_cut() const { return heeds_cut_ = true, ranks_.has_value(); }
  bool heeds_cut() const { return heeds_cut_; }  // whether anyone has asked
  const ProcessGroup& ranks() const { return *ranks_; }
  // Of all ranks, where each has so many tokens.
  std::int64_t all_tokens(std::int64_t here) const { return is_cut() ? here * ranks_->size() : here; }
  // A row of numbers for each token of the whole sequence, [time of all, ..] -> those of the tokens here.
  Tensor own_tokens(Tensor of_all) const;
  // [batch, heads, time here, ..] <-> [batch, heads / ranks, time of all, ..]. ConfigError that names `who` if the heads cannot be
  // shared out equally.
  Tensor whole_time(const std::string& who, Tensor x) const;
  Tensor whole_heads(Tensor x) const;
  // [batch, 1, time here, ..] or [batch, time here] -> the same of all tokens, at each rank.
  Tensor of_all_tokens(Tensor x, int time_axis) const;

  struct State {
    std::string name;
    Tensor value;  // initial: starting value; step: input of the function
    Tensor next;
    Tensor row, place;  // write_rows_outside: what is to be put where, `next` being `value`; else undefined
  };
  const std::vector<State>& states() const { return states_; }
  std::map<std::string, Tensor> carried() const;  // what the next step finds, by name

  // ---- looking inside ----
  // Values that a caller asked to see, by name.
  void tap(const std::string& name, Tensor value) { taps_[name] = value; }
  const std::map<std::string, Tensor>& taps() const { return taps_; }
  bool track_inner_loss = false;
  bool tap_inner_loops = false;  // what each inner loop is given and answers, under its layer's name

 private:
  State& find(const std::string& name);
  Tensor preceded(const std::string& name, Tensor x, std::int64_t rows) const;
  Tensor rows_back(const std::string& name, Tensor x, std::int64_t back) const;
  Mode mode_;
  std::int64_t sequences_ = 0, learnt_chunk_ = 0;
  std::set<std::int64_t> chunks_;
  std::map<std::string, Count> counters_;
  bool rows_outside_ = false, learns_outside_ = false;
  Tensor places_;
  std::int64_t alignment_ = 1;
  mutable bool has_looked_ = false;
  std::optional<ProcessGroup> ranks_;
  SliceForm slice_form_{};
  mutable bool heeds_cut_ = false;
  std::vector<State> states_;
  std::map<std::string, Tensor> before_;
  std::map<std::string, Tensor> taps_;
};

}  // namespace nestgrad::ttt
