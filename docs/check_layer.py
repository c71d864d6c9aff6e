#!/usr/bin/env python3
"""Holds two layers written in PyTorch, TTT-Linear and the delta rule, to the numbers of `reference`.

    check_layer.py FOLDER_OF_THE_PROGRAMS

Writes inputs, runs `reference` on them, computes the layer in PyTorch, writes its numbers under the same
names, and has `verify` compare the two. Take it as the start of a test of a kernel of yours: replace the body
of ttt_linear or delta_rule by a call of the kernel.
"""

import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    sys.exit(f"SKIPPED: {missing}")

CHUNK = 16


def layer_norm_parts(z):
    """z without its mean, over its standard deviation, and that deviation; biased variance, epsilon 1e-6."""
    centred = z - z.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / deviation, deviation


def ttt_linear(x):
    """f(x; W1, b1) = x + LN(x W1 + b1), loss 1/2 |f(k) - v|^2, a step per token, read after write.

    q, k, v [batch, heads, time, dim]; rate [batch, heads, time, 1]; position [CHUNK]. Token i of a chunk reads
    W0 - position[i] sum over j <= i of rate[j] dloss_j/dW at W0, the weights at the beginning of the chunk.
    """
    gain, shift = x["ttt_norm_weight"][:, None], x["ttt_norm_bias"][:, None]  # [heads, 1, dim]
    batch, time = x["q"].shape[0], x["q"].shape[2]
    w, b = x["W1"].expand(batch, -1, -1, -1), x["b1"].expand(batch, -1, -1, -1)
    outputs, after, states_w, states_b = [], [], [], []
    for begin in range(0, time, CHUNK):  # the last chunk may be shorter
        q, k, v, rate = (x[name][:, :, begin : begin + CHUNK] for name in ("q", "k", "v", "rate"))
        position = x["position"][: q.shape[2], None]
        normed, deviation = layer_norm_parts(k @ w + b)
        d = (k + gain * normed + shift - v) * gain  # dloss/d normed
        d = (d - d.mean(-1, keepdim=True) - normed * (d * normed).mean(-1, keepdim=True)) / deviation
        d = rate * d  # dloss/dz times the token's rate: dloss/dW = k' d, dloss/db = d

        def read(rows):
            seen = torch.tril(rows @ k.mT)  # tokens up to one's own
            moved = rows @ w + b - position * (seen @ d + d.cumsum(-2))
            return rows + gain * layer_norm_parts(moved)[0] + shift

        outputs.append(read(q))
        after.append((read(k) - v).square().sum(-1) / 2)
        w = w - position[-1] * (k.mT @ d)
        b = b - position[-1] * d.sum(-2, keepdim=True)
        states_w.append(w)
        states_b.append(b)
    return {
        "output": torch.cat(outputs, 2),
        "loss_after": torch.cat(after, 2),
        "state.W1": torch.stack(states_w),
        "state.b1": torch.stack(states_b),
    }


def delta_rule(x):
    """W <- W - rate k' (k W - v), then the token reads q W. W starts at start.W [batch, heads, in, out]."""
    w, outputs, states = x["start.W"], [], []
    for t in range(x["q"].shape[2]):
        q, k, v, rate = (x[name][:, :, t : t + 1] for name in ("q", "k", "v", "rate"))
        w = w - rate * (k.mT @ (k @ w - v))
        outputs.append(q @ w)
        states.append(w)
    return {"output": torch.cat(outputs, 2), "state.W": torch.stack(states), "final.W": w}


def draw(shape, scale=1.0, offset=0.0):
    return offset + scale * torch.randn(shape, dtype=torch.float64)


def inputs_of_ttt_linear(batch=2, heads=2, time=40, dim=8):
    rows = (batch, heads, time, dim)
    return {
        "q": draw(rows),
        "k": draw(rows),
        "v": draw(rows),
        "rate": torch.sigmoid(draw((batch, heads, time, 1))) / dim,
        "position": 1 / torch.arange(1, CHUNK + 1, dtype=torch.float64) + draw(CHUNK, 0.01),
        "W1": draw((heads, dim, dim), 0.1),
        "b1": draw((heads, 1, dim), 0.1),
        "ttt_norm_weight": draw((heads, dim), 0.1, 1),
        "ttt_norm_bias": draw((heads, dim), 0.1),
        "cotangent.output": draw(rows),
    }


def inputs_of_delta_rule(batch=2, heads=3, time=24, dim=8, value_dim=6):
    return {
        "q": draw((batch, heads, time, dim)),
        "k": torch.nn.functional.normalize(draw((batch, heads, time, dim)), dim=-1),
        "v": draw((batch, heads, time, value_dim)),
        "rate": torch.sigmoid(draw((batch, heads, time, 1))),
        "start.W": draw((batch, heads, dim, value_dim), 0.1),
        "cotangent.output": draw((batch, heads, time, value_dim)),
        "cotangent.final.W": draw((batch, heads, dim, value_dim)),
    }


def with_gradients(layer, inputs):
    """The layer's outputs, and gradients with respect to all inputs, by PyTorch's autograd."""
    cotangents = {name[10:]: value for name, value in inputs.items() if name.startswith("cotangent.")}
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    out = layer(leaves)
    total = sum((out[name] * cotangent).sum() for name, cotangent in cotangents.items())
    names = [name for name in leaves if not name.startswith("cotangent.")]
    grads = torch.autograd.grad(total, [leaves[name] for name in names])
    out |= {f"grad.{name}": value for name, value in zip(names, grads)}
    return {name: value.detach().contiguous() for name, value in out.items()}


def check(programs, folder, system, policy, layer, inputs):
    given, expected, found = (str(folder / f"{system}.{part}.safetensors") for part in ("in", "out", "kernel"))
    save_file(inputs, given)
    which = ["--system", system, "--policy", policy]
    subprocess.run([programs / "reference", *which, "--inputs", given, "--out", expected], check=True)
    numbers = with_gradients(layer, inputs)

    # By hand, to show what is in the file ..
    reference = load_file(expected)
    worst = max(((numbers[n] - reference[n]).abs().max() / reference[n].abs().max()).item() for n in numbers)
    print(f"{system}: {len(numbers)} tensors, worst relative error {worst:.1e}")
    assert worst < 1e-9

    # .. and by the program.
    def verify(tensors):
        save_file(inputs | tensors, found)
        return subprocess.run([programs / "verify", "--reference", expected, "--kernel", found]).returncode

    assert verify(numbers) == 0
    assert verify({name: value.float() for name, value in numbers.items()}) == 0  # f32: within 2e-4
    wrong = numbers["output"].clone()
    wrong[1, 0, 17:, 3] *= 1.001  # a control: an error from token 17 on is found
    assert verify(numbers | {"output": wrong}) == 1


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    programs = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check(programs, folder, "ttt-linear", f"chunk={CHUNK}", ttt_linear, inputs_of_ttt_linear())
        check(programs, folder, "delta-net", "chunk=1", delta_rule, inputs_of_delta_rule())
    print("all agree")


if __name__ == "__main__":
    main()
