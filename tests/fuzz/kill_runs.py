#!/usr/bin/env python3
"""Disturbs small training runs at random moments and goes on with them: nothing may be lost or doubled.

    kill_runs.py BIN [--cases N] [--minutes M] [--seed S] [--json]

A case is a seed: a small train_lm run, and some disturbances. It is killed (often between two files of one
save), stopped, run out of disk, of file size or of memory, started a second time, or loses its newest file;
after each it is resumed. In the end it has to be what an undisturbed run is: checkpoint and charts byte by
byte, metrics row by row but for speeds, no temporary files. On the way each exit code is 0, 1, or the signal
that was sent, and each failure says so in one known line. A case that fails is tried with fewer disturbances,
and printed with its seed.
Exit code: 0 all cases passed, 1 one failed, 2 wrong call.
"""
import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 120  # for any one run
CHECKPOINT, METRICS, CONFIG = "checkpoint.safetensors", "metrics.jsonl", "config.json"

# What a failed run may say: one of these, in one line.
CLEAR = re.compile(
    "already holds a training run|in use by another process|there is no checkpoint|is truncated"
    "|free some space on that disk|larger than the system allows|out of memory|does not fit into memory"
    "|starts no more than . threads|is not a JSON object|bring the file back|or move it away"
)

LEARNERS = [
    ("ttt-linear", "transformer"),
    ("ttt-linear", "mamba"),
    ("ttt-mlp", "transformer"),
    ("delta-net", "transformer"),
    ("attention", "mamba"),
    ("ttt-e2e", "transformer"),
]


class Wrong(Exception):
    """A promise that was broken."""


def require(condition, text):
    if not condition:
        raise Wrong(text)


@dataclasses.dataclass
class Disturbance:
    """What happens to one run: after `seconds`, or once the `count`-th new version of `file` is there."""

    kind: str
    seconds: float = 0.0
    file: str = ""
    count: int = 0
    amount: float = 0.0  # how much of what is limited or cut there is, as a part

    def __str__(self):
        when = f"at {self.file} {self.count}" if self.file else f"after {self.seconds * 1000:.0f} ms"
        return f"{self.kind} {when}" + (f" ({self.amount:.3f})" if self.amount else "")


KILLS = ["SIGKILL", "SIGTERM", "SIGINT"]
OTHERS = ["pause", "second run", "full disk", "file size", "memory"]
OTHERS += ["delete", "truncate", "wrong flag", "stop after"]


def draw(rng):
    kind = rng.choice(["SIGKILL"] * 6 + KILLS + OTHERS)
    out = Disturbance(kind, seconds=rng.random() ** 2 * 0.5, amount=round(rng.random(), 3))
    if rng.random() < 0.6:  # in the middle of a save
        out.file, out.count = rng.choice([METRICS, METRICS, CHECKPOINT, ".tmp"]), rng.randint(1, 4)
    return out


class Case:
    def __init__(self, seed):
        rng = random.Random(seed)
        self.seed = seed
        self.learner, self.backbone = rng.choice(LEARNERS)
        self.steps, self.save_every = rng.choice([(6, 1), (9, 2), (12, 5)])
        self.disturbances = [draw(rng) for _ in range(rng.randint(1, 6))]
        self.threads = [rng.randint(1, 3) for _ in range(len(self.disturbances) + 1)]

    def settings(self):
        return (self.learner, self.backbone, self.steps, self.save_every)

    def __str__(self):
        shown = "; ".join(map(str, self.disturbances)) or "nothing"
        return f"{self.learner}, {self.backbone}, {self.steps} steps, saved every {self.save_every}: {shown}"


def digest(folder):
    """All files of a folder, by name."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def metrics_of(folder):
    """The rows, without speeds and memory, which no two runs share."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for row in rows:
        require(row.pop("tokens_per_second") > 0, f"a speed that is none: {row}")
        peaks = row.pop("peak_rss_mb_by_rank", None)  # where a step was saved
        require(row.pop("processes", None) == (peaks and len(peaks)), f"processes and their memory differ: {peaks}")
        require(peaks is None or all(peak > 0 for peak in peaks), f"a memory that is none: {peaks}")
    return rows


