#!/usr/bin/env bash
# Are the digests of tests/bits the same on another family of processors? Builds the program `bits` for it, without CMake, and runs it
# under qemu-user.
#   scripts/bits_elsewhere.sh arm64|riscv64 [FOLDER]     objects go there (default: build/bits_FAMILY); a second call builds what changed
# Without the compiler and the emulator it says SKIPPED; scripts/setup.sh --cross installs both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  arm64) triple=aarch64-linux-gnu emulator=qemu-aarch64 isa=neon ;;
  riscv64) triple=riscv64-linux-gnu emulator=qemu-riscv64 isa=scalar ;;
  *)
    echo "bits_elsewhere: error: say for which family: arm64 or riscv64" >&2
    exit 2
    ;;
esac
out=${2:-build/bits_$1}
compiler=$triple-g++
if ! command -v $compiler >/dev/null || ! command -v $emulator >/dev/null; then
  echo "SKIPPED: there is no compiler or emulator for $1; install g++-$triple and qemu-user"
  exit 0
fi

# What `bits` does not need stays out, above all what needs libraries that are here for this machine's processor alone.
unneeded=" engine/io/png.cpp engine/io/idx.cpp engine/io/npy.cpp engine/io/flax_stream.cpp engine/look/chrome_trace.cpp
  models/images/labelled_images.cpp models/images/invented.cpp models/images/turned.cpp
  models/adaptation.cpp models/check_reading.cpp models/checkpoint.cpp models/decoder.cpp models/metrics.cpp models/published.cpp
  models/random_reading.cpp
  models/sample.cpp models/state_program.cpp models/streams.cpp models/tokenizer.cpp
  ttt/conformance.cpp ttt/effective_attention.cpp ttt/explain.cpp ttt/policy_text.cpp ttt/reference.cpp ttt/reference_formulas.cpp
  ttt/reference_program.cpp ttt/reference_states.cpp ttt/reference_views.cpp ttt/verification.cpp ttt/vision.cpp "
shopt -s nullglob
sources=()                  # compiled each by itself
declare -A together=()      # by folder: what is compiled as one, a line each
for source in engine/*/*.cpp ops/*.cpp autograd/*.cpp ttt/*.cpp ttt/{forms,learners}/*.cpp models/*.cpp models/images/*.cpp \
  cuda/no_cuda.cpp tests/bits/bits.cpp; do
  if [[ $unneeded =~ [[:space:]]"$source"[[:space:]] ]]; then continue; fi
  if grep -qxF "$source" cmake/apart.txt; then
    sources+=("$source")
  else
    together[$(dirname "$source")]+="#include \"$source\""$'\n'
  fi
done

# FILE: what is read, unless the file has it already and may stay as old as it is.
keep() {
  cat >"$1.new"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# What CMake makes for the library.
mkdir -p "$out"
cmake "-DNESTGRAD_NATIVE_SOURCE=$(realpath "$out")/native_headers.cpp" -P cmake/NestgradNative.cmake
sources+=("$out/native_headers.cpp")
mkdir -p "$out/together"
for folder in "${!together[@]}"; do
  file=$out/together/${folder//\//_}.cpp
  keep "$file" <<<"${together[$folder]}"
  sources+=("$file")
done

# Libraries of headers alone, apart from those of this machine's processor; fmt's functions, which are not, once.
mkdir -p "$out/include"
for header in fmt nlohmann eigen3; do ln -sfn "/usr/include/$header" "$out/include/$header"; done
printf '#define FMT_HEADER_ONLY\n#include <fmt/format.h>\n' | keep "$out/fmt.cpp"
# What most sources include, precompiled.
{ printf '#include <%s>\n' fmt/format.h algorithm cmath functional map memory optional string vector && echo '#include "ops/ops.h"'; } |
  keep "$out/common.h"

{
  echo "builddir = $out"
  echo "compiler = $compiler -std=c++20 -O1 -ffp-contract=off -Wno-psabi -I. -I$out/include -I$out/include/eigen3"
  echo "rule compile"
  echo "  command = \$compiler \$flags -MMD -MF \$out.d -c \$in -o \$out"
  echo "  depfile = \$out.d"
  echo "  deps = gcc"
  echo "rule precompile"
  echo "  command = \$compiler -x c++-header \$in -MMD -MF \$out.d -o \$out"
  echo "  depfile = \$out.d"
  echo "  deps = gcc"
  echo "rule link"
  echo "  command = $compiler \$in -o \$out -pthread"
  echo "build $out/common.h.gch: precompile $out/common.h"
  objects=("$out/fmt.o")
  echo "build $out/fmt.o: compile $out/fmt.cpp"
  echo "  flags = -fkeep-inline-functions"
  for source in "${sources[@]}"; do
    object=$out/objects/${source%.cpp}.o
    objects+=("$object")
    echo "build $object: compile $source | $out/common.h.gch"
    echo "  flags = -include $out/common.h"
  done
  for source in ops/kernels/*.cpp; do
    object=$out/kernels/$(basename "${source%.cpp}").o
    objects+=("$object")
    echo "build $object: compile $source"
    echo "  flags = -DNESTGRAD_ISA=$isa -fno-math-errno"
  done
  echo "build $out/bits: link ${objects[*]}"
} >"$out/build.ninja"
ninja -j "$(nproc)" -f "$out/build.ninja" "$out/bits" >"$out/log" || { tail -n 30 "$out/log"; exit 1; }

NESTGRAD_THREADS=1 $emulator -L /usr/$triple "$out/bits" --check tests/bits/digests.txt
