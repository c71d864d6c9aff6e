#!/usr/bin/env bash
# Are the digests of tests/bits the same when the library is built by clang, and for arm64? Builds the program `bits` for
# each, without CMake, and runs it: under every instruction set that this machine has, and arm64's under qemu-user.
# What `bits` does not need (readers of images, look/, reproduce/, programs/) is read by clang too, so that all of the
# project stays C++ that clang accepts.
#   scripts/bits_elsewhere.sh [FOLDER]     objects go there (default: build/bits); a second call builds what changed
# A compiler or emulator that is missing is said, with what to install; scripts/setup.sh --cross installs both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/bits}
digests=tests/bits/digests.txt
shopt -s nullglob
sources=(engine/{core,look,plan,processes,run}/*.cpp ops/*.cpp autograd/*.cpp ttt/*.cpp ttt/{forms,learners}/*.cpp models/*.cpp
  cuda/no_cuda.cpp tests/bits/bits.cpp)
# What needs libpng and zlib, which are here for this machine's processor alone.
packed=(engine/io/png.cpp engine/io/idx.cpp models/images/labelled_images.cpp)
for source in engine/io/*.cpp models/images/*.cpp; do
  [[ " ${packed[*]} " == *" $source "* ]] || sources+=("$source")
done
read_only=("${packed[@]}" models/vision/*.cpp look/*.cpp look/*/*.cpp reproduce/*.cpp reproduce/*/*.cpp programs/*.cpp)

# What CMake makes for the library.
mkdir -p "$out"
cmake "-DNESTGRAD_NATIVE_SOURCE=$(realpath "$out")/native_headers.cpp" -P cmake/NestgradNative.cmake
sources+=("$out/native_headers.cpp")

# Libraries of headers alone, apart from those of this machine's processor.
mkdir -p "$out/include"
for header in fmt nlohmann eigen3; do ln -sfn "/usr/include/$header" "$out/include/$header"; done
common="-std=c++20 -O1 -ffp-contract=off -Wno-psabi -I. -I$out/include -I$out/include/eigen3 -DFMT_HEADER_ONLY"

# What most sources include, precompiled.
printf '#include <%s>\n' fmt/format.h algorithm cmath functional map memory optional string vector >"$out/common.h"
echo '#include "ops/ops.h"' >>"$out/common.h"

# build NAME COMPILER SET=FLAGS..: one program with the kernels of these instruction sets.
build() {
  local name=$1 compiler=$2 folder=$out/$1 objects=() accepted=() set flags source object
  local precompiled=gch include="-include $folder/common.h"
  [[ $compiler == clang* ]] && precompiled=pch include="-include-pch $folder/common.h.pch"
  shift 2
  mkdir -p "$folder"
  {
    echo "builddir = $folder"
    echo "rule compile"
    echo "  command = $compiler $common \$flags -MMD -MF \$out.d -c \$in -o \$out"
    echo "  depfile = \$out.d"
    echo "  deps = gcc"
    echo "rule precompile"
    echo "  command = cp $out/common.h $folder/common.h && $compiler $common -x c++-header $folder/common.h -MMD -MF \$out.d -o \$out"
    echo "  depfile = \$out.d"
    echo "  deps = gcc"
    echo "build $folder/common.h.$precompiled: precompile"
    echo "rule accept"
    echo "  command = $compiler $common -DNESTGRAD_DEFAULT_DATA='\"\"' $include -fsyntax-only \$in && touch \$out"
    echo "rule link"
    echo "  command = $compiler \$in -o \$out -pthread"
    for source in "${sources[@]}"; do
      object=$folder/${source%.cpp}.o
      objects+=("$object")
      echo "build $object: compile $source | $folder/common.h.$precompiled"
      echo "  flags = $include"
    done
    for set in "$@"; do
      flags=${set#*=} set=${set%%=*}
      for source in ops/kernels/*.cpp; do
        object=$folder/$set/$(basename "${source%.cpp}").o
        objects+=("$object")
        echo "build $object: compile $source"
        echo "  flags = -DNESTGRAD_ISA=$set $flags -fno-math-errno"
      done
    done
    if [[ $compiler == clang* ]]; then
      for source in "${read_only[@]}"; do
        accepted+=("$folder/$source.accepted")
        echo "build $folder/$source.accepted: accept $source | $folder/common.h.$precompiled"
      done
    fi
    echo "build $folder/bits: link ${objects[*]} | ${accepted[*]}"
  } >"$folder/build.ninja"
  ninja -f "$folder/build.ninja" "$folder/bits" >"$folder/log" || { tail -n 30 "$folder/log"; return 1; }
}

failed=0 checked=0
if command -v clang++ >/dev/null; then
  build clang clang++ scalar=-march=x86-64 v3=-march=x86-64-v3 v4=-march=x86-64-v4
  for isa in scalar v3 v4; do
    if [[ $isa == v4 ]] && ! grep -q avx512vl /proc/cpuinfo; then
      echo "v4 was built by clang and not run: this processor has no AVX-512"
      continue
    fi
    checked=$((checked + 1))
    NESTGRAD_ISA=$isa "$out/clang/bits" --check $digests || failed=1
  done
else
  echo "not checked: there is no clang++; install clang"
fi
if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
  build arm64 aarch64-linux-gnu-g++ neon=
  checked=$((checked + 1))
  NESTGRAD_THREADS=1 qemu-aarch64 -L /usr/aarch64-linux-gnu "$out/arm64/bits" --check $digests || failed=1
else
  echo "not checked: there is no compiler or emulator for arm64; install g++-aarch64-linux-gnu and qemu-user"
fi
[[ $checked -gt 0 ]] || echo "SKIPPED: nothing could be built"
exit $failed
