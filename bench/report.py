"""What bench/compare found, as a page: ratios first, then every number."""

import datetime
import os
import pathlib
import platform
import re

from processes import Worker, cpu_flags, held_to_avx2
from shares import bandwidth, bandwidth_shares, ceiling, ceiling_shares
from tables import plural, ratio_text, scaled, table

NAMES = {
    "torch": "PyTorch",
    "torch-compiled": "PyTorch, torch.compile",
    "jax": "JAX",
    "before": "the build before",
    "limit": "the limit",
}
CORE_LINEAR, CORE_MLP = (f"ttt-{name}/core/forward+backward" for name in ("linear", "mlp"))

COMPILED = (
    " Our plans run with their elementwise loops as machine code (`NESTGRAD_COMPILE=now`), as those of "
    "`torch.compile` and JAX do; the column `interpreted` says what they take by default, without a compiler. No "
    "time to compile is counted, of any program, but in `first-step`, where our compiler works in the background."
)
ALL_HEADS_FORWARD = "forward for all heads before backward for any"  # how a floor goes; older results do not say
BUSY = " **Other programs ran on the machine at the same time: these numbers are noisy.**"


def machine(ours, pythons, log, device="cpu", compiling="now"):
    """What the numbers were taken on."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    flags = cpu_flags()
    versions = {}
    for peer, python in pythons.items():
        with Worker(
            [python, str(pathlib.Path(__file__).parent / "peers" / "worker.py"), peer], 1, log
        ) as worker:
            versions |= worker.ask("versions")
    with Worker([str(ours)], 1, log, device) as worker:
        runs_on = worker.ask("device")["name"]
    return {
        "device": runs_on,
        "cpu": re.search(r"model name\s*:\s*(.*)", cpu).group(1),
        "cores": len(os.sched_getaffinity(0)),
        "best instruction set": (
            "AVX-512" if "avx512f" in flags and not held_to_avx2() else "AVX2" if "avx2" in flags else "SSE2"
        ),
        "our kernels": (
            "AVX2, to which all programs are held on a processor with AVX-512: without torch.compile, whose numbers "
            "are wrong then, and JAX without YNNPACK, which cannot be held"
            if held_to_avx2() and "avx512f" in flags
            else os.environ.get("NESTGRAD_ISA", "the best of the processor")
        ),
        "our loops": {"now": "compiled", "never": "interpreted"}[compiling],
        "system": platform.system(),
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "load before": round(os.getloadavg()[0], 1),
    }


def kernels_of(machine):
    """What our kernels and loops were compiled for."""
    return f"kernels: {machine['our kernels']}; loops: {machine.get('our loops', 'interpreted')}"


def difference(earlier, now):
    """Why numbers of the two machines do not belong on one page; empty if they do."""
    keys = [key for key in now if key not in ("date", "load before")]
    return ", ".join(
        f"{key} was {earlier.get(key)}, is {now[key]}" for key in keys if earlier.get(key) != now[key]
    )


def merged(earlier, now):
    """The earlier outcome, with the works measured now in the places of the same."""
    new = {(l["work"], l["threads"]): [] for l in now["results"]}
    for l in now["results"]:
        new[l["work"], l["threads"]].append(l)
    results, date = [], earlier["machine"]["date"]
    for l in earlier["results"]:
        key = l["work"], l["threads"]
        if key not in new:
            results.append({"date": date} | l)
        else:
            results += new[key]
            new[key] = []
    results += [l for left in new.values() for l in left]
    measured = lambda problem: any(
        problem.startswith(f"{work}, {plural(threads)}:") for work, threads in new
    )
    problems = [p for p in earlier["problems"] if not measured(p)] + now["problems"]
    return earlier | {
        "results": results,
        "problems": problems,
        "machine": earlier["machine"]
        | {"load before": max(earlier["machine"]["load before"], now["machine"]["load before"])},
    }


def measured_again(lines, date):
    """What is not of the run of this date, in words."""
    out = []
    for other in sorted({l.get("date", date) for l in lines} - {date}):
        for threads in sorted({l["threads"] for l in lines}):
            works = dict.fromkeys(l["work"] for l in lines if l["threads"] == threads)
            again = dict.fromkeys(l["work"] for l in lines if l["threads"] == threads and l.get("date") == other)
            if again:
                which = "all works" if len(again) == len(works) else ", ".join(again)
                out.append(f" Measured again on {other}, with {plural(threads)}: {which}.")
    return "".join(out)


def write(path, text):
    """The old file stays whole until the new one is."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def one_line(lines):
    """Progress: ours, then each peer with its ratio."""
    parts = [f"ours {scaled(lines[0]['ours'], lines[0])} {lines[0]['unit']}"]
    if interpreted := lines[0].get("interpreted"):
        parts.append(f"interpreted {scaled(interpreted, lines[0])}")
    parts += [f"{l['peer']} {scaled(l['theirs'], l)} ({ratio_text(l['ratio'])}x)" for l in lines if l["peer"]]
    if floor := lines[0]["floor"]:
        parts.append(f"floor {scaled(floor, lines[0])} (ours: {ratio_text(lines[0]['times_the_floor'])} times it)")
    return ", ".join(parts)


