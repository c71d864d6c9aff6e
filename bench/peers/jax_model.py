"""The TTT layer and the published TTT language model (transformer backbone) in JAX; parameters by the names
of its state dict."""

import jax
import jax.numpy as jnp
from jax import lax

from jax_systems import for_batch, mT, norm_gradient, normalised, ttt_linear, ttt_mlp

LEARNERS = {"linear": (ttt_linear, ("W1", "b1")), "mlp": (ttt_mlp, ("W1", "b1", "W2", "b2"))}


def heads_of(x, heads):
    b, t, width = x.shape
    return jnp.swapaxes(x.reshape(b, t, heads, width // heads), 1, 2)


def rotated(x, positions):
    """Turned by their positions [time], in interleaved pairs."""
    dim = x.shape[-1]
    angle = jnp.outer(positions.astype(x.dtype), 10000.0 ** (-jnp.arange(0, dim, 2, dtype=x.dtype) / dim))
    cos, sin, even, odd = jnp.cos(angle), jnp.sin(angle), x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)


def layer(p, sizes, prefix=""):
    """p: the layer's input "x" [batch, time, width] and its parameters."""
    x, heads, chunk = p["x"], sizes["heads"], sizes["chunk"]
    width = x.shape[-1]
    own = lambda name: p[prefix + name]
    q, k, v = (heads_of(x @ own(f"{n}_proj.weight").T, heads) for n in "qkv")
    rate = jax.nn.sigmoid(x @ own("learnable_ttt_lr_weight")[:, 0].T + own("learnable_ttt_lr_bias")[:, 0])
    place = 1 / jnp.arange(1, chunk + 1, dtype=x.dtype) + own("learnable_token_idx")
    positions = jnp.arange(x.shape[1]) % chunk
    views = {
        "q": rotated(q, positions),
        "k": rotated(k, positions),
        "v": v,
        "position": jnp.maximum(place, 0),
        "rate": jnp.swapaxes(rate * (heads / width), 1, 2)[..., None],
    }
    learner, weights = LEARNERS[sizes.get("layer", "linear")]
    views |= {name: own(name) for name in (*weights, "ttt_norm_weight", "ttt_norm_bias")}
    out = learner(views, {**sizes, "batch": x.shape[0]})
    out = jnp.swapaxes(out, 1, 2).reshape(x.shape)
    out = jax.nn.standardize(out, axis=-1, epsilon=1e-6) * own("post_norm.weight") + own("post_norm.bias")
    return out @ own("o_proj.weight").T


def rms_norm(x, gain):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


def feed_forward(p, block, h):
    x = rms_norm(h, p[block + "ffn_norm.weight"])
    gated = jax.nn.silu(x @ p[block + "mlp.gate_proj.weight"].T) * (x @ p[block + "mlp.up_proj.weight"].T)
    return h + gated @ p[block + "mlp.down_proj.weight"].T


def loss(p, tokens, sizes):
    h = p["model.embed_tokens.weight"][tokens[:, :-1]]
    for i in range(sizes["layers"]):
        block = f"model.layers.{i}."
        h = h + layer(
            {**p, "x": rms_norm(h, p[block + "seq_norm.weight"])}, sizes, block + "seq_modeling_block."
        )
        h = feed_forward(p, block, h)
    scores = jax.nn.log_softmax(rms_norm(h, p["model.norm.weight"]) @ p["model.embed_tokens.weight"].T)
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


def adamw(p, g, m, v, rate=1e-3, beta1=0.9, beta2=0.95, decay=0.1):
    norm = jnp.sqrt(sum(jnp.vdot(t, t) for t in jax.tree.leaves(g)))
    g = jax.tree.map(lambda t: t * jnp.minimum(1 / (norm + 1e-6), 1), g)
    m = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
    v = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, v, g)
    return jax.tree.map(lambda p, m, v: p - rate * (m / (jnp.sqrt(v) + 1e-8) + decay * p), p, m, v), m, v


