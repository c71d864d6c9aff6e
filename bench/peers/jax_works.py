"""The works in JAX: one jitted function each, compiled when it is made."""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", sys.argv[2] if len(sys.argv) > 2 else "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_model import decoding, layer, training_step
from jax_systems import SYSTEMS, mT

jax.config.update("jax_enable_x64", True)


def use(device):
    # Products of f32 in f32, as everybody's here.
    jax.config.update("jax_default_matmul_precision", "highest")


def finish():
    pass  # wait() has


def to_numpy(value):
    return np.asarray(value)


def versions():
    return {"jax": jax.__version__}


def load(array, dtype):
    return jnp.asarray(
        array, {"f32": jnp.float32, "f64": jnp.float64}[dtype] if array.dtype.kind == "f" else jnp.int32
    )


def wait(outputs):
    jax.block_until_ready(outputs)


def softmax_attention(x, sizes):
    scores = (x["q"] * x["q"].shape[-1] ** -0.5) @ mT(x["k"])
    time = scores.shape[-1]
    return jax.nn.softmax(scores, axis=-1, where=jnp.tril(jnp.ones((time, time), bool))) @ x["v"]


def compiled(fn, *inputs):
    ready = jax.jit(fn).lower(*inputs).compile()
    return lambda: ready(*inputs)


def runner(forward):
    """A work from its forward pass: with "backward", the gradients of all inputs as well."""

    def make(sizes, inputs, variant):
        if not sizes.get("backward"):
            return compiled(lambda x: {"output": forward(x, sizes)}, inputs)
        cotangent = inputs.pop("cotangent")

        def both(x, cotangent):
            output, pull = jax.vjp(lambda y: forward(y, sizes), x)
            return {"output": output, **{f"grad.{n}": g for n, g in pull(cotangent)[0].items()}}

        return compiled(both, inputs, cotangent)

    return make


# ---- works that are no systems ----


def meta_gradient(sizes, inputs, variant):
    def loss(W, x, y):
        return jnp.mean((jnp.tanh(x @ W[0]) @ W[1] - y) ** 2)

    def outer(meta, data):
        rate = jnp.exp(meta["log_rate"])

        def step(W, batch):
            return tuple(w - rate * g for w, g in zip(W, jax.grad(loss)(W, *batch))), None

        W, _ = lax.scan(step, (meta["W1"], meta["W2"]), (data["xs"], data["ys"]))
        return loss(W, data["x"], data["y"])

    def both(meta, data):
        value, gradients = jax.value_and_grad(outer)(meta, data)
        return {"output": value, **{f"grad.{n}": g for n, g in gradients.items()}}

    meta = {n: inputs.pop(n) for n in ("log_rate", "W1", "W2")}
    return compiled(both, meta, inputs)


def product(sizes, inputs, variant):
    return compiled(lambda x: {"output": x["a"] @ x["b"]}, inputs)


def negation(sizes, inputs, variant):
    return compiled(lambda x: {"output": -x["a"]}, inputs)


WORKS = {
    "system": runner(lambda x, sizes: SYSTEMS[sizes["system"]](x, sizes)),
    "layer": runner(layer),
    "attention": runner(softmax_attention),
    "training-step": training_step(compiled),
    "decoding": decoding(compiled),
    "meta-gradient": meta_gradient,
    "product": product,
    "negation": negation,
}
