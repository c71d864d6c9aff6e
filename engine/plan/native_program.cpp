// Which texts a program has, and where their machine code is used.

#include "engine/core/threads.h"
#include "engine/plan/body_source.h"
#include "engine/plan/cluster_source.h"
#include "engine/plan/native.h"
#include "engine/plan/program.h"

namespace nestgrad {

namespace {

// The loops of a cluster until its code is there.
ClusterKernel native_kernel(const ClusterSource& source, ClusterKernel loops) {
  return [loops = std::move(loops), code = native_code(source.text), units = source.units,
          grain = std::max<std::int64_t>(1, kGrain / source.unit_elements)](const std::byte* const* in,
                                                                            std::byte* const* out) {
    const auto run = code->as<CompiledCluster>();
    if (!run) return loops(in, out);
    in_blocks(units, grain, [&](std::int64_t begin, std::int64_t end) { run(in, out, begin, end); });
  };
}

void use_native_bodies(ScanStep& scan);

void use_native_loops(Program& program) {
  for (Instruction& ins : program.code) {
    if (ins.scan) {
      use_native_bodies(*ins.scan);
    } else if (ins.call) {
      const ClusterSource source = cluster_source(*ins.call);
      if (!source.text.empty()) ins.cluster = native_kernel(source, std::move(ins.cluster));
    }
  }
}

void use_native_bodies(ScanStep& scan) {
  const std::string text = body_source(scan.workers[0].body);
  for (ScanStep::Worker& w : scan.workers) {
    if (text.empty()) {
      use_native_loops(w.body);
      continue;
    }
    w.body.native = native_code(text);
    for (const Array& literal : w.body.literals) w.body.literal_data.push_back(literal.data());
    for (Instruction& ins : w.body.code)
      if (ins.scan) use_native_bodies(*ins.scan);
  }
}

}  // namespace

void use_native(Program& program, Compile mode) {
  if (mode == Compile::never) return;
  use_native_loops(program);
  compile_native(mode);
}

}  // namespace nestgrad
