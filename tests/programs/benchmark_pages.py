#!/usr/bin/env python3
"""The pages of benchmarks are those of the results that are kept, and say what they hold: benchmark_pages.py

docs/benchmarks*.md are held to their files by bench/compare --show --check; here that is tried on results that are known,
and the figures that docs/performance.md and docs/gpu.md take from such files are computed again.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import cases
import report
from failures import Check
from shares import ceiling_shares
from tables import ratio_text

check = Check()


def compare(code, *options):
    done = subprocess.run([ROOT / "bench/compare", *map(str, options)], capture_output=True, text=True)
    check(done.returncode == code, f"compare {options}: exit {done.returncode}, not {code}: {done.stderr}")
    return done.stderr


def line(work, peer, theirs, **more):
    """One result: ours takes 1 s and 100 MB."""
    plain = dict(threads=1, ours=1.0, ours_mb=100.0, interpreted=None, floor=None, times_the_floor=None, tokens=0, flops=0,
                 bytes=0, unit="us per run", error_f64=0.0, arena_mb=1.0, recompute_factor=1.0, goal=None, theirs_mb=400.0)
    return plain | dict(work=work, peer=peer, theirs=theirs, ratio=theirs and theirs / plain["ours"]) | more


def page_of(lines):
    machine = {"device": "cpu", "cpu": "a processor", "cores": 2, "best instruction set": "AVX2", "our kernels": "AVX2",
               "our loops": "compiled", "system": "Linux", "versions": {}, "date": "2026-01-01", "load before": 0.1}
    return report.page({"selection": "all works", "machine": machine, "results": lines, "problems": []})


def row(page, begin):
    found = [l for l in page.splitlines() if l.startswith(f"| {begin} ")]
    return [cell.strip() for cell in found[0].strip("|").split("|")] if found else []


def variants_are_told():
    both = [line("a", "torch", 3.0, goal=2.5), line("a", "torch-compiled", 2.0, goal=2.5), line("a", "jax", 5.0, goal=4)]
    page = page_of(both)
    check(row(page, "a")[1:] == ["PyTorch, torch.compile", "eager and torch.compile", "1", "**2.00**", "2.5", "no"],
          f"the faster variant counts, and both are named: {row(page, 'a')}")
    check("may be faster" not in page, "where both were run nothing is open")
    check("| a | JAX |  | 1 | **5.00** | 4 | yes |" in page, "a peer of one variant has none to name")
    page = page_of(both + [line("b", "torch", 3.0, goal=2.5)])
    check(row(page, "b")[1:] == ["PyTorch", "eager", "1", "**3.00**", "2.5", "yes"], f"eager alone is told: {row(page, 'b')}")
    check("`torch.compile` may be faster" in page, "what was not run is told")


def memory_is_told():
    work = "training-step/width-768"
    lines = [line(work, "torch", 2.0, ours_mb=300.0, theirs_mb=700.0), line(work, "jax", 2.0, ours_mb=300.0, theirs_mb=800.0)]
    page = page_of(lines)
    check(row(page, f"{work}, peak memory over the better peer's, 1 thread")[1:] == ["0.43", "at most 0.5", "yes"],
          "the goal is of the whole process")
    check("above each program's" not in page and "whole process" in page, "without a small work there is one figure")
    small = [line("ceiling", "torch", 1.0, flops=1.0, theirs_mb=500.0), line("ceiling", "jax", 1.0, flops=1.0, theirs_mb=200.0)]
    page = page_of(small + lines)  # (300 - 100) / min(700 - 500, 800 - 200)
    check(row(page, "the same above each program's process of `ceiling`, 1 thread")[1:] == ["1.00", "", ""],
          "what is above the process of a small work is told beside it")


def floors_are_told():
    floor = dict(floor=0.5, times_the_floor=2.0)
    new, old = dict(floor, floor_order=report.ALL_HEADS_FORWARD), floor
    page = page_of([line("ttt-linear/core/forward+backward", "torch", 2.0, **new)])
    check("forward for all heads before" in page and "On this page the floor" not in page, "floors of today")
    page = page_of([line("ttt-linear/core/forward+backward", "torch", 2.0, **old)])
    check("On this page the floor of ttt-linear/core/forward+backward took each head" in page, "floors of older results")


def pages_are_held(folder):
    kept = folder / "benchmarks.json"
    shutil.copy(DOCS / "benchmarks.json", kept)
    compare(1, "--show", kept, "--check")
    compare(0, "--show", kept)
    compare(0, "--show", kept, "--check")
    page = kept.with_suffix(".md")
    check(page.read_text() == (DOCS / "benchmarks.md").read_text(), "the page of the same results is the same")
    page.write_text(page.read_text().replace("**4.59**", "**4.58**"))
    check("is not the page of" in compare(1, "--show", kept, "--check"), "a changed page is told")
    kept.write_text("{}")
    check("these are no results" in compare(2, "--show", kept), "what holds no results is refused")
    check("leave --into" in compare(2, "--show", kept, "--json", "x"), "--show measures nothing")
    compare(0, "--show", "--check")


def works_have_variants():
    """Each work in which there is something to compile is run against torch.compile."""
    bare = {c.name.split("/")[0] for c in cases.all_cases() if "torch" in c.peers and "torch-compiled" not in c.peers}
    check(bare == {"ceiling", "attention"}, f"works without torch.compile: {bare}")


class Results:
    def __init__(self, name):
        self.lines = json.loads((DOCS / name).read_text())["results"]

    def of(self, work, threads, peer=None):
        return next(l for l in self.lines if l["work"] == work and l["threads"] == threads and peer in (None, l["peer"]))

    def ratio(self, work, threads, peer="torch"):
        """Against the faster variant that was run."""
        return min(l["ratio"] for l in self.lines
                   if l["work"] == work and l["threads"] == threads and (l["peer"] or "").split("-")[0] == peer)

    def both(self, work, peer="torch"):
        return [self.ratio(work, threads, peer) for threads in (1, 2)]

    def shares(self, work, peer=0):
        return [100 * ceiling_shares(self.lines, threads)[work][peer] for threads in (1, 2)]


def figures_of_performance():
    """What docs/performance.md says of docs/benchmarks*.json, computed again."""
    kept, avx2, zen3 = (Results(f"benchmarks{name}.json") for name in ("", "-avx2", "-zen3"))
    core, mlp, online = (f"{name}/forward+backward" for name in ("ttt-linear/core", "ttt-mlp/core", "ttt-linear/online"))
    attention = ("attention/forward+backward", "attention/forward")
    step, wide = "training-step/width-256", "training-step/width-768"
    inside = lambda work: kept.of(work, 1)["interpreted"] / kept.of(work, 1)["ours"]
    compiled = {re.sub("/forward.*", "", l["work"]) for l in kept.lines if l["peer"] == "torch-compiled"}
    lact = [r for work in ("lact/recurrent", "lact-v1/recurrent", "lact-v2/recurrent", "lact-v2/parallel")
            for r in kept.both(f"{work}/forward+backward")]
    form = lambda rung, name, threads: kept.of(f"lact-v{rung}/{name}/forward+backward", threads)["ours"]
    slower = max(form(n, "parallel", t) / form(n, "recurrent", t) for n in range(2, 7) for t in (1, 2))
    length = lambda k, kind="length": kept.of(f"{kind}/{k}k/forward+backward", 1)
    per_token = lambda l, key="ours", scale=1e6: l[key] / l["tokens"] * scale
    plain = [per_token(length(k)) for k in (2, 4, 8, 16, 32)]
    points = [per_token(length(k, "length-checkpointed")) for k in (2, 4, 8, 16, 32)]
    streams = kept.of("streams/lact/1", 2), kept.of("streams/lact/8", 2)
    two = lambda values, form: form.format(*values)
    all_lact = [avx2.ratio(l["work"], l["threads"]) for l in avx2.lines
                if l["work"].startswith("lact") and l["work"].endswith("+backward")]
    rungs = lambda *numbers: [zen3.ratio(l["work"], 1) for l in zen3.lines if l["threads"] == 1 and
                              re.fullmatch(f"lact({'|'.join(numbers)})/.*[+]backward", l["work"])]
    least = min((l["ratio"], l["work"]) for l in zen3.lines if l["peer"] in ("torch", "torch-compiled", "jax"))
    said = [
        f"TTT-Linear {zen3.ratio(core, 1):.1f} times (4 asked) and {zen3.of(core, 1)['times_the_floor']:.2f} times its floor (1.17), "
        f"online {zen3.ratio(online, 1):.0f} (15), TTT-MLP {zen3.ratio(mlp, 1):.1f} (3), LaCT and its first two rungs "
        f"{two([f(rungs('', '-v1', '-v2')) for f in (min, max)], '{:.2f} to {:.2f}')} (1.5), the third to the sixth "
        f"{two([f(rungs('-v3', '-v4', '-v5', '-v6')) for f in (min, max)], '{:.2f} to {:.2f}')} (1.8), "
        f"attention {zen3.ratio(attention[0], 1):.2f} (1.6), forward {zen3.ratio(attention[1], 1):.2f} (1.2), "
        f"the meta-gradient of width 256 {zen3.ratio('meta-gradient/width-256/16-steps', 1):.1f} (3.5), "
        f"the training step {zen3.ratio(step, 1):.2f} (1.4), of width 768 {zen3.ratio(wide, 1):.2f} (1.2)",
        f"With two threads TTT-Linear {zen3.ratio(core, 2):.1f} (6), online {zen3.ratio(online, 2):.0f} (18), "
        f"TTT-MLP {zen3.ratio(mlp, 2):.1f} (4), attention {zen3.ratio(attention[0], 2):.2f}, forward {zen3.ratio(attention[1], 2):.2f}, "
        f"the training step {zen3.ratio(step, 2):.2f}",
        f"No peer was faster in any work that was run there, forward or backward (the least: {least[0]:.2f}, {least[1]}",
        f"{inside(core):.1f} for the TTT-Linear core forward and backward, {inside(online):.1f} for its online form, "
        f"{inside(mlp):.1f} for TTT-MLP",
        f"a plain product of 1,024 cubed ({two(kept.both('ceiling'), '{:.2f} and {:.2f}')}; with AVX2 "
        f"{two(avx2.both('ceiling'), 'one thread {:.2f}, two {:.2f}')})",
        f"both were run there in {['no', 'one', 'two', 'three', 'four', 'five'][len(compiled)]} works alone",
        f"TTT-Linear ({two(kept.both(core), '{:.1f} times torch.compile, {:.1f} with two threads')})",
        f"the meta-gradient ({kept.ratio('meta-gradient/width-256/16-steps', 1):.1f} and "
        f"{kept.ratio('meta-gradient/width-256/64-steps', 1):.1f} times eager PyTorch)",
        f"The online form of TTT-Linear ({two(kept.both(online), '{:.0f} and {:.0f}')} times eager PyTorch)",
        f"TTT-Linear takes {avx2.of(core, 1)['times_the_floor']:.2f} times that page's floor "
        f"({two(avx2.both(core), '{:.1f} and {:.1f}')} times PyTorch without its compiler, whose numbers are wrong then; "
        f"JAX {two(avx2.both(core, 'jax'), '{:.1f} and {:.1f}')}), online {two(avx2.both(online), '{:.0f} and {:.0f}')}, "
        f"TTT-MLP {two(avx2.both(mlp), '{:.1f} and {:.1f}')}, LaCT {min(all_lact):.1f} to {max(all_lact):.2f}",
        f"the floor: {kept.of(core, 1)['times_the_floor']:.2f} on that page",
        f"3 times torch.compile (4 with two threads): {two(kept.both(mlp), '{:.1f} ({:.1f})')}; "
        f"60 % of the product rate: {kept.shares(mlp)[0]:.0f}.",
        f"LaCT, 2.6 times: {min(lact):.1f} to {max(lact):.1f}.",
        f"The parallel form takes up to {100 * (slower - 1):.0f} % more than the recurrent one",
        f"Attention, 2.2 times forward and backward, 1.8 forward: "
        f"{two([kept.ratio(work, 1) for work in attention], '{:.1f}, {:.1f}')}.",
        f"Training step, 2.1 times: {two(kept.both(step), '{:.1f} ({:.1f})')}, "
        f"of width 768 {two(kept.both(wide), '{:.1f} ({:.1f})')}; "
        f"80 % of the product rate: {two(kept.shares(step), '{:.0f} ({:.0f})')}, "
        f"of width 768 {two(kept.shares(wide), '{:.0f} ({:.0f})')} of 85.",
        f"PyTorch is at {kept.shares(step, 1)[0]:.0f} and {kept.shares(wide, 1)[0]:.0f} % of that rate",
        f"from 2,048 to 32,768 tokens: within {100 * (max(plain) / min(plain) - 1):.0f} %.",
        f"A token keeps {per_token(length(32), 'arena_mb', 1000):.1f} KB for the derivative "
        f"({length(32)['arena_mb']:.0f} MB of arena at 32,768 tokens; the process, with inputs, outputs and gradients, "
        f"has {per_token(length(32), 'ours_mb', 1000):.1f} KB a token)",
        f"it takes {min(plain):.1f} us, in the long runs, from memory, {max(plain):.1f}; "
        f"with checkpoints it is {min(points):.1f} to {max(points):.1f},",
        f"Eight streams of LaCT, 4 times the tokens of one: {per_token(streams[0]) / per_token(streams[1]):.2f}.",
        f"the same streams gained {per_token(streams[0]) / per_token(streams[1]):.2f} (benchmarks",
    ]
    text = re.sub(r"\s+", " ", re.sub(r"[*\[]", "", (DOCS / "performance.md").read_text()))
    for sentence in said:
        check(sentence in text, f"docs/performance.md does not say: {sentence}")


def figures_of_gpu():
    """The rows of docs/gpu.md's first table that are of docs/gpu-report.json."""
    results = json.loads((DOCS / "gpu-report.json").read_text())["bench"]["results"]
    page, seen = (DOCS / "gpu.md").read_text(), 0
    names = {
        "ttt-linear/layer/forward+backward": "TTT-Linear, layer: 8 sequences of 2,048, 12 heads of 64",
        "ttt-linear/layer-tf32/forward+backward": "the same, products in TF32 on both sides",
        "ttt-linear/core/forward+backward": "TTT-Linear, core",
        "linear-attention/forward+backward": "linear attention, chunks of 64",
        "lact-v2/recurrent/batch-1-tf32/forward+backward": "LaCT, variant 2, one sequence of 8,192, TF32, recurrent",
    }
    for work in dict.fromkeys(l["work"] for l in results):
        of = {l["peer"]: l for l in results if l["work"] == work}
        variants = [of[peer] for peer in ("torch", "torch-compiled") if peer in of]
        seconds = [of["torch"]["ours"], *(v["theirs"] for v in variants)]
        wanted = [format(1e3 * s, "#.3g").rstrip(".") + " ms" for s in seconds]
        wanted += [""] * (2 - len(variants))
        if len(variants) == 2:
            wanted.append(", ".join(ratio_text(v["ratio"]) for v in variants))
        else:
            wanted.append(f"{variants[0]['ratio']:.1f}")
        found = row(page, names.get(work, work))
        check(found[1:5] == wanted, f"docs/gpu.md has {found[1:5]} for {work}, its report {wanted}")
        seen += 1
    worst = max(l["error_f64"] for l in results)
    check(f"(largest error here: {worst:.1e})" in page, f"docs/gpu.md does not say that the largest error is {worst:.1e}")
    check(seen == len(names), f"{seen} works of the report are in the table of docs/gpu.md")


variants_are_told()
memory_is_told()
floors_are_told()
works_have_variants()
with tempfile.TemporaryDirectory() as temporary:
    pages_are_held(pathlib.Path(temporary))
figures_of_performance()
figures_of_gpu()
sys.exit(check.failures > 0)
