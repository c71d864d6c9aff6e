#!/usr/bin/env bash
# From a fresh checkout to a trained model and its report, in runs/demo (or runs/demo-2, .. if that exists). Arguments
# go on to train_lm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=runs/demo
for ((i = 2; ; ++i)); do
  [ -e "$out" ] || break
  out=runs/demo-$i
done
train_lm_flags=(--backbone mamba --steps 2000)

source scripts/phase.sh

phase setup scripts/setup.sh
phase configure cmake --preset release
phase build cmake --build --preset release --target train_lm
phase "train_lm, results in $out" build/release/bin/train_lm "${train_lm_flags[@]}" --out "$out" "$@"
