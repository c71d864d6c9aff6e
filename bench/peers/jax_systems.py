"""The published systems in JAX, forward only, as its experts write them: lax.scan over mini-batches or chunks,
batch and heads as batch dimensions of every product, inner gradients of the dual forms by hand. Steps of the
TTT layers and of LaCT are recomputed in the backward pass (jax.checkpoint): on the CPU that is faster than
storing what they made.

Tensors: q, k, v [batch, heads, time, dim]; inside, rows are [chunks, batch, heads, chunk, dim].
"""

import jax
import jax.numpy as jnp
from jax import lax

from published import LADDER, MUON

EPS = 1e-6


# ---- what several systems share ----


def split(x, chunk):
    """[batch, heads, time, dim] -> [chunks, batch, heads, chunk, dim]"""
    b, h, t, d = x.shape
    return jnp.moveaxis(x.reshape(b, h, t // chunk, chunk, d), 2, 0)


def join(x, like):
    return jnp.moveaxis(x, 0, 2).reshape(like.shape)


def mT(x):
    return jnp.swapaxes(x, -1, -2)


def normalised(z):
    centred = z - z.mean(-1, keepdims=True)
    rstd = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPS)
    return centred * rstd, rstd


def norm_gradient(z, gain2, offset):
    """d/dz of 1/2 |gain * LN(z) + shift - target|^2, gain2 = gain^2, offset = gain (shift - target)."""
    x, rstd = normalised(z)
    g = offset + x * gain2
    return (g - g.mean(-1, keepdims=True) - x * (g * x).mean(-1, keepdims=True)) * rstd


def gelu(x):
    return jax.nn.gelu(x, approximate=True)


def gelu_slope(x):
    """Derivative of the tanh approximation."""
    c = (2 / jnp.pi) ** 0.5
    t = jnp.tanh(c * x * (1 + 0.044715 * x * x))
    return 0.5 * x * ((1 - t * t) * (c * (1 + 3 * 0.044715 * x * x))) + 0.5 * (1 + t)


def for_batch(weight, batch):
    return jnp.broadcast_to(weight, (batch, *weight.shape))


def mini_batches(x, chunk):
    """What the TTT layers' scans need of all mini-batches at once. Token i goes position[i] of the way."""
    q, k, v = (split(x[name], chunk) for name in ("q", "k", "v"))
    rate, place = split(x["rate"], chunk), x["position"]
    gain, shift = (x[f"ttt_norm_{n}"][:, None] for n in ("weight", "bias"))
    last, mask = -(place[-1] * rate), -jnp.tril(place[:, None] * mT(rate))
    rows = {
        "q": q,
        "k": k,
        "offset": gain * (shift - (v - k)),
        "scores": mask * (q @ mT(k) + 1),  # + 1: the bias
        "write": mT(last * k),
        "write_bias": mT(last),
    }
    return rows, {"mask": mask, "last": last}, gain, shift


# ---- the systems: (inputs by name, sizes) -> output ----


def ttt_linear(x, sizes):
    rows, _, gain, shift = mini_batches(x, sizes["chunk"])

    @jax.checkpoint
    def step(state, r):
        W, b = state
        g = norm_gradient(r["k"] @ W + b, gain * gain, r["offset"])
        out = r["q"] @ W + b + r["scores"] @ g
        return (W + r["write"] @ g, b + r["write_bias"] @ g), out

    _, z = lax.scan(step, tuple(for_batch(x[n], sizes["batch"]) for n in ("W1", "b1")), rows)
    return join(rows["q"] + gain * normalised(z)[0] + shift, x["q"])


def ttt_mlp(x, sizes):
    rows, more, gain, shift = mini_batches(x, sizes["chunk"])

    @jax.checkpoint
    def step(state, r):
        W1, b1, W2, b2 = state
        h = r["k"] @ W1 + b1
        a = gelu(h)
        g2 = norm_gradient(a @ W2 + b2, gain * gain, r["offset"])
        g1 = (g2 @ mT(W2)) * gelu_slope(h)
        a_q = gelu(r["q"] @ W1 + b1 + r["scores"] @ g1)
        out = a_q @ W2 + b2 + (r["mask"] * (a_q @ mT(a) + 1)) @ g2
        return (
            W1 + r["write"] @ g1,
            b1 + r["write_bias"] @ g1,
            W2 + mT(r["last"] * a) @ g2,
            b2 + r["write_bias"] @ g2,
        ), out

    _, z = lax.scan(
        step, tuple(for_batch(x[n], sizes["batch"]) for n in ("W1", "b1", "W2", "b2")), rows | more
    )
    return join(rows["q"] + gain * normalised(z)[0] + shift, x["q"])


def unit(x):
    x = jax.nn.silu(x)
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + EPS)


def linear_attention(x, sizes):
    q, k, v = (split(x[n], sizes["block"]) for n in ("q", "k", "v"))
    q = q * q.shape[-1] ** -0.5
    states = jnp.cumsum(mT(k) @ v, 0)
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    return join(jnp.tril(q @ mT(k)) @ v + q @ before, x["q"])


def delta_net(x, sizes):
    """The WY form: (I + tril(rate k k', -1)) [u, w] = rate [v, k] for all blocks, then a short recurrence."""
    q, k, v, rate = (
        split(t, sizes["block"])
        for t in (
            unit(x["q"]) * x["q"].shape[-1] ** -0.5,
            unit(x["k"]),
            x["v"],
            jax.nn.sigmoid(x["gate.rate"]),
        )
    )
    system = jnp.tril(rate * (k @ mT(k)), -1)
    solved = lax.linalg.triangular_solve(
        system, rate * jnp.concatenate([v, k], -1), left_side=True, lower=True, unit_diagonal=True
    )
    u, w = jnp.split(solved, 2, -1)

    def step(S, r):
        q, k, u, w, scores = r
        u = u - w @ S
        return S + mT(k) @ u, scores @ u + q @ S

    S = jnp.zeros((*q.shape[1:3], q.shape[-1], q.shape[-1]), q.dtype)
    _, out = lax.scan(step, S, (q, k, u, w, jnp.tril(q @ mT(k))))
    return join(out, x["q"])


