# What programs print may have no reader. (A part of programs.sh.)
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
for call in learners 'learners explain delta-net' reproduce 'reproduce --json'; do
  expect 1 '^[a-z0-9_]+: error: standard output cannot be written$' streamed "" '>/dev/full' "$bin/"$call
done
# Whoever reads them may go.
expect 0 '' bash -c '"$@" 2>&1 >/dev/null | true; exit "${PIPESTATUS[0]}"' left "${tiny[@]}" --out "$work/stream-left"
same "$work/stream-1/checkpoint.safetensors" "$work/stream-left/checkpoint.safetensors"
expect 1 'standard output cannot be written' streamed "" '>&-' "${tiny[@]}" --out "$work/stream-closed"
same "$work/stream-1/checkpoint.safetensors" "$work/stream-closed/checkpoint.safetensors"
