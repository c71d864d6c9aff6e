#!/usr/bin/env bash
# scripts/gpu_check.sh refuses a wrong call before anything of a run before it goes, and does not pass what did not run.
#   gpu_check_call.sh ROOT
set -euo pipefail
root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/scripts" "$folder/bin" "$folder/tests" "$folder/out"
cp "$root/scripts/gpu_check.sh" "$folder/scripts/"
printf '#!/bin/sh\necho on cuda:0\necho "test cases: ${CASES:-3} |"\n' >"$folder/bin/nestgrad_gpu_tests"
chmod +x "$folder/bin/nestgrad_gpu_tests"
touch "$folder"/{tests,out}/kept.log
# EXIT CODE, a part of what is said, then the call.
call() {
  local code=$1 part=$2 said is=0
  shift 2
  said=$(BIN=$folder/bin PATH=/usr/bin:/bin "$folder/scripts/gpu_check.sh" "$@" 2>&1) || is=$?
  [[ $is -eq $code && $said == *"$part"* ]] || { echo "gpu_check.sh $*: $is, expected $code with '$part':"; echo "$said"; exit 1; }
}
call 2 "stands before the parts" tests training
call 2 "there is no part 'test'" "$folder/out" test
PYTHON=no-python call 2 "which does not run" "$folder/out" tests
[[ -e $folder/tests/kept.log && -e $folder/out/kept.log ]] || { echo "a call that was refused removed something"; exit 1; }
call 0 "all passed" "$folder/out" tests
[[ -s $folder/out/gpu-report.json && ! -e $folder/out/kept.log ]] || { echo "there is no report, or one of the run before"; exit 1; }
CASES=' 0' call 1 "device failed (no case ran)" "$folder/out" tests
if [[ ! -x /usr/bin/compute-sanitizer ]]; then call 1 "memcheck failed" "$folder/out" sanitizers; fi
