// Runs a scan: step after step, as its table says (engine/plan/step_table.h), or by the kernel of a backend.
#include <algorithm>
#include <cstring>

#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "engine/plan/backend.h"
#include "engine/plan/program.h"

namespace nestgrad {

namespace {

// Stretches of so many steps each, the last one of what is left.
int stretches(const ScanStep& scan, int length) {
  return scan.table.steps == 0 ? 0 : (scan.table.steps - 1) / length + 1;
}

// Which stretch in the scan's direction has the times of this segment, or the other way round.
int turned(const ScanStep& scan, int length, int i) {
  return scan.table.reverse ? stretches(scan, length) - 1 - i : i;
}

// Stretch i in the scan's direction.
Stretch stretch_of(const ScanStep& scan, int length, int i, bool store) {
  const int begin = turned(scan, length, i) * length;
  const int end = begin + std::min(length, scan.table.steps - begin);
  const bool is_last = i + 1 == stretches(scan, length);
  return {.first = scan.table.reverse ? end - 1 : begin,
          .count = end - begin,
          .from_copy = i == 0 ? -1 : (i - 1) % scan.copies,
          .to_copy = is_last || !store ? -1 : i % scan.copies,
          .last = is_last && store,
          .store = store};
}

// One slice of a scan, run by one worker.
class SliceRun {
 public:
  SliceRun(ScanStep& scan, Program& program, const Frame& frame, int worker, int slice)
      : scan_(scan),
        program_(program),
        frame_(frame),
        worker_(worker),
        slice_(slice),
        state_(scan.workers[uz(worker)]),
        table_(scan.table.view()) {
    for (std::size_t b = 0; b < state_.bases.size(); ++b) {
      const StepTable::Base& base = scan.table.bases[b];
      state_.bases[b] = resolve(base.place, program, frame) + uz(worker) * base.per_worker;
    }
  }

  // All steps, in the scan's direction.
  void forward() {
    const int length = scan_.every ? scan_.every : scan_.table.steps;
    for (int i = 0; i < stretches(scan_, length); ++i) run(stretch_of(scan_, length, i, true));
  }

 private:
  void run(const Stretch& s) {
    for (std::size_t k = 0; k < state_.carry_in.size(); ++k) {
      const StepCarry& c = scan_.table.carries[k];
      if (c.in_place) {
        std::byte* const stays = addresses_.stays(c, s);
        if (addresses_.begins_with_zeros(c, s)) std::memset(stays, 0, uz(c.part.bytes));
        else if (std::byte* const begin = addresses_.begin(c, s); begin != stays)
          copy(begin, stays, c.part.bytes);
        state_.carry_in[k] = stays;
        continue;
      }
      std::byte* begin = addresses_.begin(c, s);
      if (addresses_.begins_with_zeros(c, s)) std::memset(begin, 0, uz(c.part.bytes));
      if (addresses_.keeps(c, s)) copy(begin, addresses_.at(table_.stack[c.stack], s.first), c.part.bytes);
      state_.carry_in[k] = begin;
    }
    for (int i = 0; i < s.count; ++i) step(s, i, table_.reverse ? s.first - i : s.first + i);
    state_.slice = slice_, state_.segment = scan_.every ? s.first / scan_.every : -1;
  }

  // What has a window in a scan that this one reads is to be of the segment with this time.
  void hold(ScanStep& maker, int time) const {
    const ScanStep::Worker& held = maker.workers[uz(worker_)];
    const int segment = time / maker.every;
    if (held.slice == slice_ && held.segment == segment) return;
    SliceRun(maker, program_, frame_, worker_, slice_)
        .run(stretch_of(maker, maker.every, turned(maker, maker.every, segment), false));
  }

  void step(const Stretch& s, int i, int time) {
    for (int maker : scan_.makers) hold(*program_.code[uz(maker)].scan, time);
    std::byte** slot = state_.externals.data();
    for (std::byte* in : state_.carry_in) *slot++ = in;
    // What has no window is one stride further than at the step before.
    const std::int64_t strides = table_.reverse ? -1 : 1;
    for (const StepValue& x : scan_.table.xs) {
      *slot = i == 0 || x.window ? addresses_.at(x, time) : *slot + strides * x.stride;
      ++slot;
    }
    if (i == 0)
      for (const StepValue& c : scan_.table.constants) *slot++ = addresses_.at(c, time);
    else slot += scan_.table.constants.size();
    std::byte** const next = slot;
    for (std::size_t k = 0; k < state_.carry_in.size(); ++k) {
      const StepCarry& c = scan_.table.carries[k];
      *slot++ = c.in_place ? state_.carry_in[k] : addresses_.next(c, s, i, time);
    }
    for (const StepValue& stack : scan_.table.stacks) {
      if (stack.of_carry) continue;
      if (i == 0 || stack.window) *slot = addresses_.written(stack, s, time);
      else if (addresses_.is_stored(stack, s)) *slot += strides * stack.stride;
      ++slot;
    }
    execute(state_.body, {state_.bases[0] + scan_.body_arena, state_.externals.data(), frame_.backend,
                          frame_.recorder, time, slice_, frame_.recomputed || !s.store});
    std::copy_n(next, state_.carry_in.size(), state_.carry_in.begin());
  }

