#!/usr/bin/env python3
"""bench/learners: means and intervals are right, nothing is trained twice, a failed run is told: learners_table.py BIN

Most runs are of a program that answers as train_lm does, with numbers that are known; one is train_lm's.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

from failures import Check

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = "# Learners\n\nBefore.\n\n<!-- table: bench/learners -->\n\n<!-- end of the table -->\n\nAfter.\n"
# Answers as train_lm: the loss is 1 + seed^2 / 10; learner `bad` is not finite; `tired` is killed the first time; `far` is
# far below the bigram model in contexts of 8, and not in those of 32.
FAKE = """#!/usr/bin/env python3
import json, os, pathlib, sys
a = sys.argv[1:]
if a == ["--help"]:
    sys.exit(print("  --learner TEXT:{good,bad,\\n   tired,far,nadaraya-watson} [ttt-linear]"))
of = lambda name: a[a.index(name) + 1]
here, learner, seed = pathlib.Path(__file__).parent, of("--learner"), int(of("--seed"))
with open(here / "calls", "a") as calls:
    print(learner, seed, of("--context"), "--resume" in a, os.environ["NESTGRAD_THREADS"], file=calls)
assert int(of("--batch")) * int(of("--context")) == 12 * 8, "as many bytes a step in each context"
if learner == "bad":
    print("train_lm: [train] step 7: the loss is not finite", file=sys.stderr)
    sys.exit(1)
if learner == "tired" and "--resume" not in a:
    (pathlib.Path(of("--out")) / "checkpoint.safetensors").touch()
    os.kill(os.getpid(), 9)
print("a line\\n" + json.dumps({"val_loss": 1 + seed * seed / 10, "bigram_loss": 1.35 if learner != "far" else
    1.5 if of("--context") == "8" else 1.2, "loss_first_quarter": 2.0, "loss_last_quarter": 1.5 + seed / 10, "tokens_per_second": 1234.0, "peak_rss_mb": 99.6, "parameters": 54321,
    "seconds": 3.0}))
"""
check = Check()


class Table:
    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.page, self.kept, self.calls = folder / "page.md", folder / "kept.json", folder / "calls"
        self.page.write_text(PAGE)
        (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 200)

    def run(self, code, *options):
        command = [ROOT / "bench/learners", "--program", self.program, "--page", self.page, "--kept", self.kept,
                   "--runs", self.folder / "runs", "--data", self.folder / "text.txt", *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True)
        check(done.returncode == code, f"{options}: exit {done.returncode}, not {code}: {done.stderr}")
        return done.stderr

    def made(self):
        """The calls of the program so far."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def row(self, learner):
        line = re.search(rf"^\| `{learner}` \|.*$", self.page.read_text(), re.M)
        return [cell.strip() for cell in line[0].strip("|").split("|")] if line else []


