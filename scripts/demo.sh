#!/usr/bin/env bash
# From a fresh checkout to a trained model and its report in runs/demo. Arguments go on to train_lm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

train_lm_flags=(--out runs/demo)

# phase NAME COMMAND...: runs the command, then says how long it took.
phase() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || { echo "== $name failed after $((SECONDS - start)) s" >&2; exit 1; }
  echo "== $name: $((SECONDS - start)) s"
}

phase setup scripts/setup.sh
phase configure cmake --preset release
phase build cmake --build --preset release --target train_lm
phase "train_lm, results in runs/demo" build/release/bin/train_lm "${train_lm_flags[@]}" "$@"
