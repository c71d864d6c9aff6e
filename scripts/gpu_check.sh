#!/usr/bin/env bash
# Everything that needs a GPU, in one call of under ten minutes: build, every kernel against the CPU's, golden files,
# compute-sanitizer, a training run beside the CPU's, benchmarks against PyTorch. Needs nvcc, CMake and Ninja, but no
# network: what scripts/gpu_prepare.sh put into deps/ is used if it is there.
#   scripts/gpu_check.sh [FOLDER]    results: FOLDER/gpu-report.json and FOLDER/gpu.md (default: build/gpu/report)
# ARCHITECTURES and PYTHON say for which GPU it is built (default: the one here), and which Python has PyTorch.
# A part that fails does not keep the others from running; then the exit code is 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/gpu/report}
build=build/gpu
bin=$build/bin
python=${PYTHON:-python3}
mkdir -p "$out"
parts=() failed=0

# part NAME SECONDS COMMAND..: runs it with a limit, its output to FOLDER/NAME.log.
part() {
  local name=$1 limit=$2 start=$SECONDS code
  shift 2
  echo "== $name"
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  parts+=("{\"part\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - start))}")
  if [[ $code -ne 0 ]]; then
    failed=1
    echo "== $name failed ($code) after $((SECONDS - start)) s; the end of $out/$name.log:"
    tail -n 15 "$out/$name.log"
  else
    echo "== $name: $((SECONDS - start)) s"
  fi
  return "$code"
}

train() { "$bin/train_lm" --device "$1" --steps 200 --validation-windows 16 --out "$out/train-$1"; }

# The curves of the two training runs agree while rounding has not yet grown.
curves() {
  "$python" - "$out" <<'PYTHON'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
losses = lambda device: [json.loads(line)["loss"] for line in open(folder / f"train-{device}" / "metrics.jsonl")]
gpu, cpu = losses("cuda"), losses("cpu")
early = max(abs(a - b) / b for a, b in zip(gpu[:20], cpu[:20]))
late = abs(sum(gpu[-20:]) - sum(cpu[-20:])) / sum(cpu[-20:])
print(f"largest relative difference in 20 steps: {early:.1e}; of the last 20 steps' mean: {late:.1e}")
assert len(gpu) == len(cpu) == 200 and early < 1e-3 and late < 0.05
PYTHON
}
export -f train curves
export out bin python

prefix=()
[[ -d deps/usr ]] && prefix=("-DCMAKE_PREFIX_PATH=$PWD/deps/usr")
part configure 60 cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DNESTGRAD_CUDA=ON \
  "-DNESTGRAD_CUDA_ARCHITECTURES=${ARCHITECTURES:-native}" "${prefix[@]}" || exit 1
part build 300 cmake --build $build --target nestgrad_gpu_tests train_lm works || exit 1
part tests 120 ctest --test-dir $build -L gpu --output-on-failure
if command -v compute-sanitizer >/dev/null; then
  quick=(--test-suite=cuda "--test-case=*every kernel*,*any axes*,*one kernel is*,*order of their indices*")
  part memcheck 90 compute-sanitizer --tool memcheck --error-exitcode 9 $bin/nestgrad_gpu_tests "${quick[@]}"
  part racecheck 90 compute-sanitizer --tool racecheck --error-exitcode 9 $bin/nestgrad_gpu_tests "${quick[@]}"
fi
part train-cuda 60 bash -c 'train cuda' && part train-cpu 60 bash -c 'train cpu' && part curves 10 bash -c curves
part bench 240 "$python" bench/compare --device cuda --quick --build $build --program $bin/works --python "$python" \
  --json "$out/bench.json" --report "$out/gpu.md"

"$python" - "$out" "[$(IFS=,; echo "${parts[*]}")]" <<'PYTHON'
import json, pathlib, sys
folder, parts = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
read = lambda path: json.loads(path.read_text()) if path.exists() else None
curve = folder / "curves.log"
report = {"parts": parts, "curves": curve.read_text().strip() if curve.exists() else None,
          "bench": read(folder / "bench.json")}
(folder / "gpu-report.json").write_text(json.dumps(report, indent=1) + "\n")
PYTHON
echo "== $([[ $failed -eq 0 ]] && echo 'all passed' || echo 'something failed'): $SECONDS s; $out/gpu-report.json"
exit $failed
