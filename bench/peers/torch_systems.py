"""The published systems in PyTorch, forward only (gradients are autograd's), as its experts write them: dual
forms in batched matrix products, inner gradients by hand, everything that does not depend on the fast weights
made for all mini-batches at once before the loop, no slicing in the loop.

Tensors: q, k, v [batch, heads, time, dim]; inside, rows are [chunks, batch * heads, chunk, dim].
"""

import math

import torch
import torch.nn.functional as F

from published import LADDER, MUON

EPS = 1e-6


def compiler(variant):
    """What a work passes its inner functions through: torch.compile in the variant "compiled"."""
    cache = {}

    def compiled(fn):
        if variant != "compiled":
            return fn
        if fn.__code__ not in cache:  # closures are made anew in each run
            cache[fn.__code__] = torch.compile(fn, dynamic=False)
        return cache[fn.__code__]

    return compiled


# ---- what several systems share ----


def split(x, chunk):
    """[batch, heads, time, dim] -> [chunks, batch * heads, chunk, dim], dense."""
    b, h, t, d = x.shape
    return x.reshape(b * h, t // chunk, chunk, d).transpose(0, 1).contiguous()


def join(x, like):
    return x.transpose(0, 1).reshape(like.shape)


def per_sequence(weight, batch):
    """[heads, ..] -> [batch * heads, ..]"""
    return weight.expand(batch, *weight.shape).reshape(-1, *weight.shape[1:])


def normalised(z):
    centred = z - z.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return centred * rstd, rstd


def norm_gradient(z, gain2, offset):
    """d/dz of 1/2 |gain * LN(z) + shift - target|^2, gain2 = gain^2, offset = gain (shift - target)."""
    x, rstd = normalised(z)
    g = torch.addcmul(offset, x, gain2)
    return (g - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True)) * rstd


def gelu_slope(x):
    """Derivative of the tanh approximation."""
    t = torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))
    return 0.5 * x * ((1 - t * t) * (math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x))) + 0.5 * (1 + t)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def mini_batches(x, chunk):
    """What the TTT layers' loops need of all mini-batches at once. Token i goes position[i] of the way."""
    batch = x["q"].shape[0]
    q, k, v = (split(x[name], chunk) for name in ("q", "k", "v"))
    rate, place = split(x["rate"], chunk), x["position"]
    gain, shift = (per_sequence(x[f"ttt_norm_{n}"].unsqueeze(1), batch) for n in ("weight", "bias"))
    mask = -torch.tril(
        place.unsqueeze(-1) * rate.mT
    )  # of what each token reads of the mini-batch's gradients
    last = -(place[-1] * rate)  # the same of the state after the mini-batch
    offset = gain * (shift - (v - k))
    return q, k, mask, last, gain, shift, offset


# ---- the systems: (inputs by name, sizes, how to compile a function) -> output ----


def linear_step(W, b, q, k, offset, gain2, scores, write, last):
    g = norm_gradient(torch.baddbmm(b, k, W), gain2, offset)
    out = torch.baddbmm(torch.baddbmm(b, q, W), scores, g)
    return out, torch.baddbmm(W, write, g), torch.baddbmm(b, last, g)


def ttt_linear(x, sizes, compiled):
    step = compiled(linear_step)
    q, k, mask, last, gain, shift, offset = mini_batches(x, sizes["chunk"])
    W, b = (per_sequence(x[n], sizes["batch"]) for n in ("W1", "b1"))
    scores = mask * (q @ k.mT + 1)  # + 1: the bias
    write, gain2, out = (last * k).mT.contiguous(), gain * gain, []
    for now in zip(
        q.unbind(), k.unbind(), offset.unbind(), scores.unbind(), write.unbind(), last.mT.unbind()
    ):
        q_, k_, offset_, scores_, write_, last_ = now
        z, W, b = step(W, b, q_, k_, offset_, gain2, scores_, write_, last_)
        out.append(z)
    return join(q + gain * normalised(torch.stack(out))[0] + shift, x["q"])


