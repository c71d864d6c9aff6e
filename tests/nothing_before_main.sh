#!/usr/bin/env bash
# Nothing of the library runs before main: then it can be used by static objects of a program, in whatever order they are made.
#   nothing_before_main.sh NM ARCHIVE
set -euo pipefail
nm=$1 archive=$2
objects=$("$nm" "$archive" 2>/dev/null | grep -c '\.o:$' || true)
# By g++ and clang++; .cold: the part of one that is run seldom.
early=$("$nm" --print-file-name "$archive" 2>/dev/null | grep -E '_GLOBAL__(sub_)?I_' | grep -v '\.cold$' || true)
echo "$objects objects looked at"
if [[ -n $early ]]; then
  echo "these run code to make a global: make it a constant, or a static inside of a function"
  echo "$early"
fi
[[ $objects -gt 0 && -z $early ]]
