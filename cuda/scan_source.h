// The CUDA C++ text of a scan's kernel: what a person would write for its sizes. Values between its ops stay in shared memory at
// fixed addresses, those inside of a group of elementwise ops in registers; sizes, strides and numbers are constants. It has the
// bits of the kernel that interprets the same scan (cuda/scan.cu), of which it takes the place; what its parts are is in
// cuda/scan_parts.cuh and cuda/scan_steps.cuh.
#pragma once

#include <string>

#include "engine/plan/program.h"

namespace nestgrad::cuda {

struct ScanSource {
  std::string text;  // of kScanFunction, without what it includes; empty: something in the scan has no text
  std::size_t memory_bytes = 0;  // of shared memory that a slice needs, beside the table of its values
};

// Its parameters: where the scan's StepTableView is; Bases; Stretch; where the addresses of the body's literals are.
constexpr const char* kScanFunction = "nestgrad_scan";

// Of a scan in f32, products whose sizes allow it (cuda/product_shape.h) have the precision. most_bytes: of shared memory that a slice
// should need at most; without what makes products faster it needs no more than in the interpreter.
ScanSource scan_source(const ScanStep& scan, Precision precision, std::size_t most_bytes);

}  // namespace nestgrad::cuda
