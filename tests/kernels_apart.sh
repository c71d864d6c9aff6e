#!/usr/bin/env bash
# Kernels are compiled several times, for different processors. Of symbols of one name the linker keeps one, whichever, so
# whatever these objects define must be in the namespace of their instruction set.
#   kernels_apart.sh NM FOLDER    FOLDER: one folder of objects for each instruction set
set -euo pipefail
nm=$1 folder=$2
looked=0 failed=0
for set in "$folder"/*/; do
  name=$(basename "$set") own=0
  for object in "$set"*.o; do
    looked=$((looked + 1))
    # All that others can see. A template of another namespace with a type of this one among its arguments is only its own.
    symbols=$("$nm" --defined-only --extern-only --demangle "$object")
    own=$((own + $(grep -c "nestgrad::$name::" <<<"$symbols" || true)))
    foreign=$(sed -E 's/^[0-9a-f]* *[A-Za-z] //' <<<"$symbols" | grep -vE "^$|nestgrad::$name::|^DW\.ref\." || true)
    if [[ -n $foreign ]]; then
      echo "$object defines:"
      echo "$foreign"
      failed=1
    fi
  done
  [[ $own -gt 0 ]] || { echo "nothing of nestgrad::$name is seen in $set"; failed=1; }
done
echo "$looked objects looked at"
[[ $looked -gt 0 && $failed -eq 0 ]]
