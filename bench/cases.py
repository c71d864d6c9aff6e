"""What is measured: the list of cases, with the goals of each."""

import dataclasses
import itertools

# All that a work is measured against, unless it says otherwise. WITHOUT_COMPILED are works in which torch.compile has
# nothing to compile: one call of a kernel that is compiled already (a product, softmax attention).
PEERS = ("torch", "torch-compiled", "jax")
WITHOUT_COMPILED = ("torch", "jax")


@dataclasses.dataclass
class Case:
    """One work at one size. Its name is a path: `--only ttt-linear` takes all that begin with it."""

    name: str
    sizes: dict  # of the prepare request, "work" among them
    small: dict  # what is smaller when numbers are compared in f64
    tokens: int = 0  # of one run; 0: no tokens
    peers: tuple = PEERS
    # (peer, or all its variants; threads) -> ratio, or one for each instruction set: {"AVX2": .., "AVX-512": ..}
    goals: dict = dataclasses.field(default_factory=dict)
    quick: bool = False  # is it a part of --quick
    flops: float = 0  # of one run, where the ceiling is of interest
    bytes: float = 0  # that one run must read and write at least, likewise
    unit: str = "us per token"
    measure: str = "run"  # or "first": the time until the first run can start
    limit: float = 0  # seconds that a run may take at most: a goal without a peer
    floor: bool = False  # is there a hand-fused program for it (bench/floors)

    def goal(self, peer, threads, instructions):
        """The ratio that is aimed at with these instructions, or None."""
        if peer == "limit":
            return 1
        if peer == "before":
            return 0.97
        goal = self.goals.get((peer, threads), self.goals.get((peer.split("-")[0], threads)))
        return goal.get(instructions) if isinstance(goal, dict) else goal


def direction(backward):
    return "forward+backward" if backward else "forward"


SHAPE = dict(batch=1, heads=12, dim=64, time=2048, chunk=16)


def system(name, label, sizes, backward, checked=None, **more):
    """A published system, from q, k, v and its gates to its output. sizes: what differs from SHAPE, and
    options of the inner loop; checked: tokens of the check."""
    sizes = SHAPE | sizes
    checked = checked or 4 * max(sizes["chunk"], sizes.get("block", 0), 8)
    return Case(
        f"{label}/{direction(backward)}",
        dict(work="system", system=name, backward=backward, **sizes),
        dict(batch=2, heads=2, time=checked),
        tokens=sizes["batch"] * sizes["time"],
        **more,
    )


def ttt_flops(name, sizes, backward):
    """Products of the dual form: each with a weight is 2 dim dim', each with a mini-batch 2 dim' chunk;
    times three with gradients (the derivative of a product is two)."""
    heads, dim, chunk = (sizes[key] for key in ("heads", "dim", "chunk"))
    if name == "ttt-linear":
        forward = 3 * 2 * dim * dim + 2 * 2 * dim * chunk
    else:
        forward = 7 * 2 * dim * 4 * dim + 2 * chunk * (2 * dim + 2 * 4 * dim)
    return forward * heads * sizes["batch"] * sizes["time"] * (3 if backward else 1)


def layer_flops(sizes, backward):
    """The same with the four projections around it."""
    width, tokens = sizes["heads"] * sizes["dim"], sizes["batch"] * sizes["time"]
    return ttt_flops("ttt-linear", sizes, backward) + (3 if backward else 1) * 8 * width**2 * tokens


