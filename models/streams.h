// Streams: sequences that are read side by side, each with fast weights of its own, that begin, stop and go on at times
// of their own: what a server of a model that learns while it reads is made of. Together they read the outer weights
// once for all, and share the threads.
//
//   Streams streams(config, params, DType::f32);
//   const Streams::Id a = streams.join(), b = streams.join();
//   Array logits = streams.step({72, 101});       // a reads 72, b reads 101: [2, vocab]
//   const Stopped stopped = streams.leave(b);     // b's weights, to go on with: streams.join(stopped)
//   logits = streams.step({105});                 // a alone
//
// A stream's numbers are, bit for bit, those of a Decoder that reads it alone, whoever else is there. One thread at a
// time may use an object of this class.
#pragma once

#include "models/decoder.h"

namespace nestgrad {

// A stream that has left: what it carries, as Decoder::state() of one sequence has it, and how many tokens it has read.
struct Stopped {
  StateDict state;
  std::int64_t position = 0;
  std::string model =
      {};  // which model and weights it has read with; empty: unknown, as in files of earlier versions

  void save(const std::string& path) const;      // safetensors, written atomically
  static Stopped load(const std::string& path);  // IoError for what is no such file
};

class Streams {
 public:
  using Id = std::int64_t;  // never given twice

  // params must fit the configuration (ConfigError). capacity: most tokens that a stream of an attention model reads.
  Streams(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t capacity = 0,
          ttt::FormChoice form = ttt::FormChoice::automatic);
  // Of any model that a Decoder takes. ConfigError for one with a state that sequences share (its first axis must be the
  // batch's), or in which what one sequence reads changes what another is answered.
  Streams(const LogitsFn& model, StateDict params, DType dtype);
  ~Streams();

  Id join();                        // a stream before its first token
  Id join(const Stopped& stopped);  // one that goes on. ConfigError if it does not fit the model
  Stopped leave(Id stream);         // ConfigError for a stream that is not there
  Stopped look(Id stream) const;    // the same of one that stays

  // In the order in which they joined.
  const std::vector<Id>& ids() const { return ids_; }
  std::int64_t position(Id stream) const;  // tokens that it has read

  // Each stream reads one token, tokens[i] for ids()[i] -> logits for the next one, [streams, vocab], on the CPU.
  // ShapeError for another number of tokens, ValueError for one outside of the vocabulary, ConfigError for a stream
  // whose attention cache is full: nothing has then been read. After any other error, of an op of the model, some have
  // read and some have not, and every later call is a ConfigError, but for ids().
  Array step(const std::vector<std::int32_t>& tokens);

 private:
  struct Row;    // one stream
  struct Group;  // streams that one thread reads together
  void trace(const LogitsFn& model);
  void require_whole() const;  // ConfigError after a step that failed part way
  std::pair<std::size_t, std::size_t> place_of(Id stream) const;  // its group, and its row there
  StateProgram& program(Group& group, std::size_t rows, std::int64_t learns);
  Id enter(std::int64_t position, std::vector<Array> states);
  const std::string& fingerprint() const;
  void make_groups();  // as many as there are to be
  Group& smallest_group() const;
  void level();  // so that the threads have as much to do
  void check(const std::vector<std::int32_t>& tokens) const;
  void learn(Group& group, std::int64_t chunk, const Array& tokens);

  LogitsFn model_;
  std::string config_;  // of the model, where there is one
  mutable std::string fingerprint_;
  FixedParameters params_;
  DType dtype_;
  std::int64_t capacity_ = 0;    // 0: no bound
  CarriedStates alone_, apart_;  // of one sequence: as a Decoder carries them, as they are carried here
  std::int64_t vocab_size_ = 0;
  Device device_;
  std::vector<Id> ids_;
  Id next_ = 0;
  std::vector<std::unique_ptr<Group>> groups_;
  bool is_broken_ = false;  // a step failed part way
};

}  // namespace nestgrad
