#!/usr/bin/env python3
"""`reference` against TTT-Linear and the delta rule in numpy alone, token by token: check_reference.py BIN

Losses and their gradients are written out by hand; gradients of the whole are held to central differences in
random directions. Files are read and written here, byte by byte.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as missing:
    sys.exit(f"SKIPPED: {missing}")

CHUNK = 4
RANDOM = np.random.default_rng(1)


def write(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value, "<f8").tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F64", "shape": value.shape, "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read(path):
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(raw[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]], "<f8").reshape(t["shape"])
        for name, t in header.items()
    }


def transposed(x):
    return np.swapaxes(x, -1, -2)


def norm(z):
    centred = z - z.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred / deviation, deviation


def ttt_linear(x):
    gain, shift = x["ttt_norm_weight"][:, None], x["ttt_norm_bias"][:, None]
    w, b = x["W1"][None], x["b1"][None]
    outputs, before, states = [], [], []
    f = lambda rows, w, b: rows + gain * norm(rows @ w + b)[0] + shift
    for t in range(x["q"].shape[2]):
        place = t % CHUNK
        if place == 0:
            start_w, start_b, sum_w, sum_b = w, b, 0, 0
        q, k, v, rate = (x[name][:, :, t : t + 1] for name in ("q", "k", "v", "rate"))
        before.append(((f(k, w, b) - v) ** 2).sum(-1) / 2)
        normed, deviation = norm(k @ start_w + start_b)
        d = (k + gain * normed + shift - v) * gain
        d = (d - d.mean(-1, keepdims=True) - normed * (d * normed).mean(-1, keepdims=True)) / deviation
        sum_w, sum_b = sum_w + rate * (transposed(k) @ d), sum_b + rate * d
        w, b = start_w - x["position"][place] * sum_w, start_b - x["position"][place] * sum_b
        outputs.append(f(q, w, b))
        if place == CHUNK - 1 or t == x["q"].shape[2] - 1:
            states.append(w)
    return {"output": np.concatenate(outputs, 2), "loss_before": np.concatenate(before, 2), "state.W1": np.stack(states)}


def delta_rule(x):
    w, outputs, states = 0, [], []
    for t in range(x["q"].shape[2]):
        q, k, v, rate = (x[name][:, :, t : t + 1] for name in ("q", "k", "v", "rate"))
        w = w - rate * (transposed(k) @ ((k @ w if t else 0) - v))
        outputs.append(q @ w)
        states.append(w)
    return {"output": np.concatenate(outputs, 2), "state.W": np.stack(states)}


def error(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def check(program, folder, system, policy, layer, inputs):
    write(folder / "in", inputs)
    which = ["--system", system, "--policy", policy]
    subprocess.run([program, *which, "--inputs", folder / "in", "--out", folder / "out"], check=True)
    reference = read(folder / "out")
    for name, value in layer(inputs).items():
        assert error(reference[name], value) < 1e-12, (system, name)
    assert error(reference["output"][:, :, 1:], layer(inputs)["output"][:, :, :-1]) > 1e-3  # the control

    total = lambda x: (layer(x)["output"] * reference["cotangent.output"]).sum()
    for name, value in inputs.items():
        direction, step = RANDOM.normal(size=value.shape), 1e-5
        moved = [total(inputs | {name: value + sign * step * direction}) for sign in (1, -1)]
        slope = (reference[f"grad.{name}"] * direction).sum()
        assert abs((moved[0] - moved[1]) / (2 * step) - slope) < 1e-7 * max(1, abs(slope)), (system, name)


def main():
    program = pathlib.Path(sys.argv[1]) / "reference"
    batch, heads, time, dim = 2, 2, 10, 4  # two chunks and a part of one
    rows, draw = (batch, heads, time, dim), lambda *shape: RANDOM.normal(size=shape)
    views = {"q": draw(*rows), "k": draw(*rows) / 2, "v": draw(*rows), "rate": RANDOM.uniform(0, 0.5, (*rows[:3], 1))}
    weights = {"W1": draw(heads, dim, dim), "b1": draw(heads, 1, dim)}
    norms = {"ttt_norm_weight": 1 + draw(heads, dim) / 4, "ttt_norm_bias": draw(heads, dim) / 4}
    position = {"position": 1 / np.arange(1, CHUNK + 1) + 0.01 * draw(CHUNK)}
    with tempfile.TemporaryDirectory() as folder:
        check(program, pathlib.Path(folder), "ttt-linear", f"chunk={CHUNK}", ttt_linear, views | position | weights | norms)
        check(program, pathlib.Path(folder), "delta-net", "chunk=1", delta_rule, views)
    print("reference is TTT-Linear and the delta rule of numpy")


if __name__ == "__main__":
    main()
