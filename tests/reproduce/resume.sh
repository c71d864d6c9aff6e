#!/usr/bin/env bash
# An experiment that is killed and resumed has the page of one that was not, and the numbers that are kept. resume.sh BIN KEPT
set -u
bin=$1 kept=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL: $*"; exit 1; }

"$bin/reproduce" ascent --quick --check --expect "$kept/quick" --out "$work/whole" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
cat "$work/log"
[ -s "$work/whole/ascent/page.html" ] || fail "no page"

# Killed at two moments, once a run is kept. --resume from the first call on: another experiment has ended there, and this one has yet
# to begin.
mkdir -p "$work/parts/few-shot"
cp "$kept/quick/few-shot.jsonl" "$work/parts/few-shot/results.jsonl" || fail "no kept runs"
call=("$bin/reproduce" few-shot ascent --quick --resume --out "$work/parts")
"${call[@]}" >"$work/log" 2>&1 &
for wait in $(seq 600); do [ -e "$work/parts/ascent/results.jsonl" ] && break; sleep 0.1; done
sleep 0.7
kill -9 $!
wait $! 2>/dev/null
"${call[@]}" >"$work/log" 2>&1 &
sleep 5
kill -9 $!
wait $! 2>/dev/null
[ ! -e "$work/parts/ascent/page.html" ] || fail "it had ended before it was killed: this shows nothing"
"${call[@]}" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[ -s "$work/parts/few-shot/page.html" ] || fail "no page of the experiment that had ended"
cmp "$kept/quick/few-shot.jsonl" "$work/parts/few-shot/results.jsonl" || fail "the runs of the experiment that had ended are others"
cmp "$work/whole/ascent/page.html" "$work/parts/ascent/page.html" || fail "the page of the resumed run is another"
find "$work/parts" -name '.nestgrad-*' | grep -q . && fail "temporary files are left"
echo "resumed: the same page"
