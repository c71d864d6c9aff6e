#!/usr/bin/env bash
# The programs as a user meets them: exit codes, one-line errors, nothing lost, exact resume. programs.sh BIN DATA
set -u
bin=$1 data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0 checks=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# expect CODE PATTERN COMMAND...: the exit code, and a pattern in what it prints. An error is one line.
expect() {
  local code=$1 pattern=$2 got output
  shift 2
  checks=$((checks + 1))
  output=$("$@" 2>&1 </dev/null)
  got=$?
  [ "$got" = "$code" ] || fail "exit $got, not $code: $* :: $output"
  grep -qE -- "$pattern" <<<"$output" || fail "no '$pattern' in the output of $*: $output"
  if [ "$code" = 1 ] && [ "$(grep -c 'error:' <<<"$output")" != 1 ]; then fail "not one error line: $*: $output"; fi
}
same() { checks=$((checks + 1)); cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

text=$work/text.txt
for i in $(seq 400); do echo "line $i of a text that is long enough to be read"; done > "$text"
small=(--data "$text" --width 16 --layers 1 --heads 1 --context 24 --batch 2 --mini-batch 4 --validation-windows 4)

for program in 01_grad_of_grad 02_inner_step inspect learners train_lm generate evaluate verify_golden reference verify reproduce; do
  expect 0 'Usage|OPTIONS|--help' "$bin/$program" --help
  expect 0 'nestgrad .*, kernels for .*, [0-9]+ threads' "$bin/$program" --version
  expect 2 'see --help' "$bin/$program" --no-such-option
done
expect 0 'learning rate (-?[0-9.]+), by differences \1$' "$bin/00_first"
expect 0 '"second_grad_error":' "$bin/01_grad_of_grad" --json
expect 0 '^exact +loss after three inner steps' "$bin/04_maml"
expect 0 'order 3 +derivative' "$bin/05_hyper_gradients"
expect 0 'the same bits three times' "$bin/06_scan"
expect 0 '19 parameters loaded.*3 new' "$bin/07_images"
expect 0 '"quartic_error":' "$bin/02_inner_step" --json
expect 0 '0.780288 .*grad.. of the whole program says 0.780288' "$bin/02_inner_step"
expect 0 'not parallel: the gradient of' "$bin/03_new_learner"
expect 0 '"learners":' "$bin/learners" --json
expect 0 '"form":"wy"' "$bin/learners" explain delta-net --json
expect 1 'wy is impossible' "$bin/learners" explain ttt-mlp --form wy
expect 1 'chunk-parallel is impossible: the gradient of' "$bin/learners" explain lact --form chunk-parallel
expect 0 '"passed":true' "$bin/learners" check gated-delta-net --json
expect 2 'not in' "$bin/learners" explain nothing
# .. and those that are no system say what they are, and why there is nothing to choose or to prove.
expect 0 'not primal, dual, parallel, wy, chunk-parallel: there are no weights' "$bin/learners" explain nadaraya-watson
expect 0 'not primal, dual, parallel, wy, chunk-parallel: the loss is that of the model' "$bin/learners" explain ttt-e2e
expect 0 '"name":"ttt-e2e".*"refused":{"primal":"the loss is' "$bin/learners" explain ttt-e2e --json
expect 0 'slices     heads' "$bin/learners" explain nadaraya-watson --slices 2
expect 1 'cannot be shared by 4 slices' "$bin/learners" explain nadaraya-watson --slices 4
expect 1 'its sequences cannot be cut' "$bin/learners" explain ttt-e2e --slices 2
expect 1 'dual is impossible: there are no weights' "$bin/learners" explain nadaraya-watson --form dual
for name in nadaraya-watson ttt-e2e; do
  expect 0 "^$name " "$bin/learners"
  expect 2 "of $name there is no inner loop of a layer.*learners explain $name" "$bin/learners" check "$name"
  expect 2 "of $name there is no inner loop of a layer" "$bin/reference" --system "$name" --describe
  expect 2 "of $name there is no inner loop of a layer" "$bin/inspect" --learner "$name"
done
expect 2 'or --all' "$bin/learners" check

# Options that would change nothing.
idle=(--data "$text" --width 16 --layers 1 --heads 1 --context 24 --batch 2 --steps 1 --out "$work/idle")
expect 2 "attention_window is 4, and ttt_layer_type 'attention'" "$bin/train_lm" "${idle[@]}" --learner attention --attention-window 4
expect 2 'ttt-e2e has none' "$bin/train_lm" "${idle[@]}" --learner ttt-e2e --backbone mamba
expect 2 'needs a window; leave it out for 64' "$bin/train_lm" "${idle[@]}" --learner ttt-e2e --attention-window 0
for option in --rate --clip --rank --seed; do
  expect 2 'give --adapt as well' "$bin/evaluate" --checkpoint "$work/none" "$option" 3
done
expect 2 'rank: is about --adapt lora, and it is sgd' "$bin/evaluate" --checkpoint "$work/none" --adapt sgd --rank 3
expect 2 'seed: changes nothing at --temperature 0' "$bin/generate" --checkpoint "$work/none" --prompt x --temperature 0 --seed 5
expect 2 'quick: is about runs: name an experiment' "$bin/reproduce" --quick
expect 2 'excludes' "$bin/reproduce" --report --seeds 3
expect 2 'excludes' "$bin/reproduce" ascent --report
expect 0 '"experiments":.*"name":"ascent"' "$bin/reproduce" --json
echo "a page" > "$work/page.md"
cp "$work/page.md" "$work/page-before.md"
expect 1 'no runs are kept there' "$bin/reproduce" --report --kept "$work/nowhere" --page "$work/page.md"
same "$work/page.md" "$work/page-before.md"
for option in --expect --against; do
  expect 1 'nowhere/ascent.jsonl' "$bin/reproduce" ascent "$option" "$work/nowhere" --out "$work/not-begun"
done
[ ! -e "$work/not-begun/ascent/results.jsonl" ] || fail "reproduce began runs that it could not compare"

# Wrong calls.
expect 2 'learner' "$bin/train_lm" --learner nothing
expect 2 'steps' "$bin/train_lm" --steps 0
expect 2 "NESTGRAD_ISA is 'mmx'; this processor runs" env NESTGRAD_ISA=mmx "$bin/train_lm" --steps 1
expect 2 "NESTGRAD_THREADS is 'many'" env NESTGRAD_THREADS=many "$bin/learners"
for limit in soon 0 -1 nan 1e9 5s; do
  expect 2 "NESTGRAD_STALL_LIMIT is '$limit'; it must be a number of seconds" env NESTGRAD_STALL_LIMIT="$limit" "$bin/learners"
done
expect 0 'learners' env NESTGRAD_STALL_LIMIT=0.5 "$bin/learners" --help
expect 2 'is no device' env NESTGRAD_DEVICE=gpu "$bin/learners"
expect 2 'is no device' "$bin/train_lm" --device gpu
expect 1 'cuda:77 was asked for' "$bin/train_lm" --device cuda:77
expect 2 'bf16 is for GPUs' "$bin/train_lm" --precision bf16
expect 2 'precision' "$bin/train_lm" --precision f16
for number in nan inf -inf; do
  for option in --lr --memory-budget; do expect 2 'see --help' "$bin/train_lm" "$option" "$number" --out "$work/number"; done
  expect 2 'see --help' "$bin/generate" --checkpoint "$work/none" --prompt x --temperature "$number"
done
for option in --lr --seed --steps --memory-budget; do expect 2 "$option: '': expected a number" "$bin/train_lm" "$option" "" --out "$work/number"; done
[ ! -e "$work/number" ] || fail "a wrong number made a folder"
for program in generate evaluate inspect; do
  expect 2 'tokenizer: wants a folder or a file' "$bin/$program" --checkpoint "$work/none" --tokenizer ""
done
expect 2 'data: wants a folder or a file' "$bin/inspect" --checkpoint "$work/none" --data ""
# How sequences cannot be cut is found when the model is laid out.
cut=(--data "$text" --width 16 --layers 1 --context 24 --batch 2 --mini-batch 4 --steps 1 --out "$work/cut")
expect 2 'cannot go along 4 slices.*packed documents.*see --help' "$bin/train_lm" "${cut[@]}" --learner gated-delta-net --heads 2 --slices 4 --pack
expect 2 'each rank has slices of 2: cut sequences into fewer' "$bin/train_lm" "${cut[@]}" --learner delta-net --heads 4 --backbone mamba --slices 12
expect 2 '2 heads cannot be shared by 4 slices' "$bin/train_lm" "${cut[@]}" --learner attention --heads 2 --slices 4
[ ! -e "$work/cut" ] || fail "a wrong call made a folder"
expect 2 'not a multiple.*(hidden_size is --width, num_attention_heads is --heads)' "$bin/train_lm" --data "$text" --width 16 --heads 3 --out "$work/heads"
expect 2 'ilr_warmup_steps is --inner-rate-warmup' "$bin/train_lm" --data "$text" --width 16 --heads 2 --inner-rate-warmup 5 --out "$work/heads"
mkdir "$work/of-others"; echo 'not ours' > "$work/of-others/config.json"
expect 1 'of-others/config.json is of something else' "$bin/train_lm" --data "$text" --width 16 --heads 2 --context 24 --batch 2 --steps 1 --out "$work/of-others"
grep -q 'not ours' "$work/of-others/config.json" || fail "a config.json of something else was written over"

# Experiments.
expect 0 '^ascent .*mirrored start' "$bin/reproduce"
expect 2 'NAME' "$bin/reproduce" nothing
expect 2 'excludes' "$bin/reproduce" ascent --quick --full
expect 2 'seeds' "$bin/reproduce" ascent --seeds 0
expect 2 'ascent has no models of images' "$bin/reproduce" ascent --models "$work/models" --out "$work/reproduce-2"
expect 1 'no results to go on from' "$bin/reproduce" ascent --resume --out "$work/reproduce"
mkdir -p "$work/reproduce/ascent"; echo '{"experiment": "ascent"' > "$work/reproduce/ascent/results.jsonl"
expect 1 'already holds results' "$bin/reproduce" ascent --out "$work/reproduce"
expect 1 'line 1: is no JSON object' "$bin/reproduce" ascent --resume --out "$work/reproduce"
printf '%s\n' '{"experiment":"ascent","extent":"full","seeds":2,"first_seed":0,"data":"","fingerprint":"","machine":"","date":""}' > "$work/reproduce/ascent/results.jsonl"
expect 1 'holds results --full' "$bin/reproduce" ascent --quick --resume --out "$work/reproduce"
grep -q '"full"' "$work/reproduce/ascent/results.jsonl" || fail "a refused resume changed the results"
expect 2 'recall draws its own data' "$bin/reproduce" recall --data "$text" --out "$work/reproduce-2"
expect 1 'no folder|images|idx' "$bin/reproduce" ascent t5 --data "$text" --out "$work/reproduce-3"
[ ! -e "$work/reproduce-3" ] || fail "an experiment was begun whose companion has no data"
expect 1 'missing.txt' "$bin/reproduce" ascent --data "$work/missing.txt" --out "$work/reproduce-2"
expect 1 'no runs are kept there' "$bin/reproduce" --report --kept "$work/reproduce" --page "$work/none/page.md"

# Bad data.
: > "$work/empty.txt"; echo hi > "$work/tiny.txt"; mkdir "$work/no-text"; printf 'a\0b' > "$work/no-text/binary"
expect 1 'empty|no text|smaller|at least' "$bin/train_lm" --data "$work/empty.txt" --out "$work/x"
expect 1 'at least|smaller|needs' "$bin/train_lm" --data "$work/tiny.txt" --out "$work/x"
expect 1 'no text|text' "$bin/train_lm" --data "$work/no-text" --out "$work/x"
mkfifo "$work/pipe"
for endless in "$work/pipe" /dev/zero; do expect 1 'device or a pipe' "$bin/train_lm" --data "$endless" --out "$work/x"; done
expect 1 'missing.txt' "$bin/train_lm" --data "$work/missing.txt" --out "$work/x"
expect 1 'text.txt/out' "$bin/train_lm" "${small[@]}" --steps 1 --out "$text/out"

# Streams that cannot be written: what is said beside the results is done without, results are not.
streamed() { bash -c "$1 \"\$@\" $2" "$work/stream" "${@:3}"; }  # BEFORE REDIRECTION COMMAND...
tiny=("$bin/train_lm" "${small[@]}" --steps 2)
stream=0
for to in '2>/dev/full' '2>&-' '2>"$0.log"'; do
  limit=; [ "$to" = '2>"$0.log"' ] && limit="ulimit -f 0;"
  expect 2 '' streamed "$limit" "$to" "$bin/train_lm" --bad
  [ -z "$limit" ] || continue
  expect 0 'report' streamed "" "$to" "${tiny[@]}" --out "$work/stream-$((stream += 1))"
  same "$work/stream-1/checkpoint.safetensors" "$work/stream-$stream/checkpoint.safetensors"
done
for program in train_lm generate reproduce; do
  for option in --help --version; do
    for to in '>/dev/full' '>&-'; do expect 1 'standard output cannot be written' streamed "" "$to" "$bin/$program" "$option"; done
    expect 1 'standard output cannot be written' streamed "ulimit -f 0;" '>"$0.log"' "$bin/$program" "$option"
  done
done
# Whoever reads them may go.
expect 0 '' bash -c '"$@" 2>&1 >/dev/null | true; exit "${PIPESTATUS[0]}"' left "${tiny[@]}" --out "$work/stream-left"
same "$work/stream-1/checkpoint.safetensors" "$work/stream-left/checkpoint.safetensors"
expect 1 'standard output cannot be written' streamed "" '>&-' "${tiny[@]}" --out "$work/stream-closed"
same "$work/stream-1/checkpoint.safetensors" "$work/stream-closed/checkpoint.safetensors"

# A resumed run equals one that was never interrupted, for every learner and backbone.
for learner in ttt-linear ttt-mlp attention; do
  for backbone in transformer mamba; do
    kind=$learner-$backbone
    run=("$bin/train_lm" "${small[@]}" --learner "$learner" --backbone "$backbone" --steps 6)
    expect 0 '"val_loss":' "${run[@]}" --out "$work/$kind-whole" --json
    expect 0 'stopped after 3 of 6' "${run[@]}" --stop-after 3 --out "$work/$kind-parts"
    expect 0 'report' "${run[@]}" --resume --out "$work/$kind-parts"
    same "$work/$kind-whole/checkpoint.safetensors" "$work/$kind-parts/checkpoint.safetensors"
    [ "$(wc -l < "$work/$kind-parts/metrics.jsonl")" = 6 ] || fail "$kind: metrics are not one line a step"
    for file in report.html config.json; do [ -s "$work/$kind-whole/$file" ] || fail "$kind: no $file"; done
  done
done
# .. and a run that ended and lost its checkpoint is made again, in its own place.
rm "$work/ttt-mlp-mamba-whole/checkpoint.safetensors"
again=("$bin/train_lm" "${small[@]}" --learner ttt-mlp --backbone mamba --steps 6)
expect 0 'report' "${again[@]}" --out "$work/ttt-mlp-mamba-whole"
same "$work/ttt-mlp-mamba-whole/checkpoint.safetensors" "$work/ttt-mlp-mamba-parts/checkpoint.safetensors"
whole=$work/ttt-linear-transformer-whole
run=("$bin/train_lm" "${small[@]}" --steps 6)
expect 0 'report' "${run[@]}" --checkpoint-every 2 --out "$work/every"
cmp -s <(tail -c 2000 "$whole/checkpoint.safetensors") <(tail -c 2000 "$work/every/checkpoint.safetensors") || fail "a checkpoint schedule changed the result"
expect 1 'a memory budget of 100 bytes is too small' "${run[@]}" --memory-budget 0.0001 --out "$work/budget"

# Training on packed documents goes on as any other, and is no other.
documents=$work/documents.txt
for i in $(seq 300); do echo "document $i"; echo "has two lines"; echo; done > "$documents"
packed=("$bin/train_lm" "${small[@]}" --data "$documents" --pack --steps 6)
expect 0 '"val_loss":' "${packed[@]}" --out "$work/packed" --json
expect 0 'stopped after 2 of 6' "${packed[@]}" --stop-after 2 --out "$work/packed-parts"
expect 0 'report' "${packed[@]}" --resume --out "$work/packed-parts"
same "$work/packed/checkpoint.safetensors" "$work/packed-parts/checkpoint.safetensors"
expect 1 'written with pack = 4' "$bin/train_lm" "${small[@]}" --data "$documents" --steps 6 --resume --out "$work/packed"
expect 2 'ttt-e2e goes on training over the whole' "${packed[@]}" --learner ttt-e2e --out "$work/packed-e2e"
expect 2 'context' "${packed[@]}" --mini-batch 64 --out "$work/packed-long"
expect 0 '"val_loss":' "${packed[@]}" --mini-batch 24 --out "$work/packed-whole" --json  # a context is a chunk, and one document
# The same bytes in other documents are other data.
mkdir "$work/files" "$work/fewer"
for i in 01 02 03 04 05 06 07 08 09 10 11 12; do for j in 1 2 3 4; do echo "line $i $j"; done > "$work/files/$i"; done
cp "$work/files"/* "$work/fewer"; { cat "$work/files/11"; echo; cat "$work/files/12"; } > "$work/fewer/11"; rm "$work/fewer/12"
expect 0 'stopped after 2 of 6' "$bin/train_lm" "${small[@]}" --data "$work/files" --pack --steps 6 --stop-after 2 --out "$work/of-files"
expect 1 'other text' "$bin/train_lm" "${small[@]}" --data "$work/fewer" --pack --steps 6 --resume --out "$work/of-files"
mkdir "$work/bytes"; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo a > "$work/bytes/$i"; done
expect 0 '"val_loss":' "$bin/train_lm" "${small[@]}" --data "$work/bytes" --pack --steps 1 --out "$work/of-bytes" --json

# Training that starts from weights: those of the first run go on from where its loss is.
from=("$bin/train_lm" --data "$text" --context 24 --batch 2 --validation-windows 4 --steps 2 --from "$whole")
expect 0 'ttt-linear in' "${from[@]}" --out "$work/from"
same "$whole/config.json" "$work/from/config.json"
cp -r "$work/from" "$work/from-on"
expect 0 'ttt-linear in' "${from[@]}" --resume --out "$work/from-on"
same "$work/from/checkpoint.safetensors" "$work/from-on/checkpoint.safetensors"
expect 1 'was not trained from the weights' "${from[@]}" --from "$work/from" --resume --out "$work/from-on"
same "$work/from/checkpoint.safetensors" "$work/from-on/checkpoint.safetensors"
expect 2 'excludes' "${from[@]}" --width 32 --out "$work/other"
expect 1 'config.json' "$bin/train_lm" --from "$work/none" --out "$work/other"

# Nothing that was saved is lost.
cp "$whole/checkpoint.safetensors" "$work/saved"
expect 1 'already holds' "${run[@]}" --out "$whole"
expect 1 'another model' "${run[@]}" --resume --out "$whole" --learner ttt-mlp
expect 1 'another model' "${run[@]}" --resume --out "$whole" --backbone mamba
expect 1 'written with' "${run[@]}" --resume --out "$whole" --seed 7
cp "$text" "$work/edited.txt"; printf x >> "$work/edited.txt"
expect 1 'other text' "${run[@]}" --resume --out "$whole" --data "$work/edited.txt"
touch "$whole/.nestgrad-1-1.tmp"
exec {lock}< "$whole"; flock -n "$lock"
expect 1 'in use by another process' "${run[@]}" --resume --out "$whole"
exec {lock}<&-
expect 0 'report' "${run[@]}" --resume --out "$whole"
[ ! -e "$whole/.nestgrad-1-1.tmp" ] || fail "what a killed run left behind is still there"
expect 1 'not finite.*--lr is 1e\+30' "$bin/train_lm" "${small[@]}" --steps 60 --lr 1e30 --out "$work/diverged" --save-every 1
[ -s "$work/diverged/nonfinite.safetensors" ] || fail "no reproducer of the value that is not finite"
[ -s "$work/diverged/checkpoint.safetensors" ] || fail "the checkpoint from before the divergence is gone"
same "$whole/checkpoint.safetensors" "$work/saved"
cp -r "$whole" "$work/truncated"; head -c 5000 "$work/saved" > "$work/truncated/checkpoint.safetensors"; cp "$work/truncated/checkpoint.safetensors" "$work/cut"
expect 1 'truncated' "${run[@]}" --resume --out "$work/truncated"
same "$work/truncated/checkpoint.safetensors" "$work/cut"
expect 1 'no checkpoint' "${run[@]}" --resume --out "$work/fresh"
for grains in 0 3; do
  cp -r "$whole" "$work/grains-$grains"
  LC_ALL=C sed -i "s/\\\\\"grains\\\\\":2/\\\\\"grains\\\\\":$grains/g" "$work/grains-$grains/checkpoint.safetensors"
  expect 1 "grains-$grains/checkpoint.safetensors: its header says $grains grains of a batch of 2.*damaged" "${run[@]}" --resume --out "$work/grains-$grains"
done
# A pipe among files would be waited for.
for file in checkpoint.safetensors config.json metrics.jsonl; do
  cp -r "$whole" "$work/piped-$file"; rm "$work/piped-$file/$file"; mkfifo "$work/piped-$file/$file"
  expect 1 "piped-$file/$file: it is a pipe" timeout 60 "${run[@]}" --resume --out "$work/piped-$file"
  [ "$file" = metrics.jsonl ] || expect 1 "$file: it is a pipe" timeout 60 "$bin/generate" --checkpoint "$work/piped-$file" --prompt x
done

# generate.
gen=("$bin/generate" --checkpoint "$whole" --prompt "line 1" --bytes 40)
# What the command line says holds, whatever the environment asks for.
expect 0 '^line 1' env NESTGRAD_DEVICE=cuda:77 "${gen[@]}" --device cpu
expect 1 'cuda:77 was asked for' env NESTGRAD_DEVICE=cuda:77 "${gen[@]}"
expect 1 'empty.txt: the file is empty' "$bin/generate" --checkpoint "$work/empty.txt" --prompt x
expect 0 '^line 1' "${gen[@]}"
"${gen[@]}" --seed 3 > "$work/a"; "${gen[@]}" --seed 3 > "$work/b"; same "$work/a" "$work/b"
expect 0 '^line 1' "$bin/generate" --checkpoint "$work/attention-mamba-whole" --prompt "line 1" --bytes 20 --temperature 0
expect 1 'config.json' "$bin/generate" --checkpoint "$work/none" --prompt x
expect 1 'truncated' "$bin/generate" --checkpoint "$work/truncated" --prompt x
expect 2 'prompt' "$bin/generate" --checkpoint "$whole" --prompt ""
cp -r "$whole" "$work/misfit"; sed -i 's/"hidden_size": 16/"hidden_size": 32/' "$work/misfit/config.json"
expect 1 'another model' "$bin/generate" --checkpoint "$work/misfit" --prompt x
cp -r "$whole" "$work/theta"; sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 7.0/' "$work/theta/config.json"
grep -q '"rope_theta": 7.0' "$work/theta/config.json" || fail "the edit did not happen"
expect 1 'another model' "$bin/generate" --checkpoint "$work/theta" --prompt x
sed -i 's/"hidden_size": 32/"hidden_size": "wide"/' "$work/misfit/config.json"
expect 1 'hidden_size' "$bin/generate" --checkpoint "$work/misfit" --prompt x

# evaluate.
score=("$bin/evaluate" --checkpoint "$whole" --data "$text" --segment 24 --bytes 600)
printf abcdefghij > "$work/ten.txt"; printf a > "$work/one.txt"
expect 0 '' "$bin/evaluate" --checkpoint "$whole" --data "$work/ten.txt" --all
expect 1 'has 1 bytes, but at least 2 are needed' "$bin/evaluate" --checkpoint "$whole" --data "$work/one.txt" --all
expect 0 'as it is +[0-9.]+ nats per token' "${score[@]}"
expect 0 'the validation part of .*/text.txt: 600 bytes, 599 tokens in segments of 24' "${score[@]}"
expect 0 '"data":".*/text.txt","part":"validation","bytes":600,"tokens":599' "${score[@]}" --json
expect 0 '^/.*/text.txt: [0-9]+ bytes.*' "${score[@]}" --all
expect 0 '"part":"all"' "${score[@]}" --all --json
for what in sgd norms lora; do expect 0 "\"adapt\":\"$what\".*\"no_look_ahead\"" "${score[@]}" --adapt "$what" --prove --json; done
"${score[@]}" --adapt sgd | grep -v segments > "$work/a"; "${score[@]}" --adapt sgd | grep -v segments > "$work/b"; same "$work/a" "$work/b"
expect 0 '^sgd ' "${score[@]}" --adapt sgd --all --bytes 0
expect 1 'no step is made before a score; give more text' "${score[@]}" --adapt sgd --prove --bytes 20
# Bits per byte are of the text's bytes: a token that only begins a text has none.
echo "the hidden state is a model" > "$work/hidden.txt"
"$bin/evaluate" --checkpoint "$data/published/pytorch" --data "$work/hidden.txt" --all --json | tail -n 1 > "$work/scored"
awk -v line="$(cat "$work/scored")" 'function of(name) { match(line, "\"" name "\":[0-9.]+"); return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 3) }
  BEGIN { bits = of("loss") * of("tokens") / log(2) / of("bytes"); exit !(bits > 0 && (bits / of("bits_per_byte") - 1) ^ 2 < 1e-12) }' ||
  fail "bits per byte are not those of the bytes: $(cat "$work/scored")"
expect 0 '"loss_by_quarter":\[null,' "$bin/evaluate" --checkpoint "$whole" --data "$text" --bytes 4 --json
expect 0 'quarters of the text -, ' "$bin/evaluate" --checkpoint "$whole" --data "$text" --bytes 4
expect 2 'rate is 1e-50; steps are made in f32' "${score[@]}" --adapt sgd --rate 1e-50
cp -r "$whole" "$work/two-models"; cp "$whole/checkpoint.safetensors" "$work/two-models/model.safetensors"
expect 1 'holds checkpoint.safetensors and model.safetensors; give the path of one of them' "$bin/evaluate" --checkpoint "$work/two-models" --data "$text"
expect 1 'after [0-9]+ steps the .* is not finite; lower the rate' "${score[@]}" --adapt sgd --rate 1e30 --clip 1e30
# Weights that are not those of the configuration: before anything is read, written or made, by the folder's name.
cp -r "$data/published/pytorch_half" "$work/gateless"
sed -i 's/"use_gate": false/"use_gate": true/' "$work/gateless/config.json"
misfit="$work/gateless does not fit the model; it lacks the parameter '.*g_proj.weight'"
expect 1 "$misfit" "$bin/evaluate" --checkpoint "$work/gateless" --data "$text"
expect 1 "^generate: error: .*$misfit" "$bin/generate" --checkpoint "$work/gateless" --prompt x
expect 1 "$misfit" "$bin/inspect" --tokens 8 --checkpoint "$work/gateless" --out "$work/no-page"
expect 1 "$misfit" "$bin/train_lm" --data "$text" --from "$work/gateless" --out "$work/no-run"
[ ! -e "$work/no-page" ] && [ ! -e "$work/no-run" ] || fail "a folder is made for a model that does not fit"
expect 2 'see --help' "${score[@]}" --adapt all
expect 2 'give --adapt as well' "${score[@]}" --prove
expect 2 'see --help' "${score[@]}" --adapt sgd --rate nan
expect 2 'see --help' "${score[@]}" --segment 0
expect 1 'config.json' "$bin/evaluate" --checkpoint "$work/none" --data "$text"
expect 1 'missing.txt' "$bin/evaluate" --checkpoint "$whole" --data "$work/missing.txt"

# A tokenizer that is given is the one that is read, whatever it is called, or it is refused.
for given in "$text" "$whole"; do
  expect 1 'is given, and the model, of 256 tokens, reads bytes' "$bin/generate" --checkpoint "$whole" --tokenizer "$given" --prompt x
  expect 1 'is given, and the model, of 256 tokens, reads bytes' "${score[@]}" --tokenizer "$given"
  expect 1 'is given, and the model, of 256 tokens, reads bytes' "$bin/inspect" --checkpoint "$whole" --data "$text" --tokens 8 --tokenizer "$given" --out "$work/given"
done
expect 1 'missing.model: there is no such file' "$bin/generate" --checkpoint "$data/published/pytorch" --tokenizer "$work/missing.model" --prompt x

# Published models: a folder of the PyTorch release, a stream of the JAX release, which has no tokenizer of its own.
torch=$data/published/pytorch jax=$data/published/jax
if "$bin/generate" --checkpoint "$torch" --prompt x 2>&1 | grep -q 'built; install libsentencepiece'; then
  echo "SKIPPED: no sentencepiece here"
else
  expect 0 '^the hidden' "$bin/generate" --checkpoint "$torch" --prompt "the hidden" --bytes 30 --temperature 0
  expect 0 'as in every published run: ttt_base_lr 0.1' "$bin/generate" --checkpoint "$jax" --tokenizer "$torch/tokenizer.model" --prompt "the hidden" --bytes 9
  expect 0 'layer 1 of a ttt-linear language model' "$bin/inspect" --tokens 16 --checkpoint "$torch" --layer 1 --data "$text" --out "$work/published"
  expect 1 'has 330 tokens, the model 61' "$bin/generate" --checkpoint "$torch" --tokenizer "$data/published/tokenizer/tokenizer.model" --prompt x
  cp "$torch/tokenizer.model" "$work/pieces"; cp "$data/published/tokenizer/tokenizer.model" "$work/other-pieces"
  expect 0 'the hidden' "$bin/generate" --checkpoint "$jax" --tokenizer "$work/pieces" --prompt "the hidden" --bytes 9
  expect 1 'other-pieces has 330 tokens, the model 61' "$bin/generate" --checkpoint "$torch" --tokenizer "$work/other-pieces" --prompt x
  expect 1 'sentencepiece cannot read it' "$bin/generate" --checkpoint "$torch" --tokenizer "$text" --prompt x
fi
expect 1 'no tokenizer.model in' "$bin/generate" --checkpoint "$jax" --prompt x
expect 2 'training reads text as bytes' "$bin/train_lm" --from "$torch" --data "$text" --out "$work/other"
cp -r "$torch" "$work/torch"; rm "$work/torch/model-00002-of-00002.safetensors"
expect 1 'model-00002-of-00002.safetensors' "$bin/generate" --checkpoint "$work/torch" --prompt x

# inspect: of a learner, and of a layer of what was trained above.
looks=("$bin/inspect" --tokens 8)
expect 0 '"holds":true' "${looks[@]}" --learner delta-net --dim 4 --out "$work/inspected" --json
expect 0 'layer 0 of a ttt-linear language model' "${looks[@]}" --checkpoint "$whole" --data "$text" --token 3 --out "$work/layer"
for folder in inspected layer; do
  for file in report.html graph.dot graph.txt trace.json summary.jsonl views/channel_gradient.npy views/by-step-1.svg; do
    [ -s "$work/$folder/$file" ] || fail "inspect: no $folder/$file"
  done
done
expect 2 '--checkpoint: wants a DIR, or give --learner NAME' "$bin/inspect"
expect 2 'excludes' "$bin/inspect" --learner delta-net --checkpoint "$whole"
expect 2 'there are 8 tokens' "${looks[@]}" --learner delta-net --token 8
expect 2 'learner' "$bin/inspect" --learner nothing
expect 2 'checkpoint' "${looks[@]}" --learner delta-net --layer 1
expect 1 'no layer 5' "${looks[@]}" --checkpoint "$whole" --data "$text" --layer 5
expect 1 'no inner loop' "${looks[@]}" --checkpoint "$work/attention-mamba-whole" --data "$text"
expect 1 'there is no such file or folder' "${looks[@]}" --checkpoint "$work/none"
expect 1 'text.txt/out' "${looks[@]}" --learner delta-net --dim 4 --out "$text/out"
# .. no page in place of that of a run, none of more tokens than it can show, and none of numbers that are none.
cp "$whole/report.html" "$work/report-before.html"
expect 2 'holds a training run' "${looks[@]}" --checkpoint "$whole" --data "$text" --out "$whole"
expect 2 'holds a training run' "${looks[@]}" --learner delta-net --dim 4 --out "$whole"
same "$whole/report.html" "$work/report-before.html"
# .. and no run in place of a page or of a model.
cp "$work/layer/report.html" "$work/report-before.html"
expect 1 'layer holds summary.jsonl of an inspection or a model' "${run[@]}" --out "$work/layer"
same "$work/layer/report.html" "$work/report-before.html"
[ ! -e "$work/layer/config.json" ] || fail "train_lm: writes into the folder of an inspection"
expect 1 'holds model.safetensors.index.json of' "$bin/train_lm" "${small[@]}" --steps 1 --out "$work/torch"
same "$torch/config.json" "$work/torch/config.json"
expect 0 'report' "$bin/train_lm" "${small[@]}" --mini-batch 24 --steps 1 --out "$work/long-batches"
expect 2 '510 tokens are 528 in whole mini-batches of 24 \(mini_batch_size\).*ask for 504' "$bin/inspect" --checkpoint "$work/long-batches" --data "$text" --tokens 510 --out "$work/long"
expect 2 '512 tokens are 1000 in whole mini-batches of 500' "$bin/inspect" --learner ttt-linear --tokens 512 --chunk 500 --out "$work/long"
spoil() { truncate -s -4 "$1"; printf '\377\377\377\377' >> "$1"; }  # the last number becomes a NaN
cp -r "$torch" "$work/spoilt"; spoil "$work/spoilt/model-00002-of-00002.safetensors"
expect 1 "spoilt: '[a-z._0-9]+' holds -?nan at its number" "${looks[@]}" --checkpoint "$work/spoilt" --data "$text" --out "$work/spoilt-page"
expect 1 "spoilt: '[a-z._0-9]+' holds -?nan at its number" "$bin/train_lm" --from "$work/spoilt" --data "$text" --out "$work/spoilt-run"

# .. of a model of images: a drawn character, and an image of a folder in another size.
"$bin/07_images" "$work/images" > "$work/log" 2>&1 || fail "07_images"
expect 0 '"holds":true' "$bin/inspect" --checkpoint "$work/images" --image 4 --out "$work/patches" --json
for file in report.html summary.jsonl views/image.npy views/patches-2.svg; do
  [ -s "$work/patches/$file" ] || fail "inspect: no patches/$file"
done
grep -q 'a drawn character, number 4' "$work/patches/report.html" || fail "inspect: the page does not say which image"
expect 0 'block 0 of a vision transformer with t5-swiglu' "$bin/inspect" --checkpoint "$work/images/model.safetensors" --out "$work/patches"
expect 1 'no layer 1' "$bin/inspect" --checkpoint "$work/images" --layer 1
expect 2 'there are 49 tokens' "$bin/inspect" --checkpoint "$work/images" --token 49
expect 2 'is for text' "$bin/inspect" --checkpoint "$work/images" --tokenizer "$text"
expect 2 'is for a model of images' "${looks[@]}" --checkpoint "$whole" --data "$text" --image 1
expect 1 'image folder' "$bin/inspect" --checkpoint "$work/images" --data "$work/none"
expect 1 'there is no PNG file' "$bin/inspect" --checkpoint "$work/images" --data "$work/patches"
mkdir -p "$work/faces/one"
base64 -d > "$work/faces/one/pixel.png" <<< iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==
expect 1 'has 1 class, the model 10' "$bin/inspect" --checkpoint "$work/images" --data "$work/faces"

mkfifo "$work/faces/one/two.png"
expect 1 'two.png: it is a pipe' timeout 60 "$bin/inspect" --checkpoint "$work/images" --data "$work/faces"
cp -r "$work/images" "$work/images-spoilt"; spoil "$work/images-spoilt/model.safetensors"
expect 1 "images-spoilt: '[a-z._0-9]+' holds -?nan at its number" "$bin/inspect" --checkpoint "$work/images-spoilt" --out "$work/spoilt-page"

# .. of models of diffusion and of views: an image with noise, and a drawn scene.
"$bin/small_models" "$work/small" || fail "small_models"
looks_small() { "$bin/inspect" --out "$work/small/page" --checkpoint "$@"; }
expect 0 '"holds":true' looks_small "$work/small/diffusion" --image 3 --layer 1 --json
grep -q 'noise level 20 of 40' "$work/small/page/report.html" || fail "inspect: the page does not say which noise"
expect 0 'block 0 of a diffusion transformer with t5-diffusion' looks_small "$work/small/diffusion" --level 3
expect 2 'the model has 40, counted from 0' looks_small "$work/small/diffusion" --level 40
expect 0 '"holds":true' looks_small "$work/small/views" --image 3 --layer 1 --json
grep -q 'view 5 as made, PSNR' "$work/small/page/report.html" || fail "inspect: the page does not show the views that were made"
[ -s "$work/small/page/views/images.npy" ] || fail "inspect: no images.npy"
expect 0 'block 0 of a model of views with baseline' looks_small "$work/small/views/model.safetensors"
expect 2 'looks at drawn scenes' looks_small "$work/small/views" --data "$work/faces"
expect 2 'this is a model of views' looks_small "$work/small/views" --level 3
expect 2 'this is a vision transformer' looks_small "$work/images" --level 3
expect 2 'is for a model of images' looks_small "$whole" --data "$text" --level 1
expect 1 'without an update there is no inner loop' looks_small "$work/small/no-update"

# .. and of a model that learns as a whole.
"$bin/train_lm" --data "$text" --learner ttt-e2e --steps 3 --batch 2 --context 16 --width 16 --layers 2 --mini-batch 4 \
  --inner-rate-warmup 2 --inner-rate-start 0.5 --out "$work/e2e" > "$work/log" 2>&1 || fail "train_lm --learner ttt-e2e"
grep -q '"ilr_warmup_steps": 2' "$work/e2e/config.json" || fail "the ramp of the inner rate is not in the configuration"
expect 0 '"holds":true' "${looks[@]}" --checkpoint "$work/e2e" --data "$text" --out "$work/whole" --json
for file in report.html summary.jsonl views/step_norm.npy views/by-step-1.svg; do
  [ -s "$work/whole/$file" ] || fail "inspect: no whole/$file"
done
[ ! -e "$work/whole/graph.dot" ] || fail "inspect: an empty graph.dot"
expect 2 'the whole model learns' "${looks[@]}" --checkpoint "$work/e2e" --data "$text" --layer 0
expect 2 'ilr_warmup_steps' "$bin/train_lm" --data "$text" --inner-rate-warmup 5 --out "$work/other"
expect 2 'longer than the training' "$bin/train_lm" --data "$text" --learner ttt-e2e --steps 3 --inner-rate-warmup 5 --out "$work/other"

# verify_golden.
expect 0 'PASS' "$bin/verify_golden" "$data/golden/ttt_linear_transformer.safetensors"
expect 1 'FAIL' "$bin/verify_golden" --tolerance 1e-20 "$data/golden/ttt_linear_transformer.safetensors"
expect 0 'PASS .* wy$' "$bin/verify_golden" --form wy "$data/golden/delta_rule.safetensors"
expect 1 'parallel is impossible' "$bin/verify_golden" --form parallel "$data/golden/delta_rule.safetensors"
expect 2 'form' "$bin/verify_golden" --form nothing "$data/golden/delta_rule.safetensors"
expect 1 'known kind' "$bin/verify_golden" "$work/saved"
expect 1 'text.txt REFUSED' "$bin/verify_golden" "$text"
expect 1 'delta_rule.safetensors PASS' "$bin/verify_golden" "$text" "$work/no_such_file" "$data/golden/delta_rule.safetensors"
expect 1 'of 3 files 0 differ by more than 1e-09 and 2 are refused' "$bin/verify_golden" "$text" "$work/no_such_file" "$data/golden/delta_rule.safetensors"

# reference and verify.
ref=("$bin/reference" --system delta-net) case=$work/case.safetensors
expect 0 '9 outputs, f64' "${ref[@]}" --random 2,2,12,4 --seed 3 --out "$case"
expect 0 '"outputs":\{.*"output":\[2,2,12,4\]' "${ref[@]}" --random 2,2,12,4 --seed 3 --out "$work/again" --json
same "$case" "$work/again"
expect 0 '9 outputs compared; of all tensors 0 failed' "$bin/verify" --reference "$case" --kernel "$work/again" --all
expect 0 '"optional":true' "${ref[@]}" --describe --json
expect 0 'raw rate' "${ref[@]}" --describe
expect 0 'f32' "${ref[@]}" --random 2,2,12,4 --seed 3 --dtype f32 --form primal --out "$work/single"
expect 0 '"passed":true' "$bin/verify" --reference "$case" --kernel "$work/single" --json
expect 0 '12 outputs' "${ref[@]}" --inputs "$case" --intermediates --out "$work/more"
expect 1 'FAIL inner_prediction .*no tensor of the reference' "$bin/verify" --reference "$case" --kernel "$work/more"
expect 1 'FAIL output .*worst at batch [01], head [01], token [0-9]+, feature [0-3]' "$bin/verify" --reference "$case" --kernel "$work/single" --tolerance 1e-12
expect 0 'chunks of 4' "${ref[@]}" --inputs "$case" --policy chunk=4 --out "$work/chunked"
expect 1 'FAIL output .*tokens 1 to 11' "$bin/verify" --reference "$case" --kernel "$work/chunked"
expect 1 "there is no 'forget', expected f64" "$bin/reference" --system gated-delta-net --inputs "$case" --out "$work/x"
expect 1 'compute in f64' "${ref[@]}" --inputs "$case" --dtype f32 --out "$work/x"
expect 2 'parallel is impossible' "${ref[@]}" --random 1,1,4,2 --form parallel --out "$work/x"
expect 2 'whole chunks' "${ref[@]}" --random 1,1,8,2 --policy chunk=4 --state-every 6 --out "$work/x"
expect 1 'missing.st' "${ref[@]}" --inputs "$work/missing.st" --out "$work/x"
"${ref[@]}" --random 1,1,4,4 --gates raw --out "$work/raw" > /dev/null
expect 1 'was written with --gates raw' "${ref[@]}" --inputs "$work/raw" --out "$work/x"
expect 0 '' "${ref[@]}" --inputs "$work/raw" --gates raw --out "$work/x"
"${ref[@]}" --random 1,1,4,4 --policy chunk=2 --out "$work/pairs" > /dev/null
expect 1 'was written with --policy chunk=2' "${ref[@]}" --inputs "$work/pairs" --out "$work/x"
expect 2 'wants a folder or a file' "$bin/train_lm" --from ''
expect 1 'missing.st' "$bin/verify" --reference "$case" --kernel "$work/missing.st"
expect 1 'text.txt' "$bin/verify" --reference "$text" --kernel "$case"
expect 2 'not in' "$bin/reference" --system nothing --describe
expect 2 "did you mean 'chunk'" "${ref[@]}" --describe --policy chnk=4
expect 2 '--inputs: wants a FILE, or give --random' "${ref[@]}" --out "$work/x"
expect 2 'name of the file to write' "${ref[@]}" --random 1,1,4,2
expect 2 'excludes' "${ref[@]}" --random 1,1,4,2 --inputs "$case" --out "$work/x"
expect 2 'random' "${ref[@]}" --random 1,1,4 --out "$work/x"
expect 2 'random' "${ref[@]}" --random 1,1,0,4 --out "$work/x"
expect 2 'tolerance' "$bin/verify" --reference "$case" --kernel "$case" --tolerance 0
expect 2 'reads, draws and writes no numbers' "${ref[@]}" --describe --inputs "$case"
expect 2 'reads, draws and writes no numbers' "${ref[@]}" --describe --seed 1
expect 2 'requires --random' "${ref[@]}" --inputs "$case" --random-start --out "$work/x"
expect 2 'nothing is drawn' "${ref[@]}" --inputs "$case" --seed 1 --out "$work/x"
expect 2 'no position rates' "${ref[@]}" --random 1,1,4,2 --base-lr 2 --out "$work/x"
expect 2 'finite' "$bin/reference" --system ttt-linear --random 1,1,4,2 --base-lr nan --out "$work/x"
expect 2 'not negative' "${ref[@]}" --random 1,1,4,2 --seed -1 --out "$work/x"
expect 2 'given twice' "${ref[@]}" --describe --policy chunk=4,chunk=8
expect 2 'beside a comma' "${ref[@]}" --describe --policy ,
expect 2 'names of weights' "${ref[@]}" --describe --policy trained=
expect 2 'positive definite' "$bin/reference" --system mesa-net --describe --policy ascent=true
expect 2 'even' "$bin/reference" --system ttt-linear --random 1,1,4,3 --out "$work/x"
expect 2 '^train_lm: --lr: -1: expected a number above 0; see --help$' "$bin/train_lm" --lr -1
expect 2 '^generate: --temperature: -1: expected 0 or a number above it; see --help$' "$bin/generate" --checkpoint "$work/x" --temperature -1
expect 2 'finite' "$bin/generate" --checkpoint "$work/x" --temperature nan
expect 2 'too large' "$bin/generate" --checkpoint "$work/x" --bytes 99999999999999999999
expect 0 '"out":".*odd' "${ref[@]}" --random 1,1,4,2 --out "$work/odd"$'\xff' --json
expect 0 'update +W <- ' "${ref[@]}" --describe
expect 0 'softplus' "$bin/reference" --system mesa-net --describe
expect 0 '1e-05 added' "$bin/reference" --system mesa-net --describe

# Piped progress is plain lines.
checks=$((checks + 1))
"${run[@]}" --out "$work/plain" 2>&1 | grep -q $'\r' && fail "a carriage return in piped output"

echo "$((checks - failures)) checks passed, $failures failed"
[ "$failures" = 0 ]