def with_known_numbers(folder):
    program = folder / "train_lm"
    program.write_text(FAKE)
    program.chmod(0o755)
    t = Table(folder, program)
    short = ("--context", 8, "--long", 32, "--learners")
    t.run(0, *short, "good", "--seeds", 3)
    # Losses 1, 1.1, 1.4: mean 7/6, standard deviation sqrt(0.13/3); Student's quantile of 2 degrees is 4.303.
    check(t.row("good")[1:] == ["1.167 ± 0.517", "0.183 ± 0.517", "3", "3", "1,234",
                                "100", "54,321", "2.000 ± 0.000", "1.600 ± 0.248", "0.400 ± 0.248"],
          f"the row of known numbers is {t.row('good')}")
    for context in (8, 32):
        check(f"Context {context}, with at least one seed not 0.3 nats below the bigram model: `good`" in t.page.read_text(),
              f"a seed near the bigram is told of context {context}")
    check("Made by `bench/learners --data text.txt --seeds 3 --context 8 --long 32`: 2,000" in t.page.read_text(),
          "the call that makes the table is told")
    check("seeds 0, 1, 2 (context 8) and 0, 1, 2 (context 32);" in t.page.read_text(), "the seeds of each context are told")
    check("| below the bigram | seeds, context 8 | seeds, context 32 |" in t.page.read_text(), "each context has its seeds")
    check("steps of 12 sequences of 8 bytes and of 3 sequences of 32 bytes of" in t.page.read_text(), "both contexts are told")
    check(t.page.read_text().startswith("# Learners\n\nBefore.") and t.page.read_text().endswith("After.\n"),
          "what is around the table stays")
    check(sorted(t.made()) == sorted(f"good {s} {c} False 1" for s in range(3) for c in (8, 32)), f"calls: {t.made()}")
    before = len(t.made())
    t.run(0, *short, "good", "--seeds", 3)
    check(len(t.made()) == before, "what is kept is not trained again")
    t.run(0, *short, "good", "--seeds", 4)
    check(t.made()[before:] in (["good 3 8 False 1", "good 3 32 False 1"], ["good 3 32 False 1", "good 3 8 False 1"]),
          f"only the new seed is trained: {t.made()[before:]}")

    before = len(t.made())
    t.run(0, *short, "good", "--seeds", 4, "--again")
    check(len(t.made()) == before + 8, f"a learner that has changed is trained again: {t.made()[before:]}")
    check("wants --learners" in t.run(2, "--again"), "what is to be forgotten has to be named")

    # A table with a run missing says so, whatever the last call was; a learner near the bigram in one context is named there.
    whole = t.kept.read_text()
    kept = json.loads(whole)
    kept["results"] = [r for r in kept["results"] if (r["context"], r["seed"]) not in ((32, 2), (32, 3))]
    t.kept.write_text(json.dumps(kept))
    t.run(1, "--check")
    t.run(0, "--show")
    check("`bench/learners --data text.txt --seeds 4 --context 8 --long 32`, of whose 8 runs of these learners 2 are not made"
          in t.page.read_text() and t.row("good")[3:5] == ["4", "2"], f"missing runs are told: {t.row('good')}")
    t.kept.write_text(whole)
    t.run(0, *short, "far", "--seeds", 1)
    near = [line for line in t.page.read_text().splitlines() if "not 0.3 nats" in line]
    check([line.rsplit(": ", 1)[1] for line in near] == ["`good`.", "`far`, `good`."], f"near the bigram are {near}")
    check(", of whose 16 runs of these learners 6 are not made" in t.page.read_text(), "a learner with fewer seeds is told")
    t.kept.write_text(whole)
    t.run(0, "--show")

    t.run(0, "--check")
    t.page.write_text(t.page.read_text().replace("1.350", "1.351"))
    t.run(1, "--check")
    t.run(0, "--show")
    t.run(0, "--check")

    t.run(1, *short, "bad", "--seeds", 1)
    check(t.row("bad")[1:5] == ["not finite", "", "0 of 1", "0 of 1"], f"the row of a failed run is {t.row('bad')}")
    check("`bad`, context 8, seed 0: train_lm: [train] step 7: the loss is not finite" in t.page.read_text(),
          "why it failed is told")
    check(t.row("good")[3] == "4", "the other learner keeps its row")

    before = len(t.made())
    check("ended with -9" in t.run(1, *short, "tired", "--seeds", 1, "--jobs", 1), "a killed run is told")
    check(not t.row("tired"), "a killed run is no result")
    t.run(1, *short, "tired", "--seeds", 1, "--jobs", 1), t.run(1, *short, "tired", "--seeds", 1, "--jobs", 1)
    check("tired 0 8 True 1" in t.made()[before:] and t.row("tired")[1] == "1.000",
          f"a killed run is gone on with: {t.made()[before:]}")

    check("there is no learner none" in t.run(2, *short, "none"), "an unknown learner is named")
    check("other settings" in t.run(2, *short, "good", "--steps", 5), "a page has one setting")
    check("must be at least 1" in t.run(2, "--seeds", 0), "a wrong number is refused")
    t.page.write_text("# Nothing\n")
    check("no place for the table" in t.run(2, "--show"), "a page without a place is refused")


def with_train_lm(folder, program):
    t = Table(folder, program)
    t.run(0, "--learners", "ttt-linear,ttt-e2e", "--seeds", 1, "--steps", 2, "--context", 16, "--batch", 2, "--width",
          16, "--layers", 1, "--heads", 2, "--long", 0)
    kept = json.loads(t.kept.read_text())["results"]
    check([r["learner"] for r in kept] == ["ttt-e2e", "ttt-linear"], f"train_lm's results are {kept}")
    check(all(0 < r["val_loss"] < 6 and r["parameters"] > 1000 for r in kept), f"train_lm's numbers are {kept}")
    check("last quarter, context 16" in t.page.read_text() and len(t.row("ttt-linear")) == 10,
          f"without long contexts the quarters are those of the short one: {t.row('ttt-linear')}")


with tempfile.TemporaryDirectory() as folder:
    for name in ("known", "real"):
        (pathlib.Path(folder) / name).mkdir()
    with_known_numbers(pathlib.Path(folder) / "known")
    with_train_lm(pathlib.Path(folder) / "real", pathlib.Path(sys.argv[1]) / "train_lm")
sys.exit(check.failures > 0)