def page(outcome):
    m, lines = outcome["machine"], outcome["results"]
    against = [l for l in lines if l["peer"]]
    peers = [l for l in against if l["peer"] != "limit"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items()) or "no peers"
    on_gpu = m["device"] != "cpu"
    out = [
        "# Benchmarks on a GPU" if on_gpu else "# Benchmarks",
        "",
        "Written by `bench/compare`, which runs the project and its peers in turns on the same works, after it "
        "has checked in f64 that all compute the same outputs and gradients. Do not edit: `bench/compare --show` "
        "writes the page of the results that are kept beside it. This page: "
        f"{outcome['selection']}." + measured_again(lines, m["date"]),
        "",
        *([f"All programs on {m['device']}, in f32 without TF32.", ""] if on_gpu else []),
        f"{m['cpu']}, {m['cores']} cores, {m['best instruction set']} (our {kernels_of(m)}), "
        f"{m['system']}; {versions}; {m['date']}. Load of the machine before the run: {m['load before']}. "
        "Times are medians; every program has as many cores as threads. A ratio is the peer's time over ours: "
        "above 1 we are faster." + (COMPILED if m.get("our loops") == "compiled" else "") + (BUSY if m["load before"] > 0.5 else ""),
        "",
    ]
    out += (
        goals(against)
        + other_goals(lines)
        + losses(peers)
        + floors(lines)
        + ["## All works", ""]
        + everything(lines)
        + ceiling(lines)
        + bandwidth(lines)
    )
    if outcome["problems"]:
        out += ["## Left out", ""] + [f"* {p}" for p in outcome["problems"]] + [""]
    return "\n".join(out)


VARIANTS = {"torch": "eager", "torch-compiled": "torch.compile"}  # of PyTorch; the others have one


def variants(lines):
    """{(work, threads): the variants of PyTorch that were run}"""
    run = {}
    for l in lines:
        if l["peer"] in VARIANTS:
            run.setdefault((l["work"], l["threads"]), {})[VARIANTS[l["peer"]]] = None
    return {key: list(names) for key, names in run.items()}


def goals(lines):
    """Against the faster variant of each peer, of those that were run."""
    best, run = {}, variants(lines)
    for l in lines:
        key = (l["work"], l["threads"], l["peer"].split("-")[0])
        if l["goal"] and (key not in best or l["ratio"] < best[key]["ratio"]):
            best[key] = l
    if not best:
        return []
    rows = [
        [
            l["work"],
            NAMES[l["peer"]],
            " and ".join(run[l["work"], l["threads"]]) if l["peer"] in VARIANTS else "",
            str(l["threads"]),
            f"**{ratio_text(l['ratio'])}**",
            f"{l['goal']:g}",
            "yes" if l["ratio"] >= l["goal"] else "no",
        ]
        for l in best.values()
    ]
    eager = {VARIANTS["torch"]} in [set(run[l["work"], l["threads"]]) for l in best.values() if l["peer"] in VARIANTS]
    return [
        "## Goals",
        "",
        "The faster variant of a peer counts, of those that were run. PyTorch has two, eager and through `torch.compile`; "
        "the column says which of them ran."
        + (
            " Where it was eager alone the ratio is against eager PyTorch: `torch.compile` may be faster, and this page "
            "does not say by how much."
            if eager
            else ""
        ),
        "",
        *table(["work", "against", "variants of PyTorch", "threads", "ratio", "goal", "reached"], rows),
    ]


def our_times(lines, threads):
    """{work: one of its lines}, at this number of threads."""
    return {l["work"]: l for l in lines if l["threads"] == threads}


