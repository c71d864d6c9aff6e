# Programs that read a model: generate, evaluate, tokenizers, published weights. (A part of programs.sh.)
# generate.
gen=("$bin/generate" --checkpoint "$whole" --prompt "line 1" --bytes 40)
# What the command line says holds, whatever the environment asks for.
expect 0 '^line 1' env NESTGRAD_DEVICE=cuda:77 "${gen[@]}" --device cpu
expect 1 'cuda:77 was asked for' env NESTGRAD_DEVICE=cuda:77 "${gen[@]}"
# No more is made for a reader who has gone.
expect 1 'generate: error: standard output cannot be written' timeout 60 bash -c '"$@" | head -c 9 >/dev/null; exit "${PIPESTATUS[0]}"' left "${gen[@]}" --bytes 1000000000
expect 1 'empty.txt: the file is empty' "$bin/generate" --checkpoint "$work/empty.txt" --prompt x
expect 0 '^line 1' "${gen[@]}"
"${gen[@]}" --seed 3 > "$work/a"; "${gen[@]}" --seed 3 > "$work/b"; same "$work/a" "$work/b"
"${gen[@]}" --seed 4 > "$work/b"; [ -s "$work/a" ] || fail "generate: it writes nothing"; cmp -s "$work/a" "$work/b" && fail "generate: the seed changes nothing"
expect 0 '^line 1' "$bin/generate" --checkpoint "$work/attention-mamba-whole" --prompt "line 1" --bytes 20 --temperature 0
expect 1 'none: there is no such folder or file' "$bin/generate" --checkpoint "$work/none" --prompt x
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
expect 0 '' "${score[@]}" --segment 600
"${score[@]}" --segment 600 2>&1 | grep -q 'took' && fail "evaluate: a time that nobody has measured"
expect 0 'the validation part of .*/text.txt: 600 bytes, 599 tokens in segments of 24' "${score[@]}"
expect 0 '"data":".*/text.txt","part":"validation","bytes":600,"tokens":599' "${score[@]}" --json
expect 0 '^/.*/text.txt: [0-9]+ bytes.*' "${score[@]}" --all
expect 0 '"part":"all"' "${score[@]}" --all --json
for what in sgd norms lora; do expect 0 "\"adapt\":\"$what\".*\"no_look_ahead\"" "${score[@]}" --adapt "$what" --prove --json; done
"${score[@]}" --adapt sgd | grep -v segments > "$work/a"; "${score[@]}" --adapt sgd | grep -v segments > "$work/b"; same "$work/a" "$work/b"
[ -s "$work/a" ] || fail "evaluate --adapt: it writes nothing"
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
expect 1 'none: there is no such folder or file' "$bin/evaluate" --checkpoint "$work/none" --data "$text"
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
  printf 'the hidden state is the model' > "$work/kept-text"; printf 'the \377 hidden' > "$work/lost-text"
  for kept in true false; do
    name=kept; [ $kept = true ] || name=lost
    expect 0 "\"text_is_kept\":$kept" "$bin/evaluate" --checkpoint "$torch" --data "$work/$name-text" --all --json
  done
  expect 0 'loses a part of this text' "$bin/evaluate" --checkpoint "$torch" --data "$work/lost-text" --all
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
