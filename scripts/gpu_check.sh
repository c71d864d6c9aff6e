#!/usr/bin/env bash
# Everything that needs a GPU: every kernel against the CPU's, golden files, a training run beside the CPU's,
# compute-sanitizer, benchmarks against PyTorch. Needs nvcc, CMake, Ninja and Python, but no network: what
# scripts/gpu_prepare.sh put into deps/ is used if it is there.
#   scripts/gpu_check.sh [FOLDER [PART..]]    FOLDER: where results go (default: build/gpu/report)
# Parts: tests, training, sanitizers, bench; all of them by default. In two calls: `tests training sanitizers`, then `bench`, with a
# folder each: a call begins its report anew.
# FOLDER/gpu-report.json has everything: what ran, how it ended, the end of each log, all times. It is written anew after
# each step, so that it is there whatever ends the run.
# LIMIT: seconds for the whole call (540); a step that would take longer is stopped, those after it are left out.
# ARCHITECTURES and PYTHON: for which GPU it is built (the one here), and which Python has PyTorch (python3).
# BIN: a folder with the programs, built before; then nothing is built.
# A step that fails does not keep the others from running, but for build and device; then the exit code is 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/gpu/report}
parts=("${@:2}")
[[ ${#parts[@]} -eq 0 ]] && parts=(tests training sanitizers bench)
build=build/gpu
bin=${BIN:-$build/bin}
python=${PYTHON:-python3}
limit=${LIMIT:-540}
failed=0
running=()

# Before anything of a run before it goes.
wrong_call() {
  echo "gpu_check: error: $*" >&2
  exit 2
}
is_part() { [[ $1 == tests || $1 == training || $1 == sanitizers || $1 == bench ]]; }
! is_part "$out" || wrong_call "'$out' is a part, and the folder of results stands before the parts: gpu_check.sh FOLDER $*"
for part in "${parts[@]}"; do
  is_part "$part" || wrong_call "there is no part '$part'; say tests, training, sanitizers or bench"
done
"$python" -c '' 2>/dev/null || wrong_call "PYTHON is '$python', which does not run; it writes the report"
mkdir -p "$out" "$build"
rm -rf "$out"/*.log "$out/steps" "$out/gpu-report.json" "$out"/bench*.json "$out"/train-c*
has() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# All that is known so far, in one file. Steps that run side by side take turns.
report() {
  flock "$out/lock" "$python" - "$out" <<'PYTHON'
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
def read(name):
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else None
steps = []
for line in (folder / "steps").read_text().splitlines():
    name, code, seconds = line.split("\t")
    log = folder / f"{name}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    steps.append({"step": name, "exit": int(code) if code.isdigit() else code, "seconds": int(seconds), "log": text[-6000:]})
losses = {}
for device in ("cuda", "cpu"):
    path = folder / f"train-{device}" / "metrics.jsonl"
    if path.exists():
        losses[device] = [json.loads(line).get("loss") for line in path.read_text().splitlines()]
part = folder / "gpu-report.json.part"
bench = read("bench.json") or read("bench.part.json")
part.write_text(json.dumps({"steps": steps, "losses": losses, "bench": bench}, indent=1) + "\n")
os.replace(part, folder / "gpu-report.json")
PYTHON
}

# step NAME SECONDS COMMAND..: with a limit, its output to FOLDER/NAME.log.
step() {
  local name=$1 most=$2 start=$SECONDS code left=$((limit - SECONDS))
  shift 2
  if ((left < 5)); then
    echo "== $name: no time is left"
    failed=1 code="no time"
  else
    echo "== $name"
    timeout $((left < most ? left : most)) "$@" >"$out/$name.log" 2>&1
    code=$?
    # A filter that selects no case has tested nothing.
    [[ $code -eq 0 ]] && grep -qE 'test cases: +0 ' "$out/$name.log" && code="no case ran"
    [[ $name == *check && $code != 0 ]] && grep -q "Device not supported" "$out/$name.log" && code="not supported here"
    if [[ $code == 0 || $code == "not supported here" ]]; then
      echo "== $name: $((SECONDS - start)) s$([[ $code == 0 ]] || echo ", $code")"
    else
      failed=1
      echo "== $name failed ($code) after $((SECONDS - start)) s; the end of $out/$name.log:"
      tail -n 15 "$out/$name.log"
    fi
  fi
  printf '%s\t%s\t%s\n' "$name" "$code" $((SECONDS - start)) >>"$out/steps"
  report || { echo "== the report could not be written" >&2; failed=1 code="no report"; }
  [[ $code == 0 || $code == "not supported here" ]]
}

# The same in the background; `joined` waits for all of them.
beside() {
  step "$@" &
  running+=($!)
}

joined() {
  local each
  for each in "${running[@]}"; do wait "$each" || failed=1; done
  running=()
}

finish() {
  echo "== $([[ $failed -eq 0 ]] && echo 'all passed' || echo 'something failed'): $SECONDS s; $out/gpu-report.json"
  exit $failed
}

# On our own sources: they are there wherever this script is.
train() { "$bin/train_lm" --data engine --device "$1" --steps 200 --validation-windows 16 --out "$out/train-$1"; }

# A device that the tests would skip is none.
device() {
  local said
  said=$(NESTGRAD_DEVICE=cuda "$bin/$1" "${@:2}" 2>&1)
  echo "$said"
  [[ $said == *"on cuda:0"* ]]
}

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
export -f train curves device
export out bin python
# Where the toolkit has no cuBLAS, PyTorch's will do.
wheels=$("$python" -c 'import glob, nvidia
print(":".join(p for root in nvidia.__path__ for p in glob.glob(root + "/*/lib")))' 2>/dev/null)
[[ -n $wheels ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels

targets=()
if has tests || has sanitizers; then targets+=(nestgrad_gpu_tests); fi
if has training; then targets+=(train_lm); fi
if has bench; then targets+=(works); fi
if [[ -z ${BIN:-} ]]; then
  prefix=()
  [[ -d deps/usr ]] && prefix=("-DCMAKE_PREFIX_PATH=$PWD/deps/usr")
  step configure 60 cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DNESTGRAD_CUDA=ON \
    "-DNESTGRAD_CUDA_ARCHITECTURES=${ARCHITECTURES:-native}" "${prefix[@]}" || finish
  step build 400 cmake --build $build --target "${targets[@]}" || finish
fi
if has tests || has sanitizers; then step device 30 bash -c 'device nestgrad_gpu_tests "--test-case=CUDA: arrays go there*"' || finish; fi
# Of these each needs a processor and little of the GPU: side by side.
if has tests; then
  gpu_tests() { NESTGRAD_DEVICE=cuda beside "$1" 240 "$bin/nestgrad_gpu_tests" "${@:2}"; }
  gpu_tests kernels "--test-suite=cuda*"
  # NVRTC takes a while for each of many small programs.
  compiled() { NESTGRAD_COMPILE=now gpu_tests "compiled-$1" "--test-suite=cuda*" "--test-case=$2"; }
  compiled kernels "*every kernel*,*elementwise*,*sums and maxima*"
  compiled scans "*scan*"
  compiled systems "*published system*"
  compiled programs "*drawn at random*"
  gpu_tests sweep "--source-file=*ops/sweep_test*,*structured_test*,*composites*,*solve_test*"
  gpu_tests golden "--test-case=f64\\, dual form*,every operation within 1e-9*"
  gpu_tests forms "--test-case=a resumed training run*,checkpointing through time changes no bit*,decoding*,every model with every loss*"
fi
if has training; then
  beside train-cuda 120 bash -c 'train cuda'
  beside train-cpu 120 bash -c 'train cpu'
fi
if has sanitizers; then
  quick=("--test-suite=cuda*" "--test-case=*every kernel*,*any axes*,*one kernel is*,*order of their indices*")
  for tool in memcheck racecheck; do
    beside $tool 200 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/nestgrad_gpu_tests" "${quick[@]}"
  done
fi
joined
if has training; then step curves 10 bash -c curves; fi
# Times are measured with nothing beside them.
if has bench; then
  step bench 500 "$python" bench/compare --device cuda --quick --build $build --program "$bin/works" --python "$python" \
    --json "$out/bench.json" --report "$out/gpu.md"
fi
finish
