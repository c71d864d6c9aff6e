#!/usr/bin/env bash
# Everything a change has to pass: all tests of the release build, then the quick ones under sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/phase.sh

phase setup scripts/setup.sh
# The files of each folder together, and for the oldest of the GPUs alone: the same code, in a shorter time.
phase "configure release" cmake --preset release -DNESTGRAD_WARNINGS_AS_ERRORS=ON -DNESTGRAD_UNITY=ON -DNESTGRAD_CUDA_ARCHITECTURES=80
phase "build release" cmake --build --preset release
phase "test release" ctest --preset release
# By clang where it and its sanitizers are: another compiler, whose results have to have the same bits (`bits` is among its tests).
sanitizers=(cmake --preset asan)
if echo 'int main() {}' | clang++ -x c++ -fsanitize=address,undefined - -o /dev/null 2>/dev/null; then
  sanitizers+=(-DCMAKE_CXX_COMPILER=clang++)
fi
phase "configure asan" "${sanitizers[@]}"
phase "build asan" cmake --build --preset asan
phase "test asan (quick)" ctest --preset asan
phases_done
echo "== all passed: $SECONDS s"
