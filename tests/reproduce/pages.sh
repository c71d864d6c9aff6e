#!/usr/bin/env bash
# Writes the pages of quick runs that are kept, without making a run: the program goes on with what it finds. Then opens
# those with pictures of images in a browser. pages.sh BIN KEPT OUT PAGE.PY
set -u
bin=$1 kept=$2 out=$3 look=$4
fail() { echo "FAIL: $*"; exit 1; }
rm -rf "$out"
for runs in "$kept"/*.jsonl; do
  name=$(basename "$runs" .jsonl)
  mkdir -p "$out/$name" && cp "$runs" "$out/$name/results.jsonl"
  "$bin/reproduce" "$name" --quick --resume --out "$out" >"$out/$name/log" 2>&1 || fail "$(cat "$out/$name/log")"
  cmp -s "$runs" "$out/$name/results.jsonl" || fail "$name: a run was made again, or is kept otherwise"
  [ -s "$out/$name/page.html" ] || fail "$name has no page"
done
skipped=0
for name in t5 classification views generation shift rotation; do
  [ -e "$out/$name/page.html" ] || fail "no runs of $name are kept"
  "$look" "$out/$name/page.html" "$out/$name" || { code=$?; [ $code = 77 ] && skipped=1 || fail "the page of $name"; }
done
[ $skipped = 0 ] || echo "SKIPPED: no browser"
echo "pages: $(ls "$out" | tr '\n' ' ')"