  void copy(const std::byte* from, std::byte* to, std::int64_t bytes) const {
    if (frame_.backend) frame_.backend->copy(from, to, uz(bytes));
    else std::memcpy(to, from, uz(bytes));
  }

  struct BaseOf {
    std::byte* const* bases;
    std::byte* operator()(int number) const { return bases[number]; }
  };

  ScanStep& scan_;
  Program& program_;
  const Frame& frame_;
  int worker_, slice_;
  ScanStep::Worker& state_;
  StepTableView table_;
  StepAddresses<BaseOf> addresses_{table_, slice_, BaseOf{state_.bases.data()}};
};

template <class T>
void add_up(const std::byte* terms, std::size_t count, std::byte* sum) {
  const T* x = reinterpret_cast<const T*>(terms);
  T* y = reinterpret_cast<T*>(sum);
  for (std::size_t i = 0; i < count; ++i) y[i] += x[i];
}

// Last values of which the slices have terms: added up in the order of the slices.
void finish_sums(const StepTable& table, const Program& program, const Frame& frame) {
  const auto base = [&](int number) { return resolve(table.bases[uz(number)].place, program, frame); };
  for (const StepCarry& c : table.carries) {
    if (c.terms < 0) continue;
    const std::size_t bytes = uz(c.part.bytes), count = bytes / size_of(c.dtype);
    for (std::size_t s = 0; s < uz(table.slices); ++s) {
      const std::byte* term = base(c.terms) + s * bytes;
      std::byte* sum = base(c.final_value) + table.offsets[uz(c.part.at) + s];
      if (table.owners[uz(c.part.at) + s]) std::memcpy(sum, term, bytes);
      else if (c.dtype == DType::f32) add_up<float>(term, count, sum);
      else if (c.dtype == DType::f64) add_up<double>(term, count, sum);
      else add_up<std::int32_t>(term, count, sum);
    }
  }
}

// A scan whose steps a backend has as one kernel, which runs once for each segment.
class KernelRun {
 public:
  KernelRun(ScanStep& scan, Program& program, const Frame& frame)
      : scan_(scan), program_(program), frame_(frame) {
    length_ = scan.every;
    for (int m : scan.makers) length_ = maker(m).every;
    if (length_ == 0) length_ = scan.table.steps;
  }

  void forward() {
    for (int i = 0; i < stretches(scan_, length_); ++i) queue(i, true);
  }

 private:
  ScanStep& maker(int instruction) const { return *program_.code[uz(instruction)].scan; }

  // What has a window is to be of this segment.
  void hold(int segment) {
    if (scan_.kernel_segment != segment) queue(turned(scan_, length_, segment), false);
  }

  void queue(int i, bool store) {
    const int segment = turned(scan_, length_, i);
    for (int m : scan_.makers) KernelRun(maker(m), program_, frame_).hold(segment);
    std::vector<std::byte*> bases;
    for (const StepTable::Base& base : scan_.table.bases)
      bases.push_back(resolve(base.place, program_, frame_));
    scan_.kernel->run(bases.data(), stretch_of(scan_, length_, i, store));
    scan_.kernel_segment = segment;
  }

  ScanStep& scan_;
  Program& program_;
  const Frame& frame_;
  int length_ = 0;
};

}  // namespace

void run_scan(ScanStep& scan, Program& program, const Frame& frame) {
  if (scan.kernel) return KernelRun(scan, program, frame).forward();
  // What a worker recomputed in an earlier run is of other numbers, and this run may give it nothing to do.
  for (ScanStep::Worker& w : scan.workers) w.slice = w.segment = -1;
  if (scan.on_demand) return;
  const auto slice = [&](int part, int worker) { SliceRun(scan, program, frame, worker, part).forward(); };
  const auto workers = static_cast<int>(scan.workers.size());
  if (frame.recorder)
    for (int part = 0; part < scan.table.slices; ++part) slice(part, part % workers);
  else in_parallel(scan.table.slices, workers, std::ref(slice));
  finish_sums(scan.table, program, frame);
}

}  // namespace nestgrad