def training_step(compiled):
    """Loss and gradients; with "adamw" the whole step, in the buffers of the last."""

    def make(sizes, inputs, variant):
        tokens = inputs.pop("tokens")
        p = {name: t for name, t in inputs.items() if name not in ("moment", "square")}

        def gradients(p, tokens):
            value, g = jax.value_and_grad(loss)(p, tokens, sizes)
            return {"output": value, **{f"grad.{n}": t for n, t in g.items()}}

        if not sizes.get("adamw"):
            return compiled(gradients, p, tokens)

        def whole_step(state, tokens):
            value, g = jax.value_and_grad(loss)(state[0], tokens, sizes)
            p, m, v = adamw(state[0], g, *state[1:])
            return (p, m, v), {"output": value}

        state = (p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p))
        step = jax.jit(whole_step, donate_argnums=0).lower(state, tokens).compile()

        def run():
            nonlocal state
            state, out = step(state, tokens)
            return out

        return run

    return make


def decoding(compiled):
    """TTT-Linear, token after token: one compiled step, in the buffers of the last. A layer carries the
    mini-batch's first weights and the sum of its gradients."""

    def make(sizes, inputs, variant):
        tokens, p = inputs.pop("tokens"), inputs
        heads, chunk, batch = sizes["heads"], sizes["chunk"], sizes["batch"]
        width = p["model.norm.weight"].shape[0]
        dim = width // heads
        blocks = [f"model.layers.{i}." for i in range(sizes["layers"])]

        def read(p, x, prefix, state, i):
            own = lambda name: p[prefix + name]
            q, k, v = ((x @ own(f"{n}_proj.weight").T).reshape(batch, heads, 1, dim) for n in "qkv")
            q, k = rotated(q, i[None]), rotated(k, i[None])
            rate = jax.nn.sigmoid(
                x @ own("learnable_ttt_lr_weight")[:, 0].T + own("learnable_ttt_lr_bias")[:, 0]
            )
            gain, shift = (own(f"ttt_norm_{n}")[:, None] for n in ("weight", "bias"))
            (W, b), (dW, db) = state
            g = (
                norm_gradient(k @ W + b, gain * gain, gain * (shift - (v - k)))
                * (rate / dim)[..., None, None]
            )
            dW, db = dW + mT(k) @ g, db + g
            place = jnp.maximum(1 / (i.astype(x.dtype) + 1) + own("learnable_token_idx")[i], 0)
            now = W - place * dW, b - place * db
            out = (q + gain * normalised(q @ now[0] + now[1])[0] + shift).reshape(batch, width)
            state = jax.tree.map(
                lambda a, b: jnp.where(i + 1 == chunk, a, b),
                (now, (jnp.zeros_like(dW), jnp.zeros_like(db))),
                ((W, b), (dW, db)),
            )
            out = jax.nn.standardize(out, axis=-1, epsilon=1e-6) * own("post_norm.weight") + own(
                "post_norm.bias"
            )
            return out @ own("o_proj.weight").T, state

        def step(p, states, token, i):
            h, new = p["model.embed_tokens.weight"][token], []
            for block, state in zip(blocks, states):
                mixed, state = read(
                    p, rms_norm(h, p[block + "seq_norm.weight"]), block + "seq_modeling_block.", state, i
                )
                new.append(state)
                h = feed_forward(p, block, h + mixed)
            return rms_norm(h, p["model.norm.weight"]) @ p["model.embed_tokens.weight"].T, new

        def start():
            for block in blocks:
                weights = tuple(for_batch(p[f"{block}seq_modeling_block.{n}"], batch) for n in ("W1", "b1"))
                yield weights, jax.tree.map(jnp.zeros_like, weights)

        columns, places = list(tokens.T), [jnp.asarray(i) for i in range(chunk)]
        ready = jax.jit(step, donate_argnums=1).lower(p, list(start()), columns[0], places[0]).compile()

        def run():
            states = list(start())
            for t, column in enumerate(columns):
                out, states = ready(p, states, column, places[t % chunk])
            return {"output": out}

        return run

    return make