def mlp_step(W1, b1, W2, b2, q, k, offset, gain2, mask, scores, write, last):
    h = torch.baddbmm(b1, k, W1)
    a = gelu(h)
    g2 = norm_gradient(torch.baddbmm(b2, a, W2), gain2, offset)
    g1 = torch.bmm(g2, W2.mT) * gelu_slope(h)
    a_q = gelu(torch.baddbmm(torch.baddbmm(b1, q, W1), scores, g1))
    out = torch.baddbmm(torch.baddbmm(b2, a_q, W2), mask * (torch.bmm(a_q, a.mT) + 1), g2)
    last_row = last.mT
    return (
        out,
        torch.baddbmm(W1, write, g1),
        torch.baddbmm(b1, last_row, g1),
        torch.baddbmm(W2, (last * a).mT, g2),
        torch.baddbmm(b2, last_row, g2),
    )


def ttt_mlp(x, sizes, compiled):
    step = compiled(mlp_step)
    q, k, mask, last, gain, shift, offset = mini_batches(x, sizes["chunk"])
    state = [per_sequence(x[n], sizes["batch"]) for n in ("W1", "b1", "W2", "b2")]
    scores = mask * (q @ k.mT + 1)
    write, gain2, out = (last * k).mT.contiguous(), gain * gain, []
    for q_, k_, offset_, mask_, scores_, write_, last_ in zip(
        *(t.unbind() for t in (q, k, offset, mask, scores, write, last))
    ):
        z, *state = step(*state, q_, k_, offset_, gain2, mask_, scores_, write_, last_)
        out.append(z)
    return join(q + gain * normalised(torch.stack(out))[0] + shift, x["q"])


