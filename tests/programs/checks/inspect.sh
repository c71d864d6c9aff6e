# inspect, of whatever has an inner loop. (A part of programs.sh.)
# inspect: of a learner, and of a layer of what was trained above.
looks=("$bin/inspect" --tokens 8)
expect 0 '"holds":true' "${looks[@]}" --learner delta-net --dim 4 --out "$work/inspected" --json
expect 0 'layer 0 of a ttt-linear language model' "${looks[@]}" --checkpoint "$whole" --data "$text" --token 3 --out "$work/layer"
for folder in inspected layer; do
  for file in report.html graph.dot graph.txt trace.json summary.jsonl views/channel_gradient.npy views/by-step-1.svg; do
    [ -s "$work/$folder/$file" ] || fail "inspect: no $folder/$file"
  done
done
expect 2 '--checkpoint: wants a DIR, or give --learner NAME' "$bin/inspect"
expect 2 'excludes' "$bin/inspect" --learner delta-net --checkpoint "$whole"
expect 2 'there are 8 tokens' "${looks[@]}" --learner delta-net --token 8
expect 2 'learner' "$bin/inspect" --learner nothing
expect 2 'checkpoint' "${looks[@]}" --learner delta-net --layer 1
expect 2 'layer: the model has' "${looks[@]}" --checkpoint "$whole" --data "$text" --layer 5
expect 1 'no inner loop' "${looks[@]}" --checkpoint "$work/attention-mamba-whole" --data "$text"
expect 1 'there is no such file or folder' "${looks[@]}" --checkpoint "$work/none"
expect 1 'text.txt/out' "${looks[@]}" --learner delta-net --dim 4 --out "$text/out"
# .. no page in place of that of a run, none of more tokens than it can show, and none of numbers that are none.
cp "$whole/report.html" "$work/report-before.html"
expect 1 'holds checkpoint.safetensors, and an inspection' "${looks[@]}" --checkpoint "$whole" --data "$text" --out "$whole"
expect 1 'holds checkpoint.safetensors, and an inspection' "${looks[@]}" --learner delta-net --dim 4 --out "$whole"
same "$whole/report.html" "$work/report-before.html"
# .. and no run in place of a page or of a model.
cp "$work/layer/report.html" "$work/report-before.html"
expect 1 'layer holds report.html, and a training run' "${run[@]}" --out "$work/layer"
same "$work/layer/report.html" "$work/report-before.html"
[ ! -e "$work/layer/config.json" ] || fail "train_lm: writes into the folder of an inspection"
expect 1 'torch holds config.json, and a training run' "$bin/train_lm" "${small[@]}" --steps 1 --out "$work/torch"
same "$torch/config.json" "$work/torch/config.json"
expect 0 'report' "$bin/train_lm" "${small[@]}" --mini-batch 24 --steps 1 --out "$work/long-batches"
expect 2 '510 tokens are 528 in whole mini-batches of 24 \(mini_batch_size\).*ask for 504' "$bin/inspect" --checkpoint "$work/long-batches" --data "$text" --tokens 510 --out "$work/long"
expect 2 '512 tokens are 1000 in whole mini-batches of 500' "$bin/inspect" --learner ttt-linear --tokens 512 --chunk 500 --out "$work/long"
spoil() { truncate -s -4 "$1"; printf '\377\377\377\377' >> "$1"; }  # the last number becomes a NaN
cp -r "$torch" "$work/spoilt"; spoil "$work/spoilt/model-00002-of-00002.safetensors"
expect 1 "spoilt: '[a-z._0-9]+' holds -?nan at its number" "${looks[@]}" --checkpoint "$work/spoilt" --data "$text" --out "$work/spoilt-page"
expect 1 "spoilt: '[a-z._0-9]+' holds -?nan at its number" "$bin/train_lm" --from "$work/spoilt" --data "$text" --out "$work/spoilt-run"

# .. of a model of images: a drawn character, and an image of a folder in another size.
"$bin/07_images" "$work/images" > "$work/log" 2>&1 || fail "07_images"
"$bin/07_images" "$work/images" > "$work/log" 2>&1 || fail "07_images: a model of images in the place of one"
expect 0 '"holds":true' "$bin/inspect" --checkpoint "$work/images" --image 4 --out "$work/patches" --json
for file in report.html summary.jsonl views/image.npy views/patches-2.svg; do
  [ -s "$work/patches/$file" ] || fail "inspect: no patches/$file"
