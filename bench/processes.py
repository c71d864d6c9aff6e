"""The programs that bench/compare talks to: ours (bench/works.cpp) and the peers' (bench/peers/worker.py),
each a process of its own that answers one JSON object a line; and the virtual environment of the peers."""

import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# The allocator keeps what it was given back: most of what PyTorch would gain from another allocator.
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}  # 32 MB: its limit
WHEELS = {"jax": ["jax"], "torch": ["torch"]}  # peer -> packages; numpy comes first

FLOORS = {  # instruction set -> what a processor must have for it; the best first
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "fma", "bmi1", "bmi2"},
}


# What keeps the peers to AVX2, where NESTGRAD_ISA=v3 keeps us to it. Of the libraries that JAX multiplies with, YNNPACK
# takes the best of the processor whatever it is told: JAX goes without it, and multiplies with oneDNN.
AVX2_ONLY = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INVALID",
}


class WorkFailed(Exception):
    """A worker could not do what it was asked, or died."""


class Worker:
    """One process with a number of threads, on as many cores. It is gone at the end of a with block.

    compiling: what NESTGRAD_COMPILE says to ours."""

    def __init__(self, command, threads, log, device="cpu", compiling="never"):
        cores = sorted(os.sched_getaffinity(0))[-threads:]
        threads_env = dict.fromkeys(("NESTGRAD_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        ours = {"PYTHONDONTWRITEBYTECODE": "1", "NESTGRAD_DEVICE": device, "NESTGRAD_COMPILE": compiling}
        env = os.environ | KEEP_PAGES | threads_env | ours | (AVX2_ONLY if held_to_avx2() else {})
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.unread = b""

    def ask(self, what, seconds=300, **request):
        try:
            self.process.stdin.write(json.dumps({"do": what, **request}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkFailed("it ended") from None
        while b"\n" not in self.unread:
            if not select.select([self.process.stdout], [], [], seconds)[0]:
                raise WorkFailed(f"no answer in {seconds} s")
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                raise WorkFailed(f"it ended with {self.process.wait()}")
            self.unread += read
        line, self.unread = self.unread.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkFailed(answer["error"])
        return answer

    def peak_mb(self):
        """Largest resident size so far, in 10^6 bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024 / 1e6

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def build(folder, say):
    """Configures and builds our program. -> its path"""
    if not (folder / "CMakeCache.txt").exists():
        run_quietly(["cmake", "--preset", "release", "-B", str(folder)], folder / "bench-build.log", say)
    command = ["cmake", "--build", str(folder), "--target", "works", "floors"]
    run_quietly(command, folder / "bench-build.log", say)
    return folder / "bin" / "works"


def floors_beside(program):
    """The program of the floors (bench/floors) that was built with ours and fits this processor, or None."""
    for level, flags in FLOORS.items():
        if level == "v4" and held_to_avx2():
            continue
        found = pathlib.Path(program).parent / f"floors_{level}"
        if found.is_file() and flags <= cpu_flags():
            return found
    return None


def held_to_avx2():
    """Is AVX2 the most that programs may use, whatever the processor has?"""
    return os.environ.get("NESTGRAD_ISA") == "v3"


def cpu_flags():
    """What the processor can do, as Linux names it; nothing known elsewhere."""
    flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return set(flags.group(1).split()) if flags else set()


def run_quietly(command, log, say):
    say("running " + " ".join(command))
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        if subprocess.run(command, cwd=ROOT, stdout=out, stderr=out).returncode:
            raise WorkFailed(f"failed: {' '.join(command)}; see {log}")


def peers_python(folder, say):
    """Makes the virtual environment under the build folder, once. -> {peer: the Python that has it}"""
    environment = folder / "peers"
    python = environment / "bin" / "python"
    if not python.exists():
        run_quietly([sys.executable, "-m", "venv", str(environment)], folder / "peers.log", say)
    found = {}
    for peer, packages in WHEELS.items():
        if not can_import(python, peer):
            try:
                run_quietly(
                    [str(python), "-m", "pip", "install", "numpy", *packages], folder / "peers.log", say
                )
            except WorkFailed as error:
                say(f"no wheels for {peer}: {error}")
        for candidate in (python, shutil.which("python3", path="/usr/bin:/bin")):
            if candidate and can_import(candidate, peer):
                found[peer] = str(candidate)
                if candidate != python:
                    say(f"using the installed {peer} of {candidate}")
                break
        else:
            say(f"there is no {peer}: it is left out")
    return found


def peers_of(python, say):
    """-> {peer: python} for the peers that this Python has."""
    found = {peer: str(python) for peer in WHEELS if can_import(python, peer)}
    for peer in WHEELS.keys() - found.keys():
        say(f"{python} has no {peer}: it is left out")
    return found


def can_import(python, module):
    return subprocess.run([str(python), "-c", f"import numpy, {module}"], capture_output=True).returncode == 0