def unit(x):
    x = F.silu(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def linear_attention(x, sizes, compiled):
    def whole(q, k, v):
        q, k, v = (split(t, sizes["block"]) for t in (q, k, v))
        q = q * q.shape[-1] ** -0.5
        states = (k.mT @ v).cumsum(0)
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        return torch.tril(q @ k.mT) @ v + q @ before

    return join(compiled(whole)(x["q"], x["k"], x["v"]), x["q"])


def delta_net_step(S, q, k, u, w, scores):
    u = torch.baddbmm(u, w, S, alpha=-1)
    return torch.baddbmm(torch.bmm(scores, u), q, S), torch.baddbmm(S, k.mT, u)


def delta_net(x, sizes, compiled):
    """The WY form: (I + tril(rate k k', -1)) [u, w] = rate [v, k] for all blocks, then a short recurrence."""
    step = compiled(delta_net_step)
    q, k, v, rate = (
        split(t, sizes["block"])
        for t in (
            unit(x["q"]) * x["q"].shape[-1] ** -0.5,
            unit(x["k"]),
            x["v"],
            torch.sigmoid(x["gate.rate"]),
        )
    )
    system = torch.tril(rate * (k @ k.mT), -1)
    solved = torch.linalg.solve_triangular(
        system, rate * torch.cat([v, k], -1), upper=False, unitriangular=True
    )
    u, w = solved.chunk(2, -1)
    scores, S, out = torch.tril(q @ k.mT), q.new_zeros(q.shape[1], q.shape[3], q.shape[3]), []
    for now in zip(*(t.unbind() for t in (q, k, u, w, scores))):
        z, S = step(S, *now)
        out.append(z)
    return join(torch.stack(out), x["q"])


def muon(g):
    """Newton-Schulz steps of a stack of matrices, on the side with the smaller product."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    shape = x.shape
    x = x.reshape(-1, *shape[-2:])
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for a, b, c in MUON:
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.reshape(shape)
    return x.mT if tall else x


def silu_slope(x, s):
    """Derivative of x s, s = sigmoid(x)."""
    return s * (1 + x * (1 - s))


def swiglu(W, x):
    return torch.bmm(F.silu(torch.bmm(x, W["W0"])) * torch.bmm(x, W["W2"]), W["W1"])


def swiglu_gradients(W, k, v, rates):
    """Of -<f(k), v>, each weight's with its own rates."""
    h, up = torch.bmm(k, W["W0"]), torch.bmm(k, W["W2"])
    s = torch.sigmoid(h)
    gate, d = h * s, torch.bmm(v, W["W1"].mT)
    return {
        "W0": -torch.bmm((rates["W0"] * k).mT, d * up * silu_slope(h, s)),
        "W1": -torch.bmm((rates["W1"] * (gate * up)).mT, v),
        "W2": -torch.bmm((rates["W2"] * k).mT, d * gate),
    }


def renormalised(w, length):
    return w / (w.norm(dim=-2, keepdim=True) + 1e-5) * length


def lact(x, sizes, compiled):
    """All weights learn, with momentum, Muon and weight norm, a step a chunk; reads before it writes."""

    def step(W, M, k, v, r0, r1, r2, beta, lengths):
        W, M, G = dict(zip(names, W)), dict(zip(names, M)), None
        G = swiglu_gradients(W, k, v, {"W0": r0, "W1": r1, "W2": r2})
        M = {n: torch.addcmul(G[n], beta, M[n]) for n in names}
        return [renormalised(W[n] - muon(M[n]), length) for n, length in zip(names, lengths)], [
            M[n] for n in names
        ]

    names, chunk = ("W0", "W1", "W2"), sizes["chunk"]
    step = compiled(step)
    q, k, v = (split(t, chunk) for t in (unit(x["q"]), unit(x["k"]), x["v"]))
    rates = [split(F.softplus(x[f"gate.rate.{n}"] - 5), chunk) for n in names]
    beta = split(torch.sigmoid(x["gate.momentum"]), chunk).mean(2, keepdim=True)
    W = [per_sequence(x[n], sizes["batch"]) for n in names]
    M, lengths, out = [torch.zeros_like(w) for w in W], [w.norm(dim=-2, keepdim=True) for w in W], []
    rows = list(zip(*(t.unbind() for t in (q, k, v, *rates, beta))))
    for i, (q_, *now, beta_) in enumerate(rows):
        out.append(swiglu(dict(zip(names, W)), q_))
        if i + 1 < len(rows):  # nobody reads what the last chunk would write
            W, M = step(W, M, *now, beta_, lengths)
    return join(torch.stack(out), x["q"])


def ladder(x, sizes, compiled):
    rung, chunk = LADDER[sizes["system"]], sizes["chunk"]
    q, k, v = (split(t, chunk) for t in (unit(x["q"]), unit(x["k"]), x["v"]))
    if rung.get("swiglu"):  # the first layer does not learn: features
        W0, W2 = (per_sequence(x[n], sizes["batch"]) for n in ("W0", "W2"))
        q, k = (F.silu(t @ W0) * (t @ W2) for t in (q, k))
    W = per_sequence(x["W1" if rung.get("swiglu") else "W"], sizes["batch"])
    rate = split(F.softplus(x["gate.rate"] - 3), chunk) if rung.get("rates") else 0.1
    beta = (
        split(torch.sigmoid(x["gate.momentum"]), chunk).mean(2, keepdim=True)
        if rung.get("momentum")
        else None
    )
    if sizes["form"] == "dual":
        return join(ladder_recurrent(rung, W, q, k * rate, v, beta, compiled), x["q"])
    return join(compiled(ladder_parallel)(rung, W, q, k * rate, v, beta), x["q"])


def ladder_recurrent(rung, W, q, k, v, beta, compiled):
    def step(W, M, k, v, beta, length):
        G = -torch.bmm(k.mT, v)
        M = G if beta is None else torch.addcmul(G, beta, M)
        W = W - (muon(M) if rung.get("muon") else M)
        return renormalised(W, length) if rung.get("norm") else W, M

    step = compiled(step)
    M, length, out = torch.zeros_like(W), W.norm(dim=-2, keepdim=True), []
    for i in range(len(q)):
        out.append(torch.bmm(q[i], W))
        if i + 1 < len(q):
            W, M = step(W, M, k[i], v[i], None if beta is None else beta[i], length)
    return torch.stack(out)


def ladder_parallel(rung, W, q, k, v, beta):
    G = -(k[:-1].mT @ v[:-1])
    if beta is not None:
        steps, M = [], 0
        for g, b in zip(G.unbind(), beta.unbind()):
            M = g + b * M
            steps.append(M)
        G = torch.stack(steps)
    if rung.get("muon"):
        G = muon(G)
    W = W.expand(len(q), *W.shape)
    return q @ torch.cat([W[:1], W[1:] - G.cumsum(0)])


def from_raw_rates(system):
    return lambda x, *rest: system(
        {**x, "rate": torch.sigmoid(x["rate"]), "position": torch.sigmoid(x["position"])}, *rest
    )


SYSTEMS = {
    "ttt-linear": from_raw_rates(ttt_linear),
    "ttt-mlp": from_raw_rates(ttt_mlp),
    "linear-attention": linear_attention,
    "delta-net": delta_net,
    "lact": lact,
    **{name: ladder for name in LADDER},
}