def muon(g):
    """Newton-Schulz steps of a stack of matrices, on the side with the smaller product."""
    tall = g.shape[-2] > g.shape[-1]
    x = mT(g) if tall else g
    x = x / (jnp.sqrt((x * x).sum((-2, -1), keepdims=True)) + 1e-7)
    for a, b, c in MUON:
        gram = x @ mT(x)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return mT(x) if tall else x


def length(w):
    return jnp.sqrt((w * w).sum(-2, keepdims=True))


def swiglu(W, x):
    return (jax.nn.silu(x @ W["W0"]) * (x @ W["W2"])) @ W["W1"]


def swiglu_gradients(W, k, v, rates):
    """Of -<f(k), v>, each weight's with its own rates."""
    h, up = k @ W["W0"], k @ W["W2"]
    s = jax.nn.sigmoid(h)
    gate, d = h * s, v @ mT(W["W1"])
    return {
        "W0": -mT(rates["W0"] * k) @ (d * up * s * (1 + h * (1 - s))),
        "W1": -mT(rates["W1"] * (gate * up)) @ v,
        "W2": -mT(rates["W2"] * k) @ (d * gate),
    }


def per_chunk(read, step, state, rows, q):
    """Reads, then writes; nobody reads what the last chunk would write."""

    @jax.checkpoint
    def both(state, r):
        return step(state, r[1]), read(state, r[0])

    state, out = lax.scan(both, state, (q[:-1], jax.tree.map(lambda t: t[:-1], rows)))
    return jnp.concatenate([out, read(state, q[-1])[None]])


def lact(x, sizes):
    """All weights learn, with momentum, Muon and weight norm, a step a chunk; reads before it writes."""
    chunk, names = sizes["chunk"], ("W0", "W1", "W2")
    q, k, v = (split(t, chunk) for t in (unit(x["q"]), unit(x["k"]), x["v"]))
    rows = {
        "k": k,
        "v": v,
        "rates": {n: split(jax.nn.softplus(x[f"gate.rate.{n}"] - 5), chunk) for n in names},
        "beta": split(jax.nn.sigmoid(x["gate.momentum"]), chunk).mean(3, keepdims=True),
    }
    W = {n: for_batch(x[n], sizes["batch"]) for n in names}
    lengths = jax.tree.map(length, W)

    def step(state, r):
        W, M = state
        G = swiglu_gradients(W, r["k"], r["v"], r["rates"])
        M = jax.tree.map(lambda m, g: r["beta"] * m + g, M, G)
        W = jax.tree.map(lambda w, m: w - muon(m), W, M)
        return jax.tree.map(lambda w, n: w / (length(w) + 1e-5) * n, W, lengths), M

    return join(
        per_chunk(lambda s, q: swiglu(s[0], q), step, (W, jax.tree.map(jnp.zeros_like, W)), rows, q), x["q"]
    )


def ladder(x, sizes):
    rung, chunk = LADDER[sizes["system"]], sizes["chunk"]
    q, k, v = (split(t, chunk) for t in (unit(x["q"]), unit(x["k"]), x["v"]))
    if rung.get("swiglu"):  # the first layer does not learn: features
        q, k = (jax.nn.silu(t @ x["W0"]) * (t @ x["W2"]) for t in (q, k))
    W = for_batch(x["W1" if rung.get("swiglu") else "W"], sizes["batch"])
    k = k * (split(jax.nn.softplus(x["gate.rate"] - 3), chunk) if rung.get("rates") else 0.1)
    beta = (
        split(jax.nn.sigmoid(x["gate.momentum"]), chunk).mean(3, keepdims=True)
        if rung.get("momentum")
        else jnp.zeros((len(q), 1, 1, 1, 1), W.dtype)
    )
    orthogonal = muon if rung.get("muon") else lambda g: g
    start = length(W)

    def step(state, r):
        W, M = state
        M = r[2] * M - mT(r[0]) @ r[1]
        W = W - orthogonal(M)
        return (W / (length(W) + 1e-5) * start if rung.get("norm") else W), M

    if sizes["form"] == "dual":
        return join(per_chunk(lambda s, q: q @ s[0], step, (W, jnp.zeros_like(W)), (k, v, beta), q), x["q"])
    G = -(mT(k[:-1]) @ v[:-1])
    if rung.get("momentum"):
        _, G = lax.scan(lambda M, r: (r[1] * M + r[0],) * 2, jnp.zeros_like(W), (G, beta[:-1]))
    written = W - jnp.cumsum(orthogonal(G), 0)
    return join(q @ jnp.concatenate([W[None], written]), x["q"])


def from_raw_rates(system):
    return lambda x, sizes: system(
        {**x, "rate": jax.nn.sigmoid(x["rate"]), "position": jax.nn.sigmoid(x["position"])}, sizes
    )


SYSTEMS = {
    "ttt-linear": from_raw_rates(ttt_linear),
    "ttt-mlp": from_raw_rates(ttt_mlp),
    "linear-attention": linear_attention,
    "delta-net": delta_net,
    "lact": lact,
    **{name: ladder for name in LADDER},
}