def version(folder, name):
    """Changes when a file is replaced; of '.tmp', when there is another temporary file."""
    with contextlib.suppress(FileNotFoundError):
        if name == ".tmp":
            return sorted(n for n in os.listdir(folder) if n.endswith(name))
        return os.stat(folder / name).st_ino
    return None


def wait_for(process, folder, when):
    """Until the moment of a disturbance, or the end of the run."""
    start, seen, changes = time.monotonic(), version(folder, when.file), 0
    while process.poll() is None and time.monotonic() - start < SECONDS:
        if not when.file:
            if time.monotonic() - start >= when.seconds:
                return
            time.sleep(0.0005)
            continue
        now = version(folder, when.file)
        if now and now != seen:
            changes += 1
            if changes == when.count:
                return
        seen = now


class Runner:
    def __init__(self, program, work):
        self.program, self.work = program, work
        self.text = work / "text.txt"
        lines = (f"line {i} of a text that is long enough to be read\n" for i in range(400))
        self.text.write_text("".join(lines))
        self.references = {}
        self.kills = self.runs = 0
        self.can_mount = os.geteuid() == 0 and self.try_mount()
        self.least_memory = self.find_least_memory()

    def find_least_memory(self):
        """The addresses without which the program cannot even begin, in bytes."""
        too_few, enough = 0, 1 << 30
        while enough - too_few > 1 << 18:
            middle = (too_few + enough) // 2
            limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (middle, middle))
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            call = [self.program, "--version"]
            if subprocess.run(call, preexec_fn=limit, **silent, check=False).returncode == 0:
                enough = middle
            else:
                too_few = middle
        return enough

    # ---- runs ----

    def command(self, case, out, *more):
        small = "--width 16 --layers 1 --heads 1 --context 24 --batch 2 --mini-batch 4 --validation-windows 4"
        return [
            *[self.program, "--data", self.text, *small.split(), "--learner", case.learner],
            *["--backbone", case.backbone, "--steps", str(case.steps)],
            *["--save-every", str(case.save_every), "--out", out, *more],
        ]

    def start(self, case, out, threads, *more, limits=()):
        self.runs += 1

        def prepare():
            for which, value in limits:
                resource.setrlimit(which, (value, value))

        return subprocess.Popen(
            self.command(case, out, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NESTGRAD_THREADS": str(threads)},
            preexec_fn=prepare,
        )

    def finish(self, process, allowed, sent=None):
        """The exit code, which is one of those allowed, or the signal that was sent; the output as text."""
        try:
            output = process.communicate(timeout=SECONDS)[0].decode()
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Wrong(f"a run hung: no end after {SECONDS} s") from None
        code = process.returncode
        end = output[-500:]
        require(code in allowed or code == sent, f"exit code {code}, expected {allowed} or {sent}: {end}")
        errors = [line for line in output.splitlines() if "error:" in line]
        require(len(errors) == (code == 1), f"exit code {code} with {len(errors)} error lines: {end}")
        for error in errors:
            require(CLEAR.search(error), f"not a clear error: {error}")
        return code, output

    def flags(self, out):
        """How a user goes on: from the checkpoint if there is one."""
        return ["--resume"] if (out / CHECKPOINT).exists() else []

    def complete(self, case, out, threads):
        self.finish(self.start(case, out, threads, *self.flags(out)), {0})

    def reference(self, case):
        """The folder of the undisturbed run."""
        known = self.references.get(case.settings())
        if not known:
            known = self.references[case.settings()] = self.work / f"reference-{len(self.references)}"
            self.complete(case, known, 1)
        return known

    # ---- disturbances ----

    def disturb(self, case, out, d, threads):
        if d.kind in KILLS:
            self.kill(case, out, d, threads)
        else:
            getattr(self, d.kind.replace(" ", "_"))(case, out, d, threads)

    def kill(self, case, out, d, threads):
        process = self.start(case, out, threads, *self.flags(out))
        wait_for(process, out, d)
        number = getattr(signal, d.kind)
        self.kills += process.poll() is None
        process.send_signal(number)
        self.finish(process, {0}, -number)

    def pause(self, case, out, d, threads):
        process = self.start(case, out, threads, *self.flags(out))
        wait_for(process, out, d)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        self.finish(process, {0})

    def second_run(self, case, out, d, threads):
        first = self.start(case, out, threads, *self.flags(out))
        wait_for(first, out, d)
        first.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        if first.poll() is None and out.is_dir():
            has_lock = any(line.split()[4:5] == [str(first.pid)] for line in open("/proc/locks"))
            before = digest(out)
            second = self.start(case, out, threads, *self.flags(out), limits=())
            code, output = self.finish(second, {1} if has_lock else {0, 1})
            if has_lock:
                require(digest(out) == before, f"a run that was refused changed the folder: {output}")
        first.send_signal(signal.SIGCONT)
        # If the second was allowed to run, the first finds a training run, or the same steps done.
        self.finish(first, {0, 1})

    def try_mount(self):
        with contextlib.suppress(OSError, subprocess.SubprocessError), self.disk(100_000):
            return True
        return False

    @contextlib.contextmanager
    def disk(self, size):
        place = self.work / "disk"
        place.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
        subprocess.run(mount, check=True, stderr=subprocess.DEVNULL)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)

    def full_disk(self, case, out, d, threads):
        if not self.can_mount:
            return self.file_size(case, out, d, threads)
        files = list(out.iterdir()) if out.is_dir() else []
        page = 4096
        taken = sum(-(-f.stat().st_size // page) * page for f in files)
        with self.disk(taken + page * (3 + int(d.amount * 60))) as disk:
            place = disk / "run"
            shutil.copytree(out, place) if out.is_dir() else place.mkdir()
            before = digest(place)
            self.finish(self.start(case, place, threads, *self.flags(place)), {0, 1})
            kept = CHECKPOINT not in before or (place / CHECKPOINT).exists()
            require(kept, "the checkpoint is gone")
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(place, out)

    def file_size(self, case, out, d, threads):
        limit = int(300 + d.amount**2 * 120_000)
        process = self.start(case, out, threads, *self.flags(out), limits=[(resource.RLIMIT_FSIZE, limit)])
        self.finish(process, {0, 1})

    def memory(self, case, out, d, threads):
        limit = int(self.least_memory * 1.05 + d.amount**2 * 20e6)
        process = self.start(case, out, threads, *self.flags(out), limits=[(resource.RLIMIT_AS, limit)])
        self.finish(process, {0, 1})

    def damage(self, case, out, d, threads, change):
        """A file is not as it was; the user sees what happens, and brings it back from a copy."""
        files = [f for f in (out / n for n in (CHECKPOINT, METRICS, CONFIG)) if f.exists()]
        if not files:
            return
        newest = max(files, key=lambda f: f.stat().st_mtime_ns)
        if d.amount > 0.7:
            newest = files[int(d.amount * 997) % len(files)]
        saved = self.work / "saved"
        shutil.copytree(out, saved)
        change(newest)
        before = digest(out)
        code, output = self.finish(self.start(case, out, threads, *self.flags(out)), {0, 1})
        if code == 1:
            require(digest(out) == before, f"a run that was refused changed the folder: {output}")
        else:
            self.check(case, out, complete=newest.name != METRICS)
        shutil.rmtree(out)
        saved.rename(out)

    def delete(self, case, out, d, threads):
        self.damage(case, out, d, threads, lambda file: file.unlink())

    def truncate(self, case, out, d, threads):
        cut = lambda file: os.truncate(file, int(file.stat().st_size * d.amount))
        self.damage(case, out, d, threads, cut)

    def wrong_flag(self, case, out, d, threads):
        before = digest(out) if out.is_dir() else None
        wrong = [] if self.flags(out) else ["--resume"]
        self.finish(self.start(case, out, threads, *wrong), {1})
        after = digest(out) if out.is_dir() else None
        require(before == after, "a run that was refused changed the folder")

    def stop_after(self, case, out, d, threads):
        steps = str(1 + int(d.amount * case.steps))
        self.finish(self.start(case, out, threads, *self.flags(out), "--stop-after", steps), {0})

    # ---- what has to be true ----

    def check(self, case, out, complete=True):
        reference = self.reference(case)
        files = sorted(digest(out))
        require(files == sorted(digest(reference)), f"other files than there should be: {files}")
        for file in reference.iterdir():
            if file.suffix in (".safetensors", ".svg") or file.name == CONFIG:
                require((out / file.name).read_bytes() == file.read_bytes(), f"{file.name} differs")
        rows, wanted = metrics_of(out), metrics_of(reference)
        if not complete:  # what was cut off is gone, and nothing else
            wanted = [row for row in wanted if row["step"] in {r["step"] for r in rows}]
        require(rows == wanted, f"the metrics differ: steps {[row['step'] for row in rows]}")

    def run(self, case):
        """What went wrong; None: nothing."""
        out = self.work / "run"
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.work / "saved", ignore_errors=True)
        try:
            self.reference(case)
            for disturbance, threads in zip(case.disturbances, case.threads):
                self.disturb(case, out, disturbance, threads)
            self.complete(case, out, case.threads[-1])
            self.check(case, out)
        except Wrong as wrong:
            return str(wrong)
        return None

    def shrink(self, case):
        """Without each disturbance that the failure does not need."""
        at = 0
        while at < len(case.disturbances):
            left_out = case.disturbances.pop(at)
            if not any(self.run(case) for _ in range(3)):
                case.disturbances.insert(at, left_out)
                at += 1
        return case


def main():
    parser = argparse.ArgumentParser(description="Disturbs small training runs and goes on with them.")
    parser.add_argument("bin", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--cases", type=int, help="how many cases (default: as many as the minutes allow)")
    parser.add_argument("--minutes", type=float, default=1.5, help="begin no case after that (default: 1.5)")
    parser.add_argument("--seed", type=int, help="run the case of this seed alone")
    parser.add_argument("--json", action="store_true", help="last line: the results as one JSON object")
    args = parser.parse_args()
    program = args.bin / "train_lm"
    if not program.exists():
        parser.error(f"{program} is not there; build it first")

    terminal = sys.stdout.isatty()
    clear = "\r\x1b[K" if terminal else ""
    failures, cases, start = [], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        runner = Runner(program, pathlib.Path(work))
        seeds = [args.seed] if args.seed is not None else range(args.cases or sys.maxsize)
        for seed in seeds:
            if time.monotonic() - start > args.minutes * 60:
                break
            case = Case(seed)
            if terminal:
                print(f"{clear}case {seed}: {case}"[:100], end="", flush=True)
            elif cases % 20 == 0:
                print(f"case {seed}: {case}", flush=True)
            wrong = runner.run(case)
            cases += 1
            if wrong:
                failures.append(seed)
                print(f"{clear}FAIL: --seed {seed}: {case}\n  {wrong}", flush=True)
                print(f"  fewer disturbances fail too: {runner.shrink(case)}", flush=True)
    print(clear, end="")
    disk = "full disks mounted" if runner.can_mount else "full disks not mounted: not root"
    done = f"{cases} cases, {runner.runs} runs, {runner.kills} killed while they ran"
    print(f"{done}, {len(failures)} failed; {disk}")
    if args.json:
        results = {"cases": cases, "runs": runner.runs, "kills": runner.kills, "failed_seeds": failures}
        print(json.dumps(results))
    if runner.kills == 0 and cases > 5:
        print("FAIL: no run was killed while it ran, which shows nothing")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
