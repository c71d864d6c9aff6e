#!/usr/bin/env bash
# Everything a change has to pass: all tests of the release build, then the quick ones under sanitizers.
#   scripts/test.sh             all of them: about 50 minutes on two processors
#   scripts/test.sh --turn [N]  of those that take long (their list is at the end of tests/CMakeLists.txt) and of the files of
#                               tests under sanitizers a fourth: that of turn N, 1 to 4, chosen by the commit where none is
#                               given (by the changelog where there is no commit)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/phase.sh

wrong_call() { echo "test: error: $1; call it without an argument, or with --turn and a number from 1 to 4 (see its head)" >&2; exit 2; }
turn=""
if [[ ${1:-} == --turn ]]; then
  turn=${2:-$(($({ git rev-parse HEAD 2>/dev/null || cat CHANGELOG.md; } | cksum | cut -d' ' -f1) % 4 + 1))}
  [[ $turn == [1-4] && $# -le 2 ]] || wrong_call "no such turn: ${*:2}"
  echo "== turn $turn of 4: the tests of the other turns are left out"
elif [[ $# -gt 0 ]]; then
  wrong_call "unknown argument '$1'"
fi
others=${turn:+turn-[^$turn]}

phase setup scripts/setup.sh
# The files of each folder together, and for the oldest of the GPUs alone: the same code, in a shorter time.
phase "configure release" cmake --preset release -DNESTGRAD_WARNINGS_AS_ERRORS=ON -DNESTGRAD_UNITY=ON -DNESTGRAD_CUDA_ARCHITECTURES=80
phase "build release" cmake --build --preset release
phase "test release" ctest --preset release ${others:+--label-exclude "$others"}
# By clang where it and its sanitizers are: another compiler, whose results have to have the same bits (`bits` is among its tests).
sanitizers=(cmake --preset asan -DNESTGRAD_TEST_FOURTH="${turn:-0}")
if echo 'int main() {}' | clang++ -x c++ -fsanitize=address,undefined - -o /dev/null 2>/dev/null; then
  sanitizers+=(-DCMAKE_CXX_COMPILER=clang++)
fi
# Kernels that this processor cannot run take a while to compile there.
grep -q avx512f /proc/cpuinfo || sanitizers+=(-DNESTGRAD_AVX512=OFF)
phase "configure asan" "${sanitizers[@]}"
phase "build asan" cmake --build --preset asan
phase "test asan (quick)" ctest --preset asan
phases_done
echo "== all passed: $SECONDS s"
