// A campaign: many random cases of one kind, each checked. A case is made of draws, small numbers that say
// which op comes next, how long an axis is, which option is on. The same seed gives the same draws on every
// machine. A case that fails is made smaller: draws are taken away and lowered as long as it still fails; so
// 0 has to stand for the simplest choice everywhere. What is left is printed with the seed and the draws that
// make it again.
#pragma once

#include <functional>
#include <string>

#include "tests/fuzz/draws.h"

namespace nestgrad::fuzz {

// Makes one case from the draws and checks it. A Finding, or any other exception, is a failure.
using Check = std::function<void(Draws&)>;
// Makes one case from the draws, runs it in one way, and says what bits came out: a digest of them, or a word where there are none.
using Outcome = std::function<std::string(Draws&)>;

// The smallest case that was found to fail where `drawn` fails, within `seconds`.
std::vector<std::uint32_t> shrunk(const Check& check, const std::vector<std::uint32_t>& drawn,
                                  double seconds);

// The main() of a campaign's program. It checks cases with seeds FIRST, FIRST
// + 1, ..; see --help. Exit code 1 if a case fails. A case that crashes or
// that does not end within five minutes ends the program with its seed.
// With an `outcome` it has --digests FILE, which checks nothing and writes a line for each case, its seed and its outcome: two such
// files, made under two instruction sets, numbers of threads or compilers, have to be the same.
int run_campaign(int argc, char** argv, const std::string& name, const std::string& what, const Check& check,
                 const Outcome& outcome = {});

}  // namespace nestgrad::fuzz