done
grep -q 'a drawn character, number 4' "$work/patches/report.html" || fail "inspect: the page does not say which image"
expect 0 'block 0 of a vision transformer with t5-swiglu' "$bin/inspect" --checkpoint "$work/images/model.safetensors" --out "$work/patches"
expect 2 'layer: the model has 1, counted from 0' "$bin/inspect" --checkpoint "$work/images" --layer 1
expect 2 'there are 49 tokens' "$bin/inspect" --checkpoint "$work/images" --token 49
expect 2 'is for text' "$bin/inspect" --checkpoint "$work/images" --tokenizer "$text"
expect 2 'is for a model of images' "${looks[@]}" --checkpoint "$whole" --data "$text" --image 1
expect 1 'image folder' "$bin/inspect" --checkpoint "$work/images" --data "$work/none"
expect 1 'there is no PNG file' "$bin/inspect" --checkpoint "$work/images" --data "$work/patches"
mkdir -p "$work/faces/one"
base64 -d > "$work/faces/one/pixel.png" <<< iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==
expect 1 'has 1 class, the model 10' "$bin/inspect" --checkpoint "$work/images" --data "$work/faces"

mkfifo "$work/faces/one/two.png"
expect 1 'two.png: it is a pipe' timeout 60 "$bin/inspect" --checkpoint "$work/images" --data "$work/faces"
cp -r "$work/images" "$work/images-spoilt"; spoil "$work/images-spoilt/model.safetensors"
expect 1 "images-spoilt: '[a-z._0-9]+' holds -?nan at its number" "$bin/inspect" --checkpoint "$work/images-spoilt" --out "$work/spoilt-page"

# .. of models of diffusion and of views: an image with noise, and a drawn scene.
"$bin/small_models" "$work/small" || fail "small_models"
looks_small() { "$bin/inspect" --out "$work/small/page" --checkpoint "$@"; }
expect 0 '"holds":true' looks_small "$work/small/diffusion" --image 3 --layer 1 --json
grep -q 'noise level 20 of 40' "$work/small/page/report.html" || fail "inspect: the page does not say which noise"
expect 0 'block 0 of a diffusion transformer with t5-diffusion' looks_small "$work/small/diffusion" --level 3
expect 2 'the model has 40, counted from 0' looks_small "$work/small/diffusion" --level 40
expect 0 '"holds":true' looks_small "$work/small/views" --image 3 --layer 1 --json
grep -q 'view 5 as made, PSNR' "$work/small/page/report.html" || fail "inspect: the page does not show the views that were made"
[ -s "$work/small/page/views/images.npy" ] || fail "inspect: no images.npy"
expect 0 'block 0 of a model of views with baseline' looks_small "$work/small/views/model.safetensors"
expect 2 'looks at drawn scenes' looks_small "$work/small/views" --data "$work/faces"
expect 2 'this is a model of views' looks_small "$work/small/views" --level 3
expect 2 'this is a vision transformer' looks_small "$work/images" --level 3
expect 2 'is for a model of images' looks_small "$whole" --data "$text" --level 1
expect 1 'without an update there is no inner loop' looks_small "$work/small/no-update"

# .. and of a model that learns as a whole.
"$bin/train_lm" --data "$text" --learner ttt-e2e --steps 3 --batch 2 --context 16 --width 16 --layers 2 --mini-batch 4 \
  --inner-rate-warmup 2 --inner-rate-start 0.5 --out "$work/e2e" > "$work/log" 2>&1 || fail "train_lm --learner ttt-e2e"
grep -q '"ilr_warmup_steps": 2' "$work/e2e/config.json" || fail "the ramp of the inner rate is not in the configuration"
expect 0 '"holds":true' "${looks[@]}" --checkpoint "$work/e2e" --data "$text" --out "$work/whole" --json
for file in report.html summary.jsonl views/step_norm.npy views/by-step-1.svg; do
  [ -s "$work/whole/$file" ] || fail "inspect: no whole/$file"
done
[ ! -e "$work/whole/graph.dot" ] || fail "inspect: an empty graph.dot"
expect 2 'the whole model learns' "${looks[@]}" --checkpoint "$work/e2e" --data "$text" --layer 0
expect 2 'ilr_warmup_steps' "$bin/train_lm" --data "$text" --inner-rate-warmup 5 --out "$work/other"
expect 2 'longer than the training' "$bin/train_lm" --data "$text" --learner ttt-e2e --steps 3 --inner-rate-warmup 5 --out "$work/other"