def other_goals(lines):
    """Goals that are no ratio of times to a peer's: (what, value, goal, reached), for what was run."""
    found = []

    def note(what, value, goal, at_most=False):
        found.append(
            (
                what,
                ratio_text(value),
                f"{'at most' if at_most else 'at least'} {goal:g}",
                "yes" if (value <= goal if at_most else value >= goal) else "no",
            )
        )

    numbers = sorted({l["threads"] for l in lines})
    for threads in numbers:
        ours, with_threads = our_times(lines, threads), plural(threads)
        shares = ceiling_shares(lines, threads)
        if share := shares.get(CORE_MLP):
            note(f"{CORE_MLP}, share of the matmul ceiling, {with_threads}", share[0], 0.6)
        if (core := ours.get(CORE_LINEAR)) and core.get("floor"):
            note(f"{CORE_LINEAR}, times its floor, {with_threads}", core["times_the_floor"], 1.17, at_most=True)
        for rung in range(2, 7):
            recurrent, parallel = (
                ours.get(f"lact-v{rung}/{form}/forward+backward") for form in ("recurrent", "parallel")
            )
            if recurrent and parallel:
                note(
                    f"lact-v{rung}, parallel over recurrent form, {with_threads}",
                    recurrent["ours"] / parallel["ours"],
                    4 if rung == 2 and "copy" in ours else 0.97,
                )
        for layer in ("linear", "lact"):
            one, eight = (ours.get(f"streams/{layer}/{n}") for n in (1, 8))
            if one and eight and threads == 2:
                note(
                    f"streams/{layer}, tokens per second of eight over those of one, {with_threads}",
                    one["ours"] / one["tokens"] / (eight["ours"] / eight["tokens"]),
                    4,
                )
        if (share := bandwidth_shares(lines, threads).get("lact-v6/parallel/forward+backward")):
            note("lact-v6, share of the bandwidth of a copy", share[0], 0.7)
        per_token = [
            l["ours"] / l["tokens"]
            for work, l in ours.items()
            if re.fullmatch(r"length/(2|4|8|16|32)k/forward\+backward", work)
        ]
        if len(per_token) > 1:
            note(
                f"time per token from 2k to 32k tokens, largest over smallest, {with_threads}",
                max(per_token) / min(per_token),
                1.1,
                at_most=True,
            )
        long, short = (ours.get(f"length-checkpointed/{k}k/forward+backward") for k in (32, 2))
        if long and short:
            note(
                f"memory of the plan, 32k over 2k tokens, checkpointed, {with_threads}",
                long["arena_mb"] / short["arena_mb"],
                16,
                at_most=True,
            )
            note(
                f"recomputation with it, {with_threads}",
                long["recompute_factor"],
                1.4,
                at_most=True,
            )
        for work, goal in (("training-step/width-256", 0.8), ("training-step/width-768", 0.85)):
            if share := shares.get(work):
                note(f"{work}, share of the matmul ceiling, {with_threads}", share[0], goal)
            whole, above = memory_over_peers(lines, work, threads)
            if whole:
                note(f"{work}, peak memory over the better peer's, {with_threads}", whole, 0.5, at_most=True)
            if above:
                found.append((f"{ABOVE}, {with_threads}", ratio_text(above), "", ""))
    if 1 in numbers and 2 in numbers:
        one, two = our_times(lines, 1), our_times(lines, 2)
        for work in (CORE_LINEAR, CORE_MLP, "training-step/width-256"):
            if work in one and work in two:
                note(f"{work}, two threads over one", one[work]["ours"] / two[work]["ours"], 1.8)
        gains = {work: one[work]["ours"] / two[work]["ours"] for work in one if work in two}
        worst = min(gains, key=gains.get, default=None)
        if len(gains) > 3:
            note(f"two threads over one, the least of all works ({worst})", gains[worst], 1)
    if not found:
        return []
    has = lambda part: any(part in what for what, *_ in found)
    memory = [(MEMORY if has("peak memory") else "") + (MEMORY_ABOVE if has(ABOVE) else ""), ""]
    return ["## Other goals", "", *(memory if memory[0] else []), *table(["what", "value", "goal", "reached"], found)]


ABOVE = "the same above each program's process of `ceiling`"
MEMORY = (
    "Peak memory is that of the whole process, with interpreter and libraries, and its goal is judged so, as it was asked."
)
MEMORY_ABOVE = (
    " The line after it is of what is left when each program's peak in `ceiling`, a product of two matrices of 4 MB, is "
    "taken off. No goal is set for that."
)


