// The battery of proofs that nestgrad's own learners pass: all forms agree, the meta-gradient is that of finite
// differences, decoding is the whole sequence, and so on.
#include "forgetful_memory.h"

#include <nestgrad/ttt/conformance.h>

#include <cstdio>

int main() {
  const nestgrad::ttt::ConformanceReport report = nestgrad::ttt::conformance(forgetful_memory());
  std::puts(report.str().c_str());
  return report.passed() ? 0 : 1;
}
