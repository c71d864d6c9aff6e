#!/usr/bin/env python3
"""docs/guide/training_run.md holds: a run's first step, made again from that page alone.

    training_run.py FOLDER_OF_PROGRAMS

Random numbers, where parameters start, the windows that validate, rates, and what AdamW makes of gradients. Gradients are
taken from the moments that the checkpoint holds. Standard library only.
"""

import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

CONTEXT, BATCH, WINDOWS, SEED, RATE, STEPS = 12, 2, 5, 5, 0.01, 70
WORD = 2**32
# Parameters that do not start normal, by the ends of their names.
CONSTANT = {"norm.weight": 1, "norm_weight": 1, "norm.bias": 0, "norm_bias": 0, "b1": 0, "lr_bias": 0, "token_idx": 0}


def philox(block, stream, seed):
    x = [block % WORD, block // WORD, stream % WORD, stream // WORD]
    key = [seed % WORD, seed // WORD]
    for _ in range(10):
        a, c = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(c >> 32) ^ x[1] ^ key[0], c % WORD, (a >> 32) ^ x[3] ^ key[1], a % WORD]
        key = [(key[0] + 0x9E3779B9) % WORD, (key[1] + 0xBB67AE85) % WORD]
    return x


def unit(a, b):
    return ((a >> 5) * 2**26 + (b >> 6)) / 2**53


def fnv1a(text):
    out = 0xCBF29CE484222325
    for byte in text.encode():
        out = (out ^ byte) * 0x100000001B3 % 2**64
    return out


def normal(count, name, seed):
    out = []
    for block in range((count + 1) // 2):
        w = philox(block, fnv1a(name), seed)
        r, angle = math.sqrt(-2 * math.log(1 - unit(w[0], w[1]))), 2 * math.pi * unit(w[2], w[3])
        out += [0.02 * r * math.cos(angle), 0.02 * r * math.sin(angle)]
    return out[:count]


def tensors_of(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        out[name] = array.array("f", data[8 + size + begin : 8 + size + end])
    return out


def bigram_losses(training, windows):
    """Of windows, under a bigram model that is drawn to bytes' own frequencies with each strength that there is."""
    pairs, firsts, bytes_ = {}, [0] * 256, [0] * 256
    for byte in training:
        bytes_[byte] += 1
    for a, b in zip(training, training[1:]):
        pairs[a, b] = pairs.get((a, b), 0) + 1
        firsts[a] += 1
    out = []
    for k in (2.0**e for e in range(-10, 21)):
        losses = []
        for window in windows:
            for a, b in zip(window, window[1:]):
                alone = (bytes_[b] + 1) / (len(training) + 256)
                losses.append(-math.log((pairs.get((a, b), 0) + k * alone) / (firsts[a] + k)))
        out.append(sum(losses) / len(losses))
    return out


def check(holds, what):
    print(("ok: " if holds else "FAILED: ") + what)
    if not holds:
        sys.exit(1)


def trained(program, text, out, *options):
    sizes = "--width 16 --layers 1 --heads 2 --mini-batch 4".split()
    numbers = f"--context {CONTEXT} --batch {BATCH} --validation-windows {WINDOWS} --seed {SEED} --steps {STEPS}".split()
    command = [program, "--data", text, "--out", out, "--lr", str(RATE), "--json", *sizes, *numbers, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    program = pathlib.Path(sys.argv[1]) / "train_lm"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = ["the", "hidden", "state", "is", "a", "model", "and", "its", "rule", "a", "step\n"]
        text = " ".join(words[philox(i, 1, 0)[0] % len(words)] for i in range(400)).encode()
        (folder / "text.txt").write_bytes(text)
        trained(program, folder / "text.txt", folder / "first", "--stop-after", "1")
        first = tensors_of(folder / "first" / "checkpoint.safetensors")
        log = trained(program, folder / "text.txt", folder / "whole")
        lines = (folder / "whole" / "metrics.jsonl").read_text().splitlines()

        worst = 0.0
        for name, after in first.items():
            if name.startswith("adamw."):
                continue
            m, v = first["adamw.m." + name], first["adamw.v." + name]
            check(all(abs(b - 5 * a * a) <= 1e-6 * b + 1e-30 for a, b in zip(m, v)), f"{name}: m is 0.1 g, v 0.05 g^2")
            constant = [value for end, value in CONSTANT.items() if name.endswith(end)]
            before = constant * len(after) if constant else normal(len(after), name, SEED)
            for p, q, a, b in zip(before, after, m, v):
                change = a / 0.1 / (math.sqrt(b / 0.05) + 1e-8) + (0 if constant else 0.1 * p)
                worst = max(worst, abs(p - RATE / 50 * change - q))
        check(worst < 2e-7, f"the first step is AdamW's, from where the page says that parameters start ({worst:.1e})")

        cut = len(text) * 9 // 10
        training, validation = text[:cut], text[cut:]
        count = min(WINDOWS, len(validation) // (CONTEXT + 1))
        begins = [i * len(validation) // count for i in range(count)]
        read = count // min(BATCH, count) * min(BATCH, count)
        windows = [validation[b : b + CONTEXT + 1] for b in begins][:read]
        said = json.loads(log.splitlines()[-1])["bigram_loss"]
        off = min(abs(loss - said) for loss in bigram_losses(training, windows))
        check(off < 1e-9, f"the windows that validate: the bigram model's loss of them ({off:.1e})")

        rates = [json.loads(line)["lr"] for line in lines]
        cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * (s - 50) / max(1, STEPS - 51))) / 2 for s in range(STEPS)]
        made = [RATE * ((s + 1) / 50 if s < 50 else cosine[s]) for s in range(STEPS)]
        off = max(abs(a - b) for a, b in zip(made, rates, strict=True))
        check(off < 1e-7 * RATE, f"{STEPS} rates ({off:.1e})")


if __name__ == "__main__":
    main()
