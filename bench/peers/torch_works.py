"""The works in PyTorch, eager. Variant "compiled": the step of a loop (or the whole work, where there is no
loop) goes through torch.compile."""

import os

import torch
import torch.nn.functional as F

from torch_model import decoding, layer, training_step
from torch_systems import SYSTEMS, compiler

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


device = torch.device("cpu")  # not PyTorch's default device: that would slow every call down a little


def use(name):
    global device
    device = torch.device(name)


def finish():
    if device.type == "cuda":
        torch.cuda.synchronize()


def to_numpy(tensor):
    return tensor.cpu().numpy()


def versions():
    return {"torch": torch.__version__}


def load(array, dtype):
    tensor = torch.from_numpy(array).to(device)
    return (
        tensor.to(getattr(torch, {"f32": "float32", "f64": "float64"}[dtype]))
        if tensor.is_floating_point()
        else tensor
    )


def wait(outputs):
    pass  # eager, or queued


def softmax_attention(x, sizes, compiled):
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True)


def runner(forward):
    """A work from its forward pass: with "backward", the gradients of all inputs as well."""

    def make(sizes, inputs, variant):
        compiled = compiler(variant)
        torch.backends.cuda.matmul.allow_tf32 = sizes.get("precision") == "tf32"
        if not sizes.get("backward"):

            def run():
                with torch.inference_mode():
                    return {"output": forward(inputs, sizes, compiled)}

            return run
        cotangent = inputs.pop("cotangent")
        for tensor in inputs.values():
            tensor.requires_grad_()

        def run():
            output = forward(inputs, sizes, compiled)
            gradients = torch.autograd.grad(output, list(inputs.values()), cotangent)
            return {"output": output.detach(), **{f"grad.{n}": g for n, g in zip(inputs, gradients)}}

        return run

    return make


# ---- works that are no systems ----


def meta_gradient(sizes, inputs, variant):
    def loss(W1, W2, x, y):
        return F.mse_loss(torch.tanh(x @ W1) @ W2, y)

    def step(W1, W2, rate, xs, ys):
        g1, g2 = torch.func.grad(loss, argnums=(0, 1))(W1, W2, xs, ys)
        return W1 - rate * g1, W2 - rate * g2

    compiled = compiler(variant)(step)
    x = {name: inputs[name] for name in ("log_rate", "W1", "W2")}
    batches = list(zip(inputs["xs"].unbind(), inputs["ys"].unbind()))

    def outer(log_rate, W1, W2):
        rate = torch.exp(log_rate)
        for xs, ys in batches:
            if variant == "compiled":  # whose graphs hold the inner derivative; autograd makes that of the whole
                W1, W2 = compiled(W1, W2, rate, xs, ys)
                continue
            g1, g2 = torch.autograd.grad(loss(W1, W2, xs, ys), (W1, W2), create_graph=True)
            W1, W2 = W1 - rate * g1, W2 - rate * g2
        return loss(W1, W2, inputs["x"], inputs["y"])

    def run():
        leaves = [t.requires_grad_() for t in x.values()]
        value = outer(*leaves)
        gradients = torch.autograd.grad(value, leaves)
        return {"output": value.detach(), **{f"grad.{n}": g for n, g in zip(x, gradients)}}

    return run


def product(sizes, inputs, variant):
    return lambda: {"output": inputs["a"] @ inputs["b"]}


def negation(sizes, inputs, variant):
    return lambda: {"output": -inputs["a"]}


WORKS = {
    "system": runner(lambda x, sizes, compiled: SYSTEMS[sizes["system"]](x, sizes, compiled)),
    "layer": runner(layer),
    "attention": runner(softmax_attention),
    "training-step": training_step,
    "decoding": decoding,
    "meta-gradient": meta_gradient,
    "product": product,
    "negation": negation,
}
