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

# Killed at two moments, each once a run is kept. --resume from the first call on: another experiment has ended there, and this one has
# yet to begin. Between the two all but four of the other runs are put beside the kept one, as if they had been made.
mkdir -p "$work/parts/few-shot"
cp "$kept/quick/few-shot.jsonl" "$work/parts/few-shot/results.jsonl" || fail "no kept runs"
call=("$bin/reproduce" few-shot ascent --quick --resume --out "$work/parts")
runs=$work/parts/ascent/results.jsonl
lines() { if [ -e "$runs" ]; then wc -l <"$runs"; else echo 0; fi; }

# NUMBER: a call that is killed soon after the kept runs have that many lines.
killed_at() {
  "${call[@]}" >"$work/log" 2>&1 &
  for _ in $(seq 1200); do [ "$(lines)" -ge "$1" ] && break; sleep 0.1; done
  sleep 0.7
  kill -9 $!
  wait $! 2>/dev/null
  [ "$(lines)" -ge "$1" ] || fail "no run was kept in two minutes"
  [ ! -e "$work/parts/ascent/page.html" ] || fail "it had ended before it was killed: this shows nothing"
}
killed_at 2
awk -F '"numbers"' 'NR == FNR { made[$1] = 1; next } FNR > 1 && !($1 in made)' "$runs" "$work/whole/ascent/results.jsonl" |
  head -n -4 >>"$runs"
killed_at $(($(lines) + 1))
"${call[@]}" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[ -s "$work/parts/few-shot/page.html" ] || fail "no page of the experiment that had ended"
cmp "$kept/quick/few-shot.jsonl" "$work/parts/few-shot/results.jsonl" || fail "the runs of the experiment that had ended are others"
cmp "$work/whole/ascent/page.html" "$work/parts/ascent/page.html" || fail "the page of the resumed run is another"
find "$work/parts" -name '.nestgrad-*' | grep -q . && fail "temporary files are left"
echo "resumed: the same page"
