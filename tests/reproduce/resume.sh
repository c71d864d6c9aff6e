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

# Until a run is kept there is nothing to resume from; after that, killed at two moments.
call=("$bin/reproduce" ascent --quick --out "$work/parts")
"${call[@]}" >"$work/log" 2>&1 &
for wait in $(seq 600); do [ -e "$work/parts/ascent/results.jsonl" ] && break; sleep 0.1; done
sleep 0.7
kill -9 $!
wait $! 2>/dev/null
"${call[@]}" --resume >"$work/log" 2>&1 &
sleep 5
kill -9 $!
wait $! 2>/dev/null
[ ! -e "$work/parts/ascent/page.html" ] || fail "it had ended before it was killed: this shows nothing"
"${call[@]}" --resume >"$work/log" 2>&1 || fail "$(cat "$work/log")"
cmp "$work/whole/ascent/page.html" "$work/parts/ascent/page.html" || fail "the page of the resumed run is another"
find "$work/parts" -name '.nestgrad-*' | grep -q . && fail "temporary files are left"
echo "resumed: the same page"
