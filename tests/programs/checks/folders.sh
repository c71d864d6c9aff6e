# Which files of a folder may be replaced: those that the same kind of run wrote, and no others. (A part of programs.sh.)
expect_kept() { # FILE COMMAND...: refused, by the name of the file, which stays as it is, and so does all beside it
  local file=$1 folder; folder=$(dirname "$file")
  cp "$file" "$work/kept"; ls -R "$folder" > "$work/listed"
  expect 1 "holds $(basename "$file"), and .*; choose another (--out|--models|FOLDER), or move it away" "${@:2}"
  same "$file" "$work/kept"
  ls -R "$folder" | cmp -s - "$work/listed" || fail "what was refused changed $folder: ${*:2}"
}
foreign() { # FOLDER NAME: a folder with this file of someone else
  rm -rf "$1"; mkdir -p "$1"; echo 'not ours' > "$1/$2"
}
begin=("$bin/train_lm" "${small[@]}" --steps 6 --save-every 4)
for name in metrics.jsonl config.json report.html loss_by_position.svg inner_loss.0.svg nonfinite.safetensors; do
  foreign "$work/foreign" "$name"
  expect_kept "$work/foreign/$name" "${begin[@]}" --out "$work/foreign"
done
# A run that has ended has something to lose, wherever its checkpoint is.
cp -r "$whole" "$work/moved"; mv "$work/moved/checkpoint.safetensors" "$work/elsewhere.safetensors"
expect_kept "$work/moved/inner_loss.layers.0.svg" "${run[@]}" --out "$work/moved"
rm "$work/moved"/*.svg; expect_kept "$work/moved/metrics.jsonl" "${begin[@]}" --out "$work/moved"
rm "$work/moved/metrics.jsonl"; expect_kept "$work/moved/report.html" "${begin[@]}" --out "$work/moved"
# .. one that was killed before its first checkpoint has not: it begins with the same command.
expect 0 'stopped after 6' "${begin[@]}" --steps 9 --stop-after 6 --out "$work/killed"
rm "$work/killed/checkpoint.safetensors"
expect_kept "$work/killed/metrics.jsonl" "${begin[@]}" --out "$work/killed"
head -n 4 "$work/killed/metrics.jsonl" > "$work/four"; cp "$work/four" "$work/killed/metrics.jsonl"; touch "$work/killed/.nestgrad-1-1.tmp"
expect 0 'report' "${begin[@]}" --out "$work/killed"
expect 0 'report' "${begin[@]}" --out "$work/not-killed"
same "$work/killed/checkpoint.safetensors" "$work/not-killed/checkpoint.safetensors"
# .. a checkpoint may be a link to where there is no file yet.
mkdir -p "$work/linked" "$work/store"; ln -s ../store/kept "$work/linked/checkpoint.safetensors"
expect 0 'report' "${begin[@]}" --out "$work/linked"
[ -L "$work/linked/checkpoint.safetensors" ] || fail "a link has become a file"
same "$work/store/kept" "$work/not-killed/checkpoint.safetensors"
# .. what cannot be written in the end is found before the first step.
mkdir -p "$work/blocked/loss_by_position.svg"
expect 1 'holds loss_by_position.svg' "${begin[@]}" --out "$work/blocked"
cp -r "$whole" "$work/blocked-on"; rm "$work/blocked-on/report.html"; mkdir "$work/blocked-on/report.html"
expect 1 'report.html: Is a directory' "${run[@]}" --steps 8 --resume --out "$work/blocked-on"
same "$whole/checkpoint.safetensors" "$work/blocked-on/checkpoint.safetensors"

# inspect.
page=("$bin/inspect" --tokens 4 --learner delta-net --dim 4)
for name in graph.txt graph.dot trace.json summary.jsonl report.html metrics.jsonl config.json; do
  foreign "$work/foreign" "$name"
  expect_kept "$work/foreign/$name" "${page[@]}" --out "$work/foreign"
done
mkdir "$work/foreign/views"; rm "$work/foreign/config.json"; echo 'not ours' > "$work/foreign/views/memory.npy"
expect 1 'holds views, and an inspection' "${page[@]}" --out "$work/foreign"
grep -q 'not ours' "$work/foreign/views/memory.npy" || fail "inspect: a file in views was replaced"
# .. a page of another model leaves nothing beside the new one, and what others put there stays.
expect 0 'report' "${page[@]}" --out "$work/pages"
expect 0 'report' "${page[@]}" --out "$work/pages"
echo 'not ours' > "$work/pages/views/notes.npy"
"$bin/train_lm" --data "$text" --learner ttt-e2e --steps 1 --batch 1 --context 16 --width 16 --layers 2 --mini-batch 4 --out "$work/pages-e2e" > "$work/log" 2>&1 || fail "train_lm --learner ttt-e2e"
"$bin/train_lm" --data "$text" --learner ttt-e2e --attention-window 64 --steps 2 --batch 1 --context 16 --width 16 --layers 2 --mini-batch 4 \
  --out "$work/pages-e2e" --resume > "$work/log" 2>&1 || fail "train_lm --learner ttt-e2e --resume with the window that it has"
expect 0 'report' "$bin/inspect" --tokens 8 --checkpoint "$work/pages-e2e" --data "$text" --out "$work/pages"
expect 0 'report' "$bin/inspect" --tokens 8 --checkpoint "$work/pages-e2e" --data "$text" --out "$work/pages-alone"
checks=$((checks + 1))
diff <(cd "$work/pages" && find . -type f | grep -v notes.npy | sort) <(cd "$work/pages-alone" && find . -type f | sort) || fail "inspect: files of an earlier page are beside the new one"
grep -q 'not ours' "$work/pages/views/notes.npy" || fail "inspect: a file of someone else is gone"
# .. one process at a time; what a killed one left is cleared away.
touch "$work/pages/.nestgrad-1-1.tmp" "$work/pages/views/.nestgrad-1-1.tmp"
exec {lock}< "$work/pages"; flock -n "$lock"
expect 1 'in use by another process' "${page[@]}" --out "$work/pages"
exec {lock}<&-
expect 0 'report' "${page[@]}" --out "$work/pages"
find "$work/pages" -name '*.tmp' | grep -q . && fail "inspect: what a killed run left behind is still there"
# .. a folder that cannot be written is found before anything is computed.
mkdir -p "$work/blocked-page/graph.txt"
expect 1 'holds graph.txt' "${page[@]}" --out "$work/blocked-page"
expect 1 'text.txt/out: cannot be created' "${page[@]}" --out "$text/out"
"${page[@]}" --out "$text/out" 2>&1 | grep -q 'inner losses' && fail "inspect: computed before the folder was tried"
expect 1 'cannot write .*/none/out' "$bin/reference" --system delta-net --random 1,1,4,2 --out "$work/none/out"

# reproduce, and models of images.
foreign "$work/foreign/ascent" page.html
expect_kept "$work/foreign/ascent/page.html" "$bin/reproduce" ascent --quick --out "$work/foreign"
foreign "$work/foreign-models/views/lact-0" config.json
expect_kept "$work/foreign-models/views/lact-0/config.json" "$bin/reproduce" views --quick --out "$work/not-begun" --models "$work/foreign-models"
for name in config.json model.safetensors; do
  foreign "$work/foreign" "$name"
  expect_kept "$work/foreign/$name" "$bin/07_images" "$work/foreign"
done
expect_kept "$whole/checkpoint.safetensors" "$bin/07_images" "$whole"
same "$whole/config.json" "$work/ttt-linear-transformer-parts/config.json"
expect 2 'see --help' "$bin/07_images" "$work/a" "$work/b"
[ ! -e --help ] && [ ! -e --no-such-option ] || fail "an option was taken for a folder"
