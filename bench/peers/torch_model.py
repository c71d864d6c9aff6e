"""The TTT layer and the published TTT language model (transformer backbone) in PyTorch; parameters by the
names of its state dict."""

import torch
import torch.nn.functional as F

from torch_systems import compiler, norm_gradient, normalised, ttt_linear, ttt_mlp

LEARNERS = {"linear": (ttt_linear, ("W1", "b1")), "mlp": (ttt_mlp, ("W1", "b1", "W2", "b2"))}


def heads_of(x, heads):
    b, t, width = x.shape
    return x.view(b, t, heads, width // heads).transpose(1, 2)


def rotary(chunk, time, dim, like):
    """cos and sin [time, dim / 2] of positions modulo the mini-batch; type and device of `like`."""
    kind = dict(dtype=like.dtype, device=like.device)
    angle = torch.outer(
        (torch.arange(time, device=like.device) % chunk).to(like.dtype),
        10000.0 ** (-torch.arange(0, dim, 2, **kind) / dim),
    )
    return angle.cos(), angle.sin()


def rotated(x, cos, sin):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def layer(p, sizes, compiled, prefix=""):
    """p: the layer's input "x" [batch, time, width] and its parameters."""
    x, heads, chunk = p["x"], sizes["heads"], sizes["chunk"]
    width = x.shape[-1]
    own = lambda name: p[prefix + name]
    q, k, v = (heads_of(F.linear(x, own(f"{n}_proj.weight")), heads) for n in "qkv")
    angles = rotary(chunk, x.shape[1], width // heads, x)
    rate = torch.sigmoid(
        F.linear(x, own("learnable_ttt_lr_weight")[:, 0], own("learnable_ttt_lr_bias")[:, 0])
    )
    place = 1 / torch.arange(1, chunk + 1, dtype=x.dtype, device=x.device) + own("learnable_token_idx")
    views = {
        "q": rotated(q, *angles),
        "k": rotated(k, *angles),
        "v": v,
        "position": place.clamp(min=0),
        "rate": (rate * (heads / width)).transpose(1, 2).unsqueeze(-1),
    }
    learner, weights = LEARNERS[sizes.get("layer", "linear")]
    views |= {name: own(name) for name in (*weights, "ttt_norm_weight", "ttt_norm_bias")}
    out = learner(views, {**sizes, "batch": x.shape[0]}, compiled).transpose(1, 2).flatten(2)
    out = F.layer_norm(out, (width,), own("post_norm.weight"), own("post_norm.bias"), 1e-6)
    return F.linear(out, own("o_proj.weight"))


def rms_norm(x, gain):
    return F.rms_norm(x, (x.shape[-1],), gain, 1e-6)


def feed_forward(p, block, h):
    x = rms_norm(h, p[block + "ffn_norm.weight"])
    gated = F.silu(F.linear(x, p[block + "mlp.gate_proj.weight"])) * F.linear(
        x, p[block + "mlp.up_proj.weight"]
    )
    return h + F.linear(gated, p[block + "mlp.down_proj.weight"])


def logits(p, tokens, sizes, compiled):
    h = F.embedding(tokens, p["model.embed_tokens.weight"])
    for i in range(sizes["layers"]):
        block = f"model.layers.{i}."
        h = h + layer(
            {**p, "x": rms_norm(h, p[block + "seq_norm.weight"])},
            sizes,
            compiled,
            block + "seq_modeling_block.",
        )
        h = feed_forward(p, block, h)
    return F.linear(rms_norm(h, p["model.norm.weight"]), p["model.embed_tokens.weight"])


def training_step(sizes, inputs, variant):
    """Loss and gradients; with "adamw" the whole step, which changes the parameters."""
    tokens = inputs.pop("tokens").long()
    p = {name: t.requires_grad_() for name, t in inputs.items() if name not in ("moment", "square")}
    compiled = compiler(variant)

    def loss():
        return F.cross_entropy(
            logits(p, tokens[:, :-1], sizes, compiled).flatten(0, 1), tokens[:, 1:].flatten()
        )

    def gradients():
        value = loss()
        found = torch.autograd.grad(value, list(p.values()))
        return {"output": value.detach(), **{f"grad.{n}": g for n, g in zip(p, found)}}

    if not sizes.get("adamw"):
        return gradients
    optimizer = torch.optim.AdamW(p.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def whole_step():
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return {"output": value.detach()}

    return whole_step


def decoding(sizes, inputs, variant):
    """TTT-Linear, token after token. A layer carries its mini-batch's first weights and sum of gradients. What is compiled
    is a block, with a token's angles and its way as tensors: one graph for all tokens and blocks."""
    tokens, p = inputs.pop("tokens").long(), inputs
    heads, chunk, batch = sizes["heads"], sizes["chunk"], sizes["batch"]
    width = p["model.norm.weight"].shape[0]
    dim = width // heads
    cos, sin = rotary(chunk, chunk, dim, p["model.norm.weight"])

    def start(prefix):
        weights = [p[prefix + n].expand(batch, -1, -1, -1) for n in ("W1", "b1")]
        return weights, [torch.zeros_like(w) for w in weights]

    def read(x, block, state, cos, sin, place):
        own = lambda name: block["seq_modeling_block." + name]
        q, k, v = (F.linear(x, own(f"{n}_proj.weight")).view(batch, heads, 1, dim) for n in "qkv")
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        rate = torch.sigmoid(
            F.linear(x, own("learnable_ttt_lr_weight")[:, 0], own("learnable_ttt_lr_bias")[:, 0])
        )
        gain, shift = (own(f"ttt_norm_{n}").unsqueeze(1) for n in ("weight", "bias"))
        (W, b), (dW, db) = state
        g = norm_gradient(k @ W + b, gain * gain, gain * (shift - (v - k))) * (rate / dim).view(
            batch, heads, 1, 1
        )
        dW, db = dW + k.mT @ g, db + g
        now = [W - place * dW, b - place * db]
        out = (q + gain * normalised(q @ now[0] + now[1])[0] + shift).view(batch, width)
        out = F.layer_norm(out, (width,), own("post_norm.weight"), own("post_norm.bias"), 1e-6)
        return F.linear(out, own("o_proj.weight")), now, [dW, db]

    def step(h, block, state, cos, sin, place):
        mixed, now, gradients = read(rms_norm(h, block["seq_norm.weight"]), block, state, cos, sin, place)
        return feed_forward(block, "", h + mixed), now, gradients

    step = compiler(variant)(step)
    prefixes = [f"model.layers.{i}." for i in range(sizes["layers"])]
    blocks = [{n.removeprefix(at): t for n, t in p.items() if n.startswith(at)} for at in prefixes]

    @torch.inference_mode()
    def run():
        states = [start(at + "seq_modeling_block.") for at in prefixes]
        for t in range(tokens.shape[1]):
            h, i = F.embedding(tokens[:, t], p["model.embed_tokens.weight"]), t % chunk
            for n, block in enumerate(blocks):
                place = (1 / (i + 1) + block["seq_modeling_block.learnable_token_idx"][i]).clamp(min=0)
                h, now, gradients = step(h, block, states[n], cos[i], sin[i], place)
                last = i + 1 == chunk
                states[n] = (now, [torch.zeros_like(g) for g in gradients]) if last else (states[n][0], gradients)
            out = F.linear(rms_norm(h, p["model.norm.weight"]), p["model.embed_tokens.weight"])
        return {"output": out}

    return run
