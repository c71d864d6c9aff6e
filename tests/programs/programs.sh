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
  if [ "$code" = 1 ] && ! tail -n 1 <<<"$output" | grep -q 'error:'; then fail "something stands behind the error: $*: $output"; fi
}
same() { checks=$((checks + 1)); cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

text=$work/text.txt
for i in $(seq 400); do echo "line $i of a text that is long enough to be read"; done > "$text"
small=(--data "$text" --width 16 --layers 1 --heads 1 --context 24 --batch 2 --mini-batch 4 --validation-windows 4)

# Each part may use what those before it have trained.
for part in calls options streams training folders models inspect reference; do
  . "$(dirname "$0")/checks/$part.sh"
done

# Piped progress is plain lines.
checks=$((checks + 1))
"${run[@]}" --out "$work/plain" 2>&1 | grep -q $'\r' && fail "a carriage return in piped output"

echo "$((checks - failures)) checks passed, $failures failed"
[ "$failures" = 0 ]
