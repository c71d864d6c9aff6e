#!/usr/bin/env python3
"""Training under mpirun: the same files for any number of processes and each MPI, and nothing lost when one fails.

    mpi_runs.py BIN [--mpi NAME] [--moments N] [--seed S]

For NAME (openmpi, mpich), or each of the two that is installed and has a module in this build: runs with 1 to 4 processes, one that 4
processes begin and 3 go on with, N runs of which a process is killed at a random moment, one of which a process is
stopped (SIGSTOP), one whose disk is full; each is resumed, and has to be what an undisturbed run is: checkpoint and
charts byte by byte. Some of it again with sequences that are cut in time. In the end wrong calls, programs of one's own, an experiment
of which a process is stopped, and a rank 0 that works for longer than others may be silent. SKIPPED where no MPI is.
BIN holds train_lm, reproduce, inspect and own_processes.
Exit code: 0 all of it holds, 1 something does not.
"""
import argparse
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MPIS = ("openmpi", "mpich")
SECONDS = 120  # for any one run
OVER = 10  # seconds after which a job is over of which a process failed
STALL = 3  # seconds that others may be silent

WORK = ["--steps", "30", "--batch", "12", "--context", "64", "--width", "32", "--layers", "1", "--heads", "2"]
WORK += ["--save-every", "4", "--validation-windows", "20", "--seed", "5"]
LONG_STEPS = 200  # of a run that is disturbed at a step, in its first half: about a second
LONG = ["--steps", str(LONG_STEPS), *WORK[2:]]
KEPT = pathlib.Path(__file__).parents[2] / "docs/reproductions/quick/ascent.jsonl"
SLICED = ["--slices", "4", "--heads", "4", "--grains", "2"]


class Wrong(Exception):
    """A promise that was broken."""


def require(condition, text):
    if not condition:
        raise Wrong(text)


