# Training: exact resume, and nothing that was saved is lost. (A part of programs.sh.)
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
whole=$work/ttt-linear-transformer-whole
run=("$bin/train_lm" "${small[@]}" --steps 6)
expect 0 'report' "${run[@]}" --checkpoint-every 2 --out "$work/every"
cmp -s <(tail -c 2000 "$whole/checkpoint.safetensors") <(tail -c 2000 "$work/every/checkpoint.safetensors") || fail "a checkpoint schedule changed the result"
expect 1 'a memory budget of 100 bytes is too small.* \([0-9.]+ MB\); give at least that' "${run[@]}" --memory-budget 0.0001 --out "$work/budget"
least=$("${run[@]}" --memory-budget 0.0001 --out "$work/budget" 2>&1 | sed 's/.* (\([0-9.]*\) MB).*/\1/')
expect 0 'report' "${run[@]}" --memory-budget "$least" --out "$work/budget"

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
expect 1 'none: there is no such folder or file' "$bin/train_lm" --from "$work/none" --out "$work/other"

# Nothing that was saved is lost.
cp "$whole/checkpoint.safetensors" "$work/saved"
expect 1 'already holds' "${run[@]}" --out "$whole"
expect 1 'another model' "${run[@]}" --resume --out "$whole" --learner ttt-mlp
expect 1 'another model' "${run[@]}" --resume --out "$whole" --backbone mamba
expect 1 'written with' "${run[@]}" --resume --out "$whole" --seed 7
expect 1 'written with batch = 2, this run has 3; resume' "${run[@]}" --resume --out "$whole" --batch 3
cp "$text" "$work/edited.txt"; printf x >> "$work/edited.txt"
expect 1 'other text' "${run[@]}" --resume --out "$whole" --data "$work/edited.txt"
touch "$whole/.nestgrad-1-1.tmp"
exec {lock}< "$whole"; flock -n "$lock"
expect 1 'in use by another process' "${run[@]}" --resume --out "$whole"
exec {lock}<&-
speed() { sed -E 's/.*"tokens_per_second":([0-9.e+-]+).*/\1/' <<< "$1"; }
"${run[@]}" --resume --out "$whole" --json > "$work/log" 2>&1 || fail "a finished run is not resumed"
[ "$(speed "$(tail -1 "$work/log")")" = "$(speed "$(tail -1 "$whole/metrics.jsonl")")" ] ||
  fail "a finished run that is resumed has another speed"
grep -q ' since step ' "$whole/report.html" || fail "the page does not say which steps its time is of"
# Windows longer than all that is read; a sample that takes more memory than there is leaves the rest as it is.
expect 0 'report' "$bin/train_lm" "${small[@]}" --attention-window 8388609 --steps 2 --out "$work/endless-window"
expect 0 'no sample was written: .*larger than any memory' "$bin/train_lm" "${small[@]}" --mini-batch 16777216 --steps 2 --out "$work/no-sample"
grep -q 'larger than any memory' "$work/no-sample/report.html" || fail "the page does not say why there is no sample"
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
