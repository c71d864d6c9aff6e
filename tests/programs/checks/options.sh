# What options take, in every program. (A part of programs.sh.)
# Decimal digits alone: 010 is ten, and what is no integer is told so.
wrong=("$bin/train_lm" --data "$work/none" --out "$work/octal")
for text_of_number in 1e3 0x10 1.5 true 0b1 '+' ' 5'; do
  expect 2 "^train_lm: --steps: .*: wants an integer" "${wrong[@]}" --steps "$text_of_number"
done
expect 2 'steps: 0: expected a number above 0' "${wrong[@]}" --steps 00
expect 2 'seed: -1: expected a number that is not negative' "${wrong[@]}" --seed=-1
expect 2 'tokens: 1e2: wants an integer' "$bin/inspect" --learner delta-net --tokens 1e2
expect 2 'layer: 0x1: wants an integer' "$bin/inspect" --checkpoint "$work/none" --layer 0x1
expect 2 'random: 1,1e1,4,2: wants four integers' "$bin/reference" --system delta-net --random 1,1e1,4,2 --out "$work/x"
expect 0 'stopped after 8 of 10' "$bin/train_lm" "${small[@]}" --steps=010 --stop-after 08 --out "$work/ten"
expect 0 'policy +chunks of 16' "$bin/learners" explain ttt-linear --length 0128 --chunk 016
"$bin/reference" --system delta-net --random 01,1,010,2 --seed=010 --out "$work/ten.st" > /dev/null || fail "reference --seed=010"
"$bin/reference" --system delta-net --random 1,1,10,2 --seed 10 --out "$work/10.st" > /dev/null || fail "reference --seed 10"
same "$work/ten.st" "$work/10.st"

# Of an option that is given twice the last holds; a wrong value is shown alone.
expect 0 'raw rate' "$bin/reference" --system mesa-net --system delta-net --describe --describe --gates raw --gates effective
"$bin/reference" --system delta-net --random 2,2,2,2 --random 1,1,10,2 --seed 3 --seed 10 --out "$work/x" --out "$work/twice.st" > /dev/null || fail "reference: options given twice"
same "$work/twice.st" "$work/10.st"
[ ! -e "$work/x" ] || fail "reference wrote the file that was named first"
expect 2 '^inspect: --tokens: x: wants an integer.*; see --help$' "$bin/inspect" --learner delta-net --tokens 8 --tokens x
expect 2 '^train_lm: --steps: x: wants an integer.*; see --help$' "$bin/train_lm" --steps 8 --steps x
expect 2 '^verify: --tolerance: -1: expected a number above 0; see --help$' "$bin/verify" --reference "$text" --kernel "$text" --tolerance 1 --tolerance -1
expect 0 'PASS' "$bin/verify_golden" --tolerance 1e-20 --tolerance 1e-9 "$data/golden/ttt_linear_transformer.safetensors"
expect 0 '"passed":true' "$bin/verify" --reference "$text" --reference "$work/10.st" --kernel "$text" --kernel "$work/ten.st" --json --json
expect 0 '"holds":true' "$bin/inspect" --learner lact --learner delta-net --tokens 9 --tokens 4 --dim 4 --out "$work/x" --out "$work/twice" --json
[ -s "$work/twice/report.html" ] && [ ! -e "$work/x" ] || fail "inspect: --out given twice"
expect 0 'policy +.*chunks? of 8' "$bin/learners" explain ttt-linear --chunk 4 --chunk 8
# .. but of a list of fixed length, which is as long as it has to be.
for sizes in 1,1,4 1,1,4,2,2 1,1,,2 1,1,4,2, 1,1,0,2 1,1,4,2x 1,1,4,2000000000; do
  expect 2 "random: $sizes: wants four integers" "$bin/reference" --system delta-net --random "$sizes" --out "$work/x"
done
for point in '1 2' '1 2 3 4' '1 2 x' '1 2 3 --x 4 5'; do expect 2 'see --help' "$bin/01_grad_of_grad" --x $point; done

# Nothing in place of a path is a wrong call, whatever the option.
empty() { expect 2 "$1: (wants a folder or a file|must not be empty); see --help" "$bin/$2" "${@:3}" "$1" ""; }
for option in --out --data --from; do empty "$option" train_lm; done
for option in --out --data --checkpoint; do empty "$option" inspect; done
empty --checkpoint generate --prompt x
for option in --checkpoint --data; do empty "$option" evaluate --checkpoint "$work/none"; done
for option in --inputs --out; do empty "$option" reference --system delta-net; done
for option in --reference --kernel; do empty "$option" verify --reference "$work/none" --kernel "$work/none"; done
for option in --out --data --models --expect --against; do empty "$option" reproduce ascent; done
for option in --kept --page; do empty "$option" reproduce --report; done
empty --out loops_ahead
empty --dot 01_grad_of_grad
expect 2 'FOLDER: (wants a folder or a file|must not be empty)' "$bin/07_images" ""
expect 2 'files: must not be empty' "$bin/verify_golden" ""
expect 2 'policy: must not be empty' "$bin/reference" --system delta-net --describe --policy ""
for option in --page --kept; do expect 2 "$option requires --report" "$bin/reproduce" "$option" "$work/page.md"; done

# What is printed of a path has nothing in it that a terminal would obey.
escape=$'\e[31mred'
for call in "train_lm --data $work/$escape" "train_lm --data $text --out $text/$escape" "verify --reference $work/$escape --kernel $work/$escape" \
  "evaluate --checkpoint $work/$escape" "reproduce ascent --out $text/$escape" "inspect --learner delta-net --out $text/$escape" "07_images $text/$escape"; do
  checks=$((checks + 1))
  "$bin/"$call 2>&1 | grep -q $'\e' && fail "an escape sequence is printed: $call"
  "$bin/"$call 2>&1 | grep -qF '\x1b[31mred' || fail "a path is not shown: $call"
done
checks=$((checks + 1))
"$bin/train_lm" "${small[@]}" --steps 1 --out "$work/$escape" 2>&1 | grep -q $'\e' && fail "train_lm: an escape sequence is printed"