def training_flops(sizes):
    """Products of a training step: projections, the gated feed-forward layer, logits, the inner loop; the
    derivative of a product is two."""
    width, tokens = sizes["width"], sizes["batch"] * sizes["time"]
    matrices = sizes["layers"] * (4 * width**2 + 3 * width * sizes["hidden"]) + 256 * width
    inner = ttt_flops("ttt-linear", sizes | dict(dim=width // sizes["heads"]), True)
    return 3 * 2 * matrices * tokens + sizes["layers"] * inner


TTT_VARIANTS = {
    "core": {},
    "batch-4": dict(batch=4),
    "dim-32": dict(heads=24, dim=32),
    "dim-128": dict(heads=6, dim=128),
    "mini-batch-64": dict(chunk=64),
    "online": dict(chunk=1, time=512),
}
TTT_GOALS = {
    "ttt-linear/core": {("torch", 1): 4, ("torch", 2): 6, ("jax", 1): 6, ("jax", 2): 6},
    "ttt-mlp/core": {("torch", 1): 3, ("torch", 2): 4, ("jax", 1): 1.5, ("jax", 2): 1.5},
    "ttt-linear/online": {("torch", 1): 15, ("torch", 2): 18},
}

FLOORS = ("ttt-linear/core", "ttt-linear/online")


def ttt_cases():
    for name in ("ttt-linear", "ttt-mlp"):
        for variant, sizes in TTT_VARIANTS.items():
            if (name, variant) == ("ttt-mlp", "online"):
                continue
            label = f"{name}/{variant}"
            for backward in (True, False):
                yield system(
                    name,
                    label,
                    sizes,
                    backward,
                    checked=80 if variant == "online" else None,  # more than the floor goes back in one piece
                    flops=ttt_flops(name, SHAPE | sizes, backward),
                    goals=TTT_GOALS.get(label, {}) if backward else {},
                    quick=variant == "core" or (variant == "online" and backward),
                    floor=label in FLOORS,
                )


def both(goal, peer="torch"):
    """The same goal for one thread and two."""
    return {(peer, 1): goal, (peer, 2): goal}


LACT_FORMS = {"dual": "recurrent", "chunk-parallel": "parallel", "parallel": "parallel"}


def lact_cases():
    """LaCT and its ablation ladder, in every form that a rung has."""
    forms = dict.fromkeys(("lact", "lact-v1"), ("dual",))
    forms |= dict.fromkeys(("lact-v2", "lact-v3", "lact-v4", "lact-v5"), ("dual", "chunk-parallel"))
    forms["lact-v6"] = ("dual", "parallel")
    small = ("lact", "lact-v1", "lact-v2")
    goals = {name: both({"AVX2": 1.5, "AVX-512": 2.6} if name in small else {"AVX2": 1.8}) for name in forms}
    for name, form in ((name, form) for name, all_forms in forms.items() for form in all_forms):
        for backward in (True, False):
            yield system(
                name,
                f"{name}/{LACT_FORMS[form]}",
                dict(heads=4, dim=192, chunk=256, block=256, form=form),
                backward,
                goals=goals[name] if backward else {},
                quick=backward and name in ("lact", "lact-v2"),
            )


def attention_cases():
    for backward in (True, False):
        for name in ("linear-attention", "delta-net"):
            yield system(name, name, dict(chunk=1, block=64), backward, quick=backward)
        yield Case(
            f"attention/{direction(backward)}",
            dict(work="attention", backward=backward, **SHAPE),
            dict(batch=2, heads=2, time=192),
            tokens=SHAPE["time"],
            quick=backward,
            floor=True,
            goals=both({"AVX2": 1.6, "AVX-512": 2.2} if backward else {"AVX2": 1.2, "AVX-512": 1.8}),
            peers=WITHOUT_COMPILED,
        )


def meta_cases():
    for steps in (16, 64):
        for width in (16, 64, 256):
            goals = {("jax", 1): 1}
            if width != 64:
                goals["torch", 1] = {16: 20, 256: 3.5}[width]
            yield Case(
                f"meta-gradient/width-{width}/{steps}-steps",
                dict(work="meta-gradient", steps=steps, batch=16, width=width),
                dict(steps=5),
                goals=goals,
                quick=steps == 16,
                unit="us per run",
            )


def model_cases():
    model = dict(width=256, hidden=688, layers=4, heads=4, chunk=16)
    small = dict(width=32, hidden=48, layers=2, heads=2, batch=2, time=48)
    for learner in ("linear", "mlp"):
        layer = dict(work="layer", layer=learner, **SHAPE)
        for backward in (True, False):
            yield Case(
                f"ttt-{learner}/layer/{direction(backward)}",
                layer | dict(backward=backward),
                dict(batch=2, heads=2, dim=16, time=64),
                tokens=SHAPE["time"],
                quick=backward and learner == "linear",
            )
    step = dict(work="training-step", batch=4, time=512, adamw=True, **model)
    yield Case(
        "training-step/width-256",
        step,
        small | dict(adamw=False),
        tokens=4 * 512,
        goals=both({"AVX2": 1.4, "AVX-512": 2.1}) | both(1, "jax"),
        flops=training_flops(step),
        quick=True,
    )
    wide = step | dict(width=768, hidden=2064, layers=12, heads=12, batch=1, time=2048)
    yield Case(
        "training-step/width-768",
        wide,
        small | dict(adamw=False),
        tokens=2048,
        goals=both({"AVX2": 1.2, "AVX-512": 2.1}) | both(1, "jax"),
        flops=training_flops(wide),
    )
    yield Case("decoding", dict(work="decoding", batch=1, time=128, **model), small, tokens=128, quick=True)
    # LaCT with chunks of 64 tokens: with the 16 of the others, orthogonalising takes most of its time.
    for layer, chunk in (("linear", 16), ("lact", 64)):
        for streams in (1, 8):
            yield Case(
                f"streams/{layer}/{streams}",
                dict(work="decoding", streams=True, batch=streams, time=128, **(model | dict(layer=layer, chunk=chunk))),
                small | dict(streams=True, layer=layer),
                tokens=128 * streams,
                quick=True,
                peers=(),
            )
    yield Case(
        "first-step",
        step | dict(layers=12),
        small | dict(adamw=False),
        measure="first",
        limit=1.0,
        quick=True,
        peers=("jax",),
        unit="us per run",
    )


def length_cases():
    """Forward and backward against length; ours also with checkpoints through time, every 32 mini-batches."""
    for thousands in (1, 2, 4, 8, 16, 32):
        sizes = dict(heads=4, time=1024 * thousands)
        yield system("ttt-linear", f"length/{thousands}k", sizes, True, checked=64)
        checkpointed = sizes | dict(checkpoint_every=32)
        yield system("ttt-linear", f"length-checkpointed/{thousands}k", checkpointed, True, peers=())


def ceiling(n, checked, peers):
    """A product of n x n matrices; what is checked in f64 is smaller."""
    return Case(
        "ceiling",
        dict(work="product", n=n),
        dict(n=checked),
        quick=True,
        flops=2 * n**3,
        unit="us per run",
        peers=peers,
    )


def other_cases():
    n, length = 1024, 1000
    yield ceiling(n, 32, WITHOUT_COMPILED)
    yield Case(
        "replay",
        dict(work="chain", length=length),
        {},
        tokens=length,
        quick=True,
        peers=(),
        limit=0.05e-6 * length,
        unit="us per instruction",
    )


def in_precision(name):
    """What the name of a work says of the precision of its products: nothing of f32."""
    return "" if name == "f32" else f"-{name}"


def gpu_cases():
    """What is measured on a GPU: works large enough to fill one."""
    n = 8192
    yield ceiling(n, 64, ("torch",))
    yield Case(
        "copy",
        dict(work="negation", n=n),
        dict(n=64),
        quick=True,
        bytes=2 * 4 * n**2,
        unit="us per run",
        peers=("torch",),
    )
    peers = ("torch", "torch-compiled")
    large = SHAPE | dict(batch=8)
    for backward, precision in itertools.product((True, False), ("f32", "tf32")):
        yield Case(
            f"ttt-linear/layer{in_precision(precision)}/{direction(backward)}",
            dict(work="layer", layer="linear", backward=backward, precision=precision, **large),
            dict(batch=2, heads=2, dim=16, time=64),
            tokens=large["batch"] * large["time"],
            flops=layer_flops(large, backward),
            goals={("torch", 1): 5, ("torch-compiled", 1): 2} if backward else {},
            quick=backward,
            peers=peers,
        )
    for backward in (True, False):
        for name in ("ttt-linear", "ttt-mlp"):
            yield system(
                name,
                f"{name}/core",
                dict(batch=8),
                backward,
                flops=ttt_flops(name, large, backward),
                peers=peers,
            )
        yield system(
            "linear-attention",
            "linear-attention",
            dict(batch=8, chunk=1, block=64),
            backward,
            peers=peers,
            quick=backward,
        )
    for rung in range(1, 7):
        forms = {1: ("dual",)}.get(rung, ("dual", "chunk-parallel"))
        # One sequence does not fill a GPU chunk by chunk: there forms that do many chunks at once pay most.
        for form, (batch, precision) in itertools.product(
            forms,
            {2: ((8, "f32"), (1, "f32"), (1, "tf32")), 6: ((8, "f32"), (8, "tf32"))}.get(rung, ((8, "f32"),)),
        ):
            sizes = dict(batch=batch, heads=4, dim=192, chunk=256, block=256, time=8192, form=form)
            sizes["precision"] = precision
            for backward in (True, False):
                values = sizes["batch"] * sizes["heads"] * sizes["time"] * sizes["dim"]
                alone = "" if batch == 8 else f"/batch-{batch}"
                yield system(
                    f"lact-v{rung}",
                    f"lact-v{rung}/{LACT_FORMS[form]}{alone}{in_precision(precision)}",
                    sizes,
                    backward,
                    checked=1024,
                    peers=("torch",),
                    bytes=4 * values * (11 if backward else 4),  # q, k, v, output; their cotangents too
                    quick=backward and rung in (2, 6),
                )


def all_cases():
    return [
        *other_cases(),
        *ttt_cases(),
        *attention_cases(),
        *lact_cases(),
        *meta_cases(),
        *model_cases(),
        *length_cases(),
    ]
