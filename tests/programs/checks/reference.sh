# Numbers that are held to others: verify_golden, reference and verify. (A part of programs.sh.)
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
"$bin/reference" --system ttt-mlp --random 1,1,4,4 --gates raw --base-lr 0.1 --out "$work/raw" > /dev/null
expect 1 'was written with --base-lr 0.1' "$bin/reference" --system ttt-mlp --inputs "$work/raw" --gates raw --out "$work/x"
expect 0 '' "$bin/reference" --system ttt-mlp --inputs "$work/raw" --gates raw --base-lr 0.1 --out "$work/x"
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
odd=$work/file-$escape
cp "$case" "$odd"
for call in "verify_golden $odd" "verify --reference $case --kernel $odd"; do
  checks=$((checks + 1))
  said=$("$bin/"$call 2>&1)
  grep -q $'\e' <<<"$said" && fail "an escape sequence is printed: $call"
  grep -qE 'REFUSED not a golden file|compared; of all tensors 0 failed' <<<"$said" || fail "a file with an escape in its name is not read: $call: $said"
done
