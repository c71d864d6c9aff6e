# Programs answer, wrong calls are refused, and so are bad data. (A part of programs.sh.)
# (Examples without options are the text of a lecture, and look at no argument.)
examples=(01_grad_of_grad 02_inner_step 07_images)
for program in "${examples[@]}" inspect learners loops_ahead train_lm generate evaluate verify_golden reference verify reproduce; do
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
expect 1 'of-others holds config.json, and a training run' "$bin/train_lm" --data "$text" --width 16 --heads 2 --context 24 --batch 2 --steps 1 --out "$work/of-others"
grep -q 'not ours' "$work/of-others/config.json" || fail "a config.json of something else was written over"

# Experiments.
expect 0 '^ascent .*mirrored start' "$bin/reproduce"
expect 2 'NAME' "$bin/reproduce" nothing
expect 2 'excludes' "$bin/reproduce" ascent --quick --full
expect 2 'check: is about runs' "$bin/reproduce" --check
expect 2 'seeds' "$bin/reproduce" ascent --seeds 0
expect 2 'hold 1751477348' "$bin/reproduce" ascent --first-seed 1751477347 --out "$work/not-begun"
expect 2 'ascent has no models of images' "$bin/reproduce" ascent --models "$work/models" --out "$work/reproduce-2"
expect 1 'no results to go on from' "$bin/reproduce" ascent --resume --out "$work/reproduce"
mkdir -p "$work/reproduce/ascent"; echo '{"experiment": "ascent"' > "$work/reproduce/ascent/results.jsonl"
expect 1 'already holds results' "$bin/reproduce" ascent --out "$work/reproduce"
expect 1 'ascent already holds results' "$bin/reproduce" ladder-ttt ascent --out "$work/reproduce"
[ ! -e "$work/reproduce/ladder-ttt" ] || fail "reproduce: one experiment began although another cannot"
expect 1 'line 1: is no JSON object' "$bin/reproduce" ascent --resume --out "$work/reproduce"
printf '%s\n' '{"experiment":"ascent","extent":"full","seeds":2,"first_seed":0,"data":"","fingerprint":"","machine":"","date":""}' > "$work/reproduce/ascent/results.jsonl"
expect 1 'holds results --full' "$bin/reproduce" ascent --quick --resume --out "$work/reproduce"
grep -q '"full"' "$work/reproduce/ascent/results.jsonl" || fail "a refused resume changed the results"
expect 2 'recall draws its own data' "$bin/reproduce" recall --data "$text" --out "$work/reproduce-2"
expect 1 'no folder|images|idx' "$bin/reproduce" ascent t5 --data "$text" --out "$work/reproduce-3"
[ ! -e "$work/reproduce-3" ] || fail "an experiment was begun whose companion has no data"
expect 1 'missing.txt' "$bin/reproduce" ascent --data "$work/missing.txt" --out "$work/reproduce-2"
expect 1 'no runs are kept there' "$bin/reproduce" --report --kept "$work/reproduce" --page "$work/none/page.md"
mkdir "$work/kept-runs"; cp "$work/reproduce/ascent/results.jsonl" "$work/kept-runs/recall.jsonl"
expect 1 'recall.jsonl, line 1: these are runs of .ascent., and not of recall' "$bin/reproduce" --report --kept "$work/kept-runs" --page "$work/page.md"

# Bad data.
: > "$work/empty.txt"; echo hi > "$work/tiny.txt"; mkdir "$work/no-text"; printf 'a\0b' > "$work/no-text/binary"
expect 1 'is empty; give a file with text' "$bin/train_lm" --data "$work/empty.txt" --out "$work/x"
expect 1 'at least|smaller|needs' "$bin/train_lm" --data "$work/tiny.txt" --out "$work/x"
expect 1 'holds no text; give a folder' "$bin/train_lm" --data "$work/no-text" --out "$work/x"
mkfifo "$work/pipe"
for endless in "$work/pipe" /dev/zero; do expect 1 'device or a pipe' "$bin/train_lm" --data "$endless" --out "$work/x"; done
expect 1 'missing.txt' "$bin/train_lm" --data "$work/missing.txt" --out "$work/x"
expect 1 'text.txt/out' "$bin/train_lm" "${small[@]}" --steps 1 --out "$text/out"
