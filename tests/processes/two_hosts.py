#!/usr/bin/env python3
"""Training on two hosts that reach each other by TCP alone: two network namespaces, with names of their own.

    two_hosts.py BIN

For each MPI that is installed and has a module in this build: a run whose grains two hosts share, and one whose sequences are
cut in time between them, each byte by byte what one process writes; then a run of which the cable is cut (the link
goes down): its ranks are over soon, and gone on with it ends as if nothing had been. SKIPPED where no namespaces may be made.
Exit code: 0 all of it holds, 1 something does not.
"""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mpi_runs import LONG, LONG_STEPS, OVER, STALL, WORK, Mpi, Wrong, digest, require, steps_of, usable_mpis, write_text

NETWORK = "10.213.77"
DONE = "all is done"  # said where MPICH does not let a run end that has done all
LINK = "ngrad"  # of the interface that a host has


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Hosts:
    """Two network namespaces and the cable between them."""

    def __init__(self, work):
        self.names = [f"nestgrad-{os.getpid()}-{i}" for i in range(2)]
        self.addresses = [f"{NETWORK}.{i + 1}" for i in range(2)]
        self.work = work

    def __enter__(self):
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self):
        for name in self.names:
            ip("netns", "add", name)
        ends = [f"{LINK}{i}x{os.getpid() % 10000}" for i in range(2)]
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, address, end in zip(self.names, self.addresses, ends):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "link", "set", end, "name", LINK)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", LINK)
            ip("-n", name, "link", "set", "lo", "up")
        self.cable(True)

    def __exit__(self, *_):
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
                ip("netns", "del", name)

    def cable(self, is_there):
        for name in self.names:
            ip("-n", name, "link", "set", LINK, "up" if is_there else "down")

    def inside(self, host, command):
        """The command line of a shell on that host, under a name of its own."""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", f"hostname host{host}; exec {command}"]

    def agent(self):
        """What the launchers call in the place of ssh: agent ADDRESS COMMAND.."""
        file = self.work / "agent"
        cases = "\n".join(
            f'{a}) exec ip netns exec {n} unshare --uts sh -c "hostname host{i}; $*" ;;'
            for i, (a, n) in enumerate(zip(self.addresses, self.names))
        )
        file.write_text(f'#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\n*) echo "no host $host" >&2; exit 1 ;;\nesac\n')
        file.chmod(0o755)
        return str(file)


def command_of(mpi, hosts, out, text, training, more):
    one, other = hosts.addresses
    if mpi.name == "openmpi":
        launch = [mpi.launcher, "-n", "2", "--host", f"{one}:1,{other}:1", "--mca", "plm_rsh_agent", hosts.agent()]
        launch += ["--mca", "orte_keep_fqdn_hostnames", "1", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
        launch += ["--mca", "btl_tcp_if_include", LINK, "--mca", "oob_tcp_if_include", LINK, "--bind-to", "none"]
    else:
        launch = [mpi.launcher, "-n", "2", "-hosts", f"{one},{other}", "-ppn", "1", "-iface", LINK]
        launch += ["-launcher", "rsh", "-launcher-exec", hosts.agent()]
    call = [*launch, mpi.program, *training, "--data", text, "--out", out, *more]
    return " ".join(f"'{c}'" for c in map(str, call))


class Runs:
    def __init__(self, mpi, hosts, text):
        self.mpi, self.hosts, self.text = mpi, hosts, text
        self.environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "NESTGRAD_THREADS": "1",
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": LINK,
        }

    def start(self, out, *more, limit, training):
        """limit: seconds of NESTGRAD_STALL_LIMIT."""
        command = command_of(self.mpi, self.hosts, out, self.text, training, more)
        return subprocess.Popen(
            self.hosts.inside(0, command),
            env=self.environment | {"NESTGRAD_STALL_LIMIT": str(limit)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def alone(self, out, *more, training=WORK):
        call = [self.mpi.program, *training, "--data", self.text, "--out", out, *more]
        subprocess.run([str(c) for c in call], env=self.environment, check=True, capture_output=True)
        return digest(out)

    def run(self, out, *more, training=WORK):
        """Of hosts that are there. On a loaded machine MPICH may not come to its end (engine/processes/mpi.cpp); that all
        is done is then said, and looked at by who calls this."""
        code, output = Mpi.finish(self.start(out, *more, limit=20, training=training))
        if self.mpi.name == "mpich" and code != 0 and DONE in output:
            print("mpich: all was done, and it did not come to its end")
        else:
            require(code == 0, f"{self.mpi.name}, two hosts: exit code {code}\n{output}")
        return output

    def ranks(self, out):
        return [r for r in range(2) if self.mpi.process_of(r, out)]

    def same(self, out, expected, what):
        found = digest(out)
        require(found == expected, f"{self.mpi.name}, {what}: other files: {found}, expected {expected}")

    def shared(self, work):
        for name, more in (("grains", []), ("slices", ["--slices", "2"])):
            expected = self.alone(work / f"alone-{name}", *more)
            out = work / name
            output = self.run(out, *more, "--json")
            require('"processes":2' in output, f"the results do not name two processes:\n{output}")
            self.same(out, expected, f"{name} shared by two hosts")

    def cut_cable(self, work, draw):
        expected = self.alone(work / "alone", training=LONG)
        out = work / "cut"
        for _ in range(20):
            shutil.rmtree(out, ignore_errors=True)
            process = self.start(out, limit=STALL, training=LONG)
            steps = draw.randrange(1, LONG_STEPS // 2)
            while process.poll() is None and steps_of(out) < steps:
                time.sleep(0.005)
            self.hosts.cable(False)
            struck = time.monotonic()
            while time.monotonic() - struck < OVER + STALL and self.ranks(out):
                time.sleep(0.1)
            took, left = time.monotonic() - struck, self.ranks(out)
            time.sleep(1)  # for what they have said
            self.hosts.cable(True)
            # Open MPI's mpirun waits on for the other host's daemon, long after all ranks have ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            output = process.communicate()[0]
            require(not left, f"{self.mpi.name}: ranks {left} live on without the other host:\n{output}")
            if "error:" in output and DONE not in output:
                break
        else:
            raise Wrong("each run had ended before the cable was cut: this shows nothing")
        require("has been silent" in output, f"{self.mpi.name}: nothing says who is silent:\n{output}")
        there = (out / "checkpoint.safetensors").exists()
        if not there:
            shutil.rmtree(out, ignore_errors=True)
        self.run(out, *(["--resume"] if there else []), training=LONG)
        self.same(out, expected, "the cable cut")
        return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="nestgrad-hosts-") as folder:
        work = pathlib.Path(folder)
        mpis = usable_mpis(options.bin, work)
        if not mpis:
            print("SKIPPED: no MPI with a module in this build (scripts/setup.sh --mpi)")
            return 0
        with contextlib.ExitStack() as opened:
            try:
                hosts = opened.enter_context(Hosts(work))
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                print(f"SKIPPED: no network namespaces here: {error}")
                return 0
            try:
                text = work / "text"
                write_text(text, draw)
                for mpi in mpis:
                    own = work / mpi.name
                    own.mkdir()
                    runs = Runs(mpi, hosts, text)
                    runs.shared(own)
                    took = runs.cut_cable(own, draw)
                    print(f"{mpi.name}: two hosts, the same files; the cable cut, over after {took:.1f} s")
            except Wrong as wrong:
                print(f"FAIL: {wrong} (seed {options.seed})")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
