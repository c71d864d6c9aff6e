#!/usr/bin/env bash
# Random cases have the same bits under every instruction set that this processor has, and with any number of threads.
#   tests/fuzz/same_bits.sh PROGRAM CASES INSTRUCTION_SET..
# Exit 1, and the seeds, if some have not: PROGRAM --seed SEED checks such a case, NESTGRAD_ISA=SET PROGRAM --seed SEED --digests FILE
# says what bits it has.
set -euo pipefail

program=$1 cases=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

digests() {  # SET THREADS
  NESTGRAD_ISA=$1 NESTGRAD_THREADS=$2 "$program" --cases "$cases" --digests "$folder/$1.$2" >"$folder/log" 2>&1
}

first=scalar.1
digests scalar 1 || { cat "$folder/log"; exit 1; }
[[ $(wc -l <"$folder/$first") -ge $cases ]] || { echo "not every case has a line"; exit 1; }
different=0 compared=0
for isa in "$@"; do
  for threads in 1 3; do
    [[ $isa.$threads == "$first" ]] && continue
    if ! digests "$isa" "$threads"; then
      grep -q "NESTGRAD_ISA is '$isa'. this processor runs" "$folder/log" && continue
      cat "$folder/log"
      exit 1
    fi
    compared=$((compared + 1))
    cmp -s "$folder/$first" "$folder/$isa.$threads" && continue
    different=1
    echo "cases that $isa with $threads threads computes otherwise than scalar with one, by seed:"
    diff "$folder/$first" "$folder/$isa.$threads" | grep '^>' | head -n 20 || true
  done
done
((compared > 0)) || { echo "nothing was compared"; exit 1; }
echo "$cases cases: the same bits in $((compared + 1)) runs"
exit $different