def digest(folder):
    """What must be the same: all but the speeds in metrics and page."""
    files = sorted(f for f in folder.iterdir() if f.suffix in {".safetensors", ".svg"} or f.name == "config.json")
    require(files, f"{folder} holds nothing")
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def steps_of(folder):
    """How many steps a run has made."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def has_children(parent):
    """Does a process that it started live, zombies apart?"""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(above) == parent and state != "Z":
                return True
    return False


class Mpi:
    def __init__(self, name, programs, work):
        self.name, self.work, self.more = name, work, []
        self.launcher = shutil.which(f"mpirun.{name}")
        self.program = programs / "train_lm"
        self.module = programs.parent / "lib" / f"libnestgrad_{name}.so"

    def usable(self):
        return self.launcher is not None and self.module.exists()

    def start(self, count, out, *more, text, training=WORK, **environment):
        if text is None:  # more[0]: another program
            call = [self.program.parent / more[0], *more[1:], "--out", out]
        else:
            call = [self.program, *training, *self.more, "--data", text, "--out", out, *more]
        return self.start_each([(count, call)], **environment)

    def start_each(self, calls, **environment):
        """Processes with calls of their own: [(how many, call), ..]."""
        call = [self.launcher]
        if self.name == "openmpi":
            call += ["--oversubscribe", "--bind-to", "none"]
        for i, (count, of_these) in enumerate(calls):
            call += [*([":"] if i > 0 else []), "-n", str(count), *of_these]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return subprocess.Popen(
            [str(c) for c in call],
            env={**os.environ, **root, "NESTGRAD_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def finish(process):
        """The launcher's exit code and all that was said. -9: it hung, killed, when its processes had all ended."""
        began = alive = time.monotonic()
        while True:
            try:
                output, _ = process.communicate(timeout=0.5)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if has_children(process.pid):
                alive = now
            if now - began > SECONDS:
                process.kill()
                raise Wrong("a run did not end")
            if now - alive > OVER:
                print(f"{process.args[0]} itself hung when its processes had ended")
                process.kill()

    def run(self, count, out, *more, **environment):
        code, output = self.finish(self.start(count, out, *more, **environment))
        require(code == 0, f"{self.name}, {count} processes: exit code {code}\n{output}")
        return output

    def process_of(self, rank, out, program=None):
        """The process of a rank, or None. program: another than train_lm."""
        wanted = [f"{name}={rank}".encode() for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")]
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if arguments[0] == str(program or self.program).encode() and str(out).encode() in arguments:
                if any(w in variables for w in wanted):
                    return int(entry.name)
        return None


class Runs:
    def __init__(self, mpi, text, expected, draw, expected_long=None):
        """expected: the files of a run of WORK; expected_long: of LONG."""
        self.mpi, self.text, self.expected, self.draw = mpi, text, expected, draw
        self.expected_long = expected_long

    def folder(self, name):
        return self.mpi.work / f"{self.mpi.name}-{'sliced-' if self.mpi.more else ''}{name}"

    def same(self, out, what, training=WORK):
        found, expected = digest(out), self.expected if training is WORK else self.expected_long
        require(found == expected, f"{self.mpi.name}, {what}: other files: {found}, expected {expected}")

    def each_number(self):
        for count in (1, 2, 3, 4):
            out = self.folder(f"of{count}")
            output = self.mpi.run(count, out, "--json", text=self.text)
            last = output.strip().split("\n")[-1]
            require(f'"processes":{count}' in last, f"the results do not name {count} processes: {last}")
            self.same(out, f"{count} processes")
            held = re.findall(r'"processes":(\d+),"peak_rss_mb_by_rank":\[([^]]+)\]', (out / "metrics.jsonl").read_text())
            require(held, "metrics.jsonl does not say what each process held")
            require(all(int(n) == count == len(mb.split(",")) for n, mb in held), f"metrics.jsonl names {held}")

    def other_number(self):
        out = self.folder("four-then-three")
        self.mpi.run(4, out, "--stop-after", "14", text=self.text)
        self.mpi.run(3, out, "--resume", text=self.text)
        self.same(out, "4 processes, then 3")

    def resumed(self, out, what, training=WORK):
        there = (out / "checkpoint.safetensors").exists()
        if not there:
            shutil.rmtree(out, ignore_errors=True)
        self.mpi.run(2, out, *(["--resume"] if there else []), text=self.text, training=training)
        self.same(out, what, training)
        left = [f.name for f in out.iterdir() if f.name.startswith(".nestgrad-")]
        require(not left, f"temporary files are left: {left}")

    def disturbed(self, out, rank, signal_number, says, seconds=0.0, steps=0, training=WORK):
        """A run of which a process gets a signal after so many seconds and steps; True if it came in time."""
        process = self.mpi.start(3, out, text=self.text, training=training, NESTGRAD_STALL_LIMIT=str(STALL))
        began = time.monotonic()
        victim = None
        while process.poll() is None and (victim is None or time.monotonic() - began < seconds or steps_of(out) < steps):
            victim = victim or self.mpi.process_of(rank, out)
            time.sleep(0.005)
        if process.poll() is not None:
            self.mpi.finish(process)
            return False
        try:
            os.kill(victim, signal_number)
        except ProcessLookupError:
            pass  # it has ended in the meantime
        struck = time.monotonic()
        if signal_number == signal.SIGSTOP:
            # One that is stopped when all others have ended well keeps no one waiting but its user.
            while process.poll() is None and time.monotonic() - struck < OVER + STALL:
                time.sleep(0.05)
            if process.poll() is None and not any(self.mpi.process_of(r, out) for r in range(3) if r != rank):
                os.kill(victim, signal.SIGCONT)
                self.mpi.finish(process)
                return False
        while has_children(process.pid):
            if time.monotonic() - struck > SECONDS:
                break
            time.sleep(0.01)
        took = time.monotonic() - struck
        code, output = self.mpi.finish(process)
        if code == 0:
            return False
        require(took < OVER + STALL, f"{self.mpi.name}: the job was over after {took:.1f} s only")
        require(re.search(says, output), f"{self.mpi.name}: nothing says {says!r}:\n{output}")
        time.sleep(0.2)
        left = [r for r in range(3) if self.mpi.process_of(r, out)]
        require(not left, f"{self.mpi.name}: ranks {left} live on")
        return True

    def seconds_of_a_run(self):
        """Of one with 3 processes; the second, as the first reads programs from disk."""
        out = self.folder("timed")
        for _ in range(2):
            shutil.rmtree(out, ignore_errors=True)
            began = time.monotonic()
            self.mpi.run(3, out, text=self.text)
        return time.monotonic() - began

    def killed(self, moments):
        out = self.folder("killed")
        whole = self.seconds_of_a_run()
        done = 0
        while done < moments:
            shutil.rmtree(out, ignore_errors=True)
            rank, seconds = self.draw.randrange(3), self.draw.uniform(0, whole)
            # Open MPI's mpirun leaves its second line out where a process is gone before it has met the others.
            # MPICH's leaves all to the others where one is gone while they meet.
            says = rf"rank {rank} .*signal 9|non-zero exit" if self.mpi.name == "openmpi" else r"BAD TERMINATION|Init_thread"
            if not self.disturbed(out, rank, signal.SIGKILL, says, seconds):
                continue
            done += 1
            self.resumed(out, f"rank {rank} killed after {seconds:.3f} s")
        print(f"{self.mpi.name}: killed at {done} moments of {whole:.2f} s")

    def stopped(self):
        # While MPI starts, and while it trains.
        whole = self.seconds_of_a_run()
        for rank, trains in ((0, False), (1, False), (0, True), (1, True)):
            for _ in range(20):
                out = self.folder("stopped")
                shutil.rmtree(out, ignore_errors=True)
                says = rf"rank {rank} has been silent for {STALL} s|ranks? .*been silent|has not started within|not all processes have ended"
                if trains:
                    when = {"steps": self.draw.randrange(1, LONG_STEPS // 2)}
                else:
                    when = {"seconds": self.draw.uniform(0, whole / 4)}
                if self.disturbed(out, rank, signal.SIGSTOP, says, training=LONG, **when):
                    break
            else:
                raise Wrong("each run had ended before it was stopped: this shows nothing")
            self.resumed(out, f"rank {rank} stopped", LONG)

    def full_disk(self):
        disk = self.mpi.work / "disk"
        disk.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            print("full disks not mounted: not root")
            return
        try:
            code, output = self.mpi.finish(self.mpi.start(3, disk / "run", text=self.text))
            require(code != 0, "a run on a full disk went well")
            require("free some space on that disk" in output, f"nothing says that the disk is full:\n{output}")
            require(output.count("error:") == 1, f"it is said more than once:\n{output}")
            begun = self.mpi.work / "begun"
            shutil.rmtree(begun, ignore_errors=True)
            if (disk / "run").exists():
                shutil.copytree(disk / "run", begun)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        self.resumed(begun, "a full disk")

    def reproduced(self):
        """An experiment, shared by three processes: the numbers that one process found. All but four of its runs are there."""
        runs = KEPT.read_text().splitlines(keepends=True)
        pages = []
        for name, there in (("whole", runs), ("shared", runs[:-4])):
            out = self.folder(f"reproduced-{name}")
            (out / "ascent").mkdir(parents=True)
            (out / "ascent/results.jsonl").write_text("".join(there))
            call = ["reproduce", "ascent", "--quick", "--jobs", "1", "--resume"]
            code, output = self.mpi.finish(self.mpi.start(3 if there != runs else 1, out, *call, text=None))
            require(code == 0, f"reproduce, {name}: exit code {code}\n{output}")
            pages.append((out / "ascent/page.html").read_bytes())
        require(pages[0] == pages[1], "reproduce with 3 processes writes another page")

    def reproduce_stopped(self):
        """One process of an experiment is stopped: the other does not make its own run to the end before it says so."""
        out, program = self.folder("reproduce-stopped"), self.mpi.program.parent / "reproduce"
        call = [program, "recall", "--quick", "--seeds", "1", "--jobs", "1", "--out", out]
        process = self.mpi.start_each([(2, call)], NESTGRAD_STALL_LIMIT=str(STALL))
        while process.poll() is None and not self.mpi.process_of(1, out, program):
            time.sleep(0.01)
        time.sleep(1)
        victim = self.mpi.process_of(1, out, program)
        require(victim and process.poll() is None, "the experiment had ended before a process was stopped: this shows nothing")
        os.kill(victim, signal.SIGSTOP)
        struck = time.monotonic()
        code, output = self.mpi.finish(process)
        took = time.monotonic() - struck
        require(code != 0 and f"rank 1 has been silent for {STALL} s" in output, f"reproduce: exit code {code}\n{output}")
        require(took < OVER + STALL, f"{self.mpi.name}: reproduce was over after {took:.1f} s only")

    def wrong_calls(self):
        code, output = self.mpi.finish(self.mpi.start(2, "-", "inspect", "--learner", "ttt-linear", text=None))
        require(code == 2 and "this program's work is for one" in output, f"inspect: exit code {code}\n{output}")
        def said(count, out, *more, code, text):
            got, output = self.mpi.finish(self.mpi.start(count, out, *more, text=self.text))
            require(got == code, f"{more}: exit code {got}, not {code}\n{output}")
            require(text in output and output.count("train_lm:") == 1, f"{more}: not once {text!r}:\n{output}")

        out = self.folder("wrong")
        said(3, out, "--grains", "2", code=2, text="cut it into 3 or more")
        said(2, out, "--grains", "5", code=2, text="cannot be cut into 5 grains")
        said(2, out, "--no-such", code=2, text="--no-such")
        require(not (out / "checkpoint.safetensors").exists(), "a wrong call began to train")
        said(2, self.folder("of2"), code=1, text="already holds a training run")

    def own_program(self):
        """A program that opens its processes and closes none: MPI comes to its end with it, and an error of one ends all at once."""
        shown = {}
        for how, expected, text in (("plain", 0, "trained "), ("closed", 0, "close_processes()"), ("error", None, "mine")):
            call = [self.mpi.program.parent / "own_processes", how]
            began = time.monotonic()
            code, output = self.mpi.finish(self.mpi.start_each([(2, call)], NESTGRAD_STALL_LIMIT=str(STALL * 10)))
            require(code == expected if expected is not None else code != 0, f"own program, {how}: exit code {code}\n{output}")
            require(text in output, f"own program, {how}: nothing says {text!r}:\n{output}")
            require(time.monotonic() - began < OVER, f"own program, {how}: others waited\n{output}")
            shown[how] = re.findall("trained .*", output)
        require(len(shown["plain"]) == 1 and shown["plain"] == shown["closed"], f"own program: {shown}")

    def slow_first(self):
        """Rank 0 writes sample and page alone, for longer than others may be silent: they wait, unless it is stopped meanwhile."""
        out = self.folder("slow-first")
        more = ["--learner", "ttt-mlp", "--width", "256", "--layers", "8", "--steps", "1", "--context", "32", "--batch", "2", "--grains", "2"]
        self.mpi.run(2, out, *more, text=self.text, NESTGRAD_STALL_LIMIT="1")
        require((out / "report.html").exists(), "there is no page")
        out = self.folder("stopped-first")
        process = self.mpi.start(2, out, *more, text=self.text, NESTGRAD_STALL_LIMIT="1")
        while process.poll() is None and not (out / "checkpoint.safetensors").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        victim = self.mpi.process_of(0, out)
        require(victim and not (out / "report.html").exists(), "the page was there before rank 0 was stopped: this shows nothing")
        os.kill(victim, signal.SIGSTOP)
        struck = time.monotonic()
        code, output = self.mpi.finish(process)
        took = time.monotonic() - struck
        require(code != 0 and "rank 0 has been silent for 1 s" in output, f"rank 0 stopped: exit code {code}\n{output}")
        require(took < OVER, f"{self.mpi.name}: rank 0 stopped, and over after {took:.1f} s only")

    def different_calls(self):
        """What one process alone is told is said before the first step, and no one waits."""
        out = self.folder("different")
        train = [self.mpi.program, *WORK, "--data", self.text, "--out", out]
        reproduce = [self.mpi.program.parent / "reproduce", "ascent", "--seeds", "1", "--out", out]
        weights, early = self.folder("of1") / "checkpoint.safetensors", self.folder("early")
        self.mpi.run(1, early, "--stop-after", "4", text=self.text)
        shape = {"--width", "--layers", "--heads"}
        begun = [a for i, a in enumerate(train) if a not in shape and (i == 0 or train[i - 1] not in shape)]

        def said(*calls, code=2, text, limit=STALL * 10):
            began = time.monotonic()
            got, output = self.mpi.finish(self.mpi.start_each([(1, c) for c in calls], NESTGRAD_STALL_LIMIT=str(limit)))
            took = time.monotonic() - began
            require(got != 0 if code is None else got == code, f"{calls}: exit code {got}, not {code}\n{output}")
            lines = [line for line in output.split("\n") if re.match(r"(train_lm|reproduce): ", line)]
            require(len(lines) == 1 and text in lines[0], f"{calls}: not once {text!r}:\n{output}")
            require(took < limit, f"{calls}: others waited, {took:.0f} s\n{output}")
            require(not list(out.rglob("*.jsonl")), f"{calls}: it began")

        said(train, [*train, "--no-such"], text="rank 1: ")
        said(train, [*train, "--lr", "nan"], text="rank 1: ")
        said(train, ["env", "NESTGRAD_ISA=mmx", *train], text="rank 1: ")
        said(train, ["env", "NESTGRAD_STALL_LIMIT=soon", *train], text="rank 1: ")
        said(train, [*train, "--device", "cuda:77"], code=1, text="rank 1: error: ")
        said([*train, "--no-such"], train, text="--no-such")
        said(train, train, [*train, "--grains", "4"], text="rank 2 has other settings than rank 0")
        said([*train, "--grains", "12"], train, text="rank 1 has other settings")
        said(train, [*train, "--lr", "0.1"], train, text="rank 1 has other settings")
        said(begun + ["--from", weights], train, text="rank 1 has other settings")
        said(begun + ["--from", weights], begun + ["--from", early], text="rank 1 has other settings")
        for more in (["--first-seed", "7"], ["--full"], ["recall"], ["--resume"], ["--check"]):
            said(reproduce, [*reproduce, *more], text="rank 1 has other settings")
        said(reproduce, reproduce[:1], text="rank 1 has other settings")
        said(reproduce, reproduce, [*reproduce, "--seeds", "2"], text="rank 2 has other settings")


def usable_mpis(programs, work):
    """Those that are installed and have a module in this build."""
    return [m for m in (Mpi(n, programs.resolve(), work) for n in MPIS) if m.usable()]


def write_text(file, draw):
    file.write_text("".join(draw.choice(["to be ", "or ", "not ", "that is ", "the question\n\n"]) for _ in range(9000)))


def without_module(mpi, text):
    """A build that has no module for the MPI refuses in one line."""
    hidden = mpi.module.with_suffix(".hidden")
    mpi.module.rename(hidden)
    try:
        code, output = mpi.finish(mpi.start(2, mpi.work / "none", text=text))
    finally:
        hidden.rename(mpi.module)
    require(code == 1, f"without a module: exit code {code}\n{output}")
    require("started 2 processes, but this program cannot talk to the others" in output, output)
    require(not (mpi.work / "none").exists(), "it began to train")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--mpi", choices=MPIS)
    parser.add_argument("--moments", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nestgrad-mpi-") as folder:
        work = pathlib.Path(folder)
        found = [mpi for mpi in usable_mpis(options.bin, work) if options.mpi in (None, mpi.name)]
        if not found:
            print(f"SKIPPED: no {options.mpi or 'MPI'} with a module in this build (scripts/setup.sh --mpi)")
            return 0
        text = work / "text"
        draw = random.Random(options.seed)
        write_text(text, draw)
        expected = {}
        for name, training in (("alone", WORK), ("alone-long", LONG), ("alone-sliced", WORK + SLICED)):
            call = [found[0].program, *training, "--data", text, "--out", work / name]
            subprocess.run(call, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            expected[name] = digest(work / name)
        for mpi in found:
            runs = Runs(mpi, text, expected["alone"], draw, expected["alone-long"])
            began = time.monotonic()
            try:
                runs.each_number()
                runs.other_number()
                runs.killed(options.moments)
                runs.stopped()
                runs.full_disk()
                runs.reproduced()
                runs.wrong_calls()
                runs.different_calls()
                runs.own_program()
                runs.reproduce_stopped()
                runs.slow_first()
                without_module(mpi, text)
                mpi.more = SLICED
                sliced = Runs(mpi, text, expected["alone-sliced"], draw)
                sliced.each_number()
                sliced.other_number()
                sliced.killed(1)
            except Wrong as wrong:
                print(f"FAIL: {wrong} (seed {options.seed})")
                return 1
            print(f"{mpi.name}: all of it holds, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
