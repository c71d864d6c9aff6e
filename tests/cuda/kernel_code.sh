#!/usr/bin/env bash
# What nvcc makes of the kernels that are written for scans and clusters: nothing is spilled, no local memory, registers within what
# a block may have; and, where nvdisasm is, the share of multiply-adds in the loops of products of scans.
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
  grep -q '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"$said" ||
    { echo "$said"; exit 1; }
  ((registers <= 255)) || exit 1
  looked=$((looked + 1))
  [[ -n $nvdisasm && $text == *scan* ]] || continue
  # The longest run of instructions between two labels or branches that has multiply-adds: the loop of a product.
  "$nvdisasm" -c "$text.cubin" | awk -v name="$(basename "$text")" '
    /^\.L_|BRA|BAR\.SYNC/ { look(); all = fma = 0; next }
    /\/\*[0-9a-f]*\*\/ / { ++all; fma += /FFMA|DFMA/; local_memory += /LDL|STL/ }
    function look() { if (fma > best) { best = fma; share = fma / all } }
    END {
      look()
      printf "  %d of %.0f instructions of a product are multiply-adds (%.0f %%)\n", best, best / share, 100 * share
      exit local_memory > 0 || share < 0.5
    }' || { echo "less than half of a product is multiply-adds, or something is in local memory"; exit 1; }
done
((looked >= 2)) || { echo "there were no texts"; exit 1; }