def memory_over_peers(lines, work, threads):
    """Our peak memory over that of the peer that needs least: of the whole processes, and of what is above the process
    of the same program that only multiplies two matrices. None for what was not run."""
    here = [l for l in lines if l["threads"] == threads and l["theirs_mb"]]
    of = [l for l in here if l["work"] == work]
    if not of:
        return None, None
    whole = of[0]["ours_mb"] / min(l["theirs_mb"] for l in of)
    small = {l["peer"]: l for l in here if l["work"] == "ceiling"}
    base = lambda l: small.get(l["peer"]) or small.get(l["peer"].split("-")[0])
    if not all(base(l) for l in of):
        return whole, None
    theirs = min(l["theirs_mb"] - base(l)["theirs_mb"] for l in of)
    return whole, (of[0]["ours_mb"] - base(of[0])["ours_mb"]) / theirs


def losses(lines):
    lost = sorted((l for l in lines if l["ratio"] < 1), key=lambda l: l["ratio"])
    if not lost:
        return ["## Where we lose", "", "Nowhere in this run.", ""]
    rows = [[l["work"], NAMES[l["peer"]], str(l["threads"]), ratio_text(l["ratio"])] for l in lost]
    return ["## Where we lose", "", *table(["work", "against", "threads", "ratio"], rows)]


def floors(lines):
    """Our times beside those of hand-fused programs. Older results have none."""
    with_floor = {(l["work"], l["threads"]): l for l in lines if l.get("floor")}
    rows = [
        [l["work"], l["unit"], scaled(l["ours"], l), scaled(l["floor"], l), f"**{ratio_text(l['times_the_floor'])}**"]
        for l in with_floor.values()
    ]
    if not rows:
        return []
    return [
        "## Floors",
        "",
        "A floor is what a work costs when everything is written by hand for its shape (`bench/floors`: sizes known "
        "to the compiler, values in registers, no pass over memory that could be part of another), on one thread"
        + floor_order([l for l in with_floor.values() if l["work"].endswith("/forward+backward")])
        + "No general engine is expected to be faster; how many times the floor we take says how much is left to "
        "gain. It is checked in f64 as the peers are, and is no peer: the ratios above leave it out.",
        "",
        *table(["work", "unit", "ours", "floor", "times the floor"], rows),
    ]


def floor_order(lines):
    """How the floors of works that go backward go through their heads; the program did it otherwise before 2026-11-28."""
    new = [l for l in lines if l.get("floor_order") == ALL_HEADS_FORWARD]
    old = list(dict.fromkeys(l["work"] for l in lines if l not in new and l["work"].startswith("ttt-")))
    out = f", and {ALL_HEADS_FORWARD}, as in a model, whose loss reads them all" if new else ""
    out += ". "
    if old:
        out += (
            f"On this page the {'floor' if len(old) == 1 else 'floors'} of {' and '.join(old)} took each head forward and at "
            "once backward, while what it keeps is still in the cache. No model can do that, since its loss reads all heads; "
            f"`bench/floors` now goes {ALL_HEADS_FORWARD}, which takes longer. "
        )
    return out


def everything(lines):
    """A table a thread count and unit: times, ratios, peak memory."""
    out = []
    for threads in sorted({l["threads"] for l in lines}):
        for unit in dict.fromkeys(l["unit"] for l in lines):
            here = [l for l in lines if l["threads"] == threads and l["unit"] == unit]
            if not here:
                continue
            peers = [p for p in NAMES if p != "limit" and any(l["peer"] == p for l in here)]
            interpreted = any(l.get("interpreted") for l in here)
            rows = []
            for work in dict.fromkeys(l["work"] for l in here):
                of = {l["peer"]: l for l in here if l["work"] == work}
                any_line = next(iter(of.values()))
                row = [work, scaled(any_line["ours"], any_line)]
                if interpreted:
                    without = any_line.get("interpreted")
                    row.append(scaled(without, any_line) if without else "")
                for p in peers:
                    row.append(
                        f"{scaled(of[p]['theirs'], of[p])} ({ratio_text(of[p]['ratio'])})" if p in of else ""
                    )
                rows.append(
                    row
                    + [f"{any_line['ours_mb']:.0f}"]
                    + [f"{of[p]['theirs_mb']:.0f}" if p in of else "" for p in peers]
                )
            head = [
                "work",
                "ours",
                *["interpreted"] * interpreted,
                *(f"{NAMES[p]} (ratio)" for p in peers),
                "ours, MB",
                *(f"{NAMES[p]}, MB" for p in peers),
            ]
            out += [
                f"### {plural(threads)}, {unit}",
                "",
                "MB: peak of the process, with its interpreter and libraries. An empty cell was not run.",
                "",
                *table(head, rows),
            ]
    return out
