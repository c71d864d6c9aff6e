#!/usr/bin/env bash
# What nvcc makes of the kernels that are written for scans and clusters: nothing is spilled, no local memory, registers within what
# a block may have; and, where nvdisasm is, the share of multiply-adds, or of instructions for tensor cores, in the loops of products of
# scans, and that the code of a step stays where a multiprocessor reads it fast.
#   kernel_code.sh NVCC NESTGRAD_TESTS [NVDISASM]
set -euo pipefail
nvcc=$1 tests=$2 nvdisasm=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
NESTGRAD_KERNEL_TEXTS=$folder "$tests" "--test-case=CUDA: the texts of kernels of the published layers" >/dev/null
looked=0
for text in "$folder"/*.cu; do
  said=$("$nvcc" -std=c++20 -arch=sm_90 --fmad=false -Xptxas -v -cubin "$text" -o "$text.cubin" 2>&1)
  registers=$(grep -o 'Used [0-9]* registers' <<<"$said" | grep -o '[0-9]*')
  echo "$(basename "$text"): $registers registers"
  grep -qE '(^|[^0-9])0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"$said" ||
    { echo "$said"; exit 1; }
  # A multiprocessor has 65,536 registers, and a block of a cluster or a scan runs alone at worst.
  threads=$(grep -oE '__launch_bounds__\([0-9]+' "$text" | grep -oE '[0-9]+$' | sort -n | tail -n 1)
  ((registers * ${threads:-1024} <= 65536)) || { echo "too many registers for a block of ${threads:-1024} threads"; exit 1; }
  looked=$((looked + 1))
  [[ -n $nvdisasm && $text == *scan* ]] || continue
  # The longest run of instructions between two labels or branches that has multiply-adds, or is for tensor cores: the loop of a product.
  # An instruction for tensor cores does what 32 multiply-adds do.
  case $text in *-f32-*) wanted='FFMA|DFMA' least=0.5 ;; *) wanted=HMMA least=0.05 ;; esac
  "$nvdisasm" -c "$text.cubin" | awk -v wanted="$wanted" -v least="$least" '
    /^\.L_|BRA|BAR\.SYNC/ { look(); all = found = 0; next }
    /\/\*[0-9a-f]*\*\/ / { ++all; ++code; found += $0 ~ wanted; local_memory += /LDL|STL/ }
    function look() { if (found > best) { best = found; share = found / all } }
    END {
      look()
      printf "  %d of %.0f instructions of a product are %s (%.0f %%), of %d\n", best, best / share, wanted, 100 * share, code
      exit local_memory > 0 || share < least || code > 8192
    }' || { echo "products have too few of these, something is in local memory, or the code is more than the 128 KB that a multiprocessor keeps"; exit 1; }
done
((looked >= 3)) || { echo "there were no texts"; exit 1; }
