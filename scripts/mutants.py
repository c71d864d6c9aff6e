#!/usr/bin/env python3
"""Plants faults, one at a time, and runs the tests that should notice: what none notices lacks a test.

The faults are those of scripts/faults.py, and for every row of the op table a derivative of the wrong sign, a
derivative whose own derivative is cut, wrong `axes` and a wrong `linear_in`. All are planted at once in a
copy of the sources, under build/mutants, which is built once; NESTGRAD_FAULT says which of them a run has.
The copy is kept, so that a second run builds what changed.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree stays clean
import faults

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
SOURCE, BUILD = PLACE / "source", PLACE / "build"
COPIED = (
    "CMakeLists.txt",
    "nestgrad.h",
    "README.md",
    "LICENSE",
    "cmake",
    "engine",
    "ops",
    "autograd",
    "ttt",
    "models",
    "look",
    "reproduce",
    "cuda",
    "cuda_emulator",
    "docs",
    "tests",
    "scripts",
    "programs",
    "examples",
)
# Whose folders can be compiled together.
LIBRARY = ("engine", "ops", "autograd", "ttt", "models", "look", "cuda")
CONFIGURE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
    "-DNESTGRAD_PCH=ON",
    "-DNESTGRAD_CUDA=OFF",
    "-DNESTGRAD_EXAMPLES=OFF",
    "-DNESTGRAD_BENCH=OFF",
)
MOST_BYTES = 8 << 30  # of memory, for a fault that asks for more and more of it
TABLE_KINDS = {
    "vjp-sign": "the derivative in this operand has the wrong sign",
    "vjp-order": "the derivative in this operand is a constant to the next derivative",
    "linear-in": "is said to be affine in this operand if it is not, and not to be if it is",
    "axes-other": "slices are said to go to the next axis",
    "axes-more": "slices that are combined are said to stay apart",
    "axes-none": "slices that stay apart are said to be combined",
}
TABLE_TESTS = {
    "vjp": (faults.cases("derivatives of every row*"), faults.files("autograd/custom", "ops/elementwise")),
    "linear": (faults.cases("what is declared affine*", "no derivative reads*"),),
    "axes": (faults.cases("slices go where*", "axes that nothing maps to*"),),
}

HEADER = """#pragma once
#include <cstdlib>
#include <string_view>
namespace nestgrad {
inline bool fault(std::string_view name) {
  static const char* const planted = std::getenv("NESTGRAD_FAULT");
  return planted && name == planted;
}
}  // namespace nestgrad
"""
INCLUDE = '#include "planted_fault.h"\n#line 1\n'

# The rows are no constants in the copy: before main, that of which the environment asks a fault,
# KIND/OP/OPERAND, gets it.
ROW_TABLE = "ops/table.cpp"
NATIVE_HEADERS = "cmake/NestgradNative.cmake"
PLANT_ROW = """
#include "engine/core/graph.h"
namespace nestgrad {
namespace {
struct Planted {
  std::string kind, op;
  int operand = -1;
};
const Planted& planted() {
  static const Planted row = [] {
    const char* set = std::getenv("NESTGRAD_FAULT");
    std::string text = set ? set : "", parts[3];
    for (std::size_t i = 0, at = 0; i < 3 && at != std::string::npos; ++i) {
      const std::size_t end = text.find('/', at);
      parts[i] = text.substr(at, end == std::string::npos ? end : end - at);
      at = end == std::string::npos ? end : end + 1;
    }
    return Planted{parts[0], parts[1], std::atoi(parts[2].c_str())};
  }();
  return row;
}
Op whole;  // the row without its fault
void plant(Op& op) {
  whole = op;
  const std::string& kind = planted().kind;
  if (kind.starts_with("vjp-"))
    op.vjp = [](const VjpCall& c) {
      const Tensor ct = whole.vjp(c);
      if (c.input != planted().operand) return ct;
      return emit(planted().kind == "vjp-sign" ? neg_op : stop_gradient_op, {ct});
    };
  if (kind == "linear-in")
    op.linear_in = [](const OpCall& c, int input) {
      return (whole.linear_in && whole.linear_in(c, input)) != (input == planted().operand);
    };
  if (kind.starts_with("axes-"))
    op.axes = [](const OpCall& c, int input, int axis) {
      const int to = whole.axes(c, input, axis);
      if (planted().kind == "axes-none") return -1;
      if (planted().kind == "axes-more") return to < 0 && axis < c.out.rank() ? axis : to;
      return to < 0 ? to : (to + 1) % c.out.rank();
    };
}
[[maybe_unused]] const bool is_planted = [] {
#define OP(NAME) \\
  if (NAME##_op.name == planted().op) plant(NAME##_op);
#include "ops/table.def"
  return true;
}();
}  // namespace
}  // namespace nestgrad
"""


class Broken(Exception):
    """The list of faults does not fit the sources, or the copy cannot be built or tested."""


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    tests: tuple  # runs of nestgrad_tests, each an argument or several; or a campaign and its arguments
    what: str
    file: str = ""  # of a fault in a text
    anchor: str = ""
    planted: str | None = None


# ---- the list ----


def table_faults():
    """Those of the op table, from its rows."""
    rows = {}  # op -> (operands with a derivative, has a column `axes` that can claim more, has `linear_in`)
    definitions = (ROOT / "ops" / "elementwise.def").read_text()
    for kind, name in re.findall(r"^(UNARY|BINARY|UNARY_STEP|BINARY_STEP)\((\w+),", definitions, re.M):
        operands = [] if kind.endswith("STEP") else [0, 1][: 1 + kind.startswith("BINARY")]
        rows[name] = (operands, True, kind.startswith("BINARY"))
    for path in sorted(path for room in ("ops", "autograd", "ttt") for path in (ROOT / room).glob("*.cpp")):
        for name, row in re.findall(r'\.name = "(\w+)",(.*?)(?=\.name = "|\Z)', path.read_text(), re.S):
            if ".kind = OpKind::" in row:
                continue
            if name not in faults.OP_TABLE:
                raise Broken(
                    f"op '{name}' of {path.relative_to(ROOT)} is not in OP_TABLE of scripts/faults.py: "
                    "say in which operands a derivative passes"
                )
            axes = re.search(r"\.axes\s*=\s*(\w*)", row)
            rows[name] = (faults.OP_TABLE[name], bool(axes), bool(axes) and axes[1] != "same_axis")
    for name in faults.OP_TABLE.keys() - rows.keys():
        raise Broken(f"OP_TABLE of scripts/faults.py names '{name}', and there is no such op: take it out")
    found = []
    for name, (operands, has_axes, combines) in sorted(rows.items()):
        per_operand = ["vjp-sign", "vjp-order"] + ["linear-in"] * (name != "custom_vjp")
        names = [f"{kind}/{name}/{k}" for kind in per_operand for k in operands]
        names += [f"{kind}/{name}" for kind in ("axes-other", "axes-none") if has_axes]
        names += [f"axes-more/{name}"] if combines else []
        found += [Fault(n, TABLE_TESTS[n.split("-")[0]], TABLE_KINDS[n.split("/")[0]]) for n in names]
    return found


def listed_faults():
    """Those of scripts/faults.py."""
    found = []
    for group, file, tests, entries in faults.FAULTS:
        for name, anchor, planted, *own in entries:
            what = "left out" if planted is None else "changed" if "FAULT" in planted else f"-> {planted}"
            found.append(Fault(f"{group}/{name}", *own or (tests,), what, file, anchor, planted))
    return found


def all_faults():
    found = table_faults() + listed_faults()
    twice = [name for name, n in collections.Counter(f.name for f in found).items() if n > 1]
    unknown = sorted(faults.EQUIVALENT.keys() - {f.name for f in found})
    if twice:
        raise Broken(f"two faults have the name '{twice[0]}': rename one in scripts/faults.py")
    if unknown:
        raise Broken(f"EQUIVALENT of scripts/faults.py proves '{unknown[0]}', which is no fault: take it out")
    return found


# ---- planting ----


def spans_of(fault, text):
    """Begin and end of the piece between « and », wherever the anchor is; white space matches any other."""
    parts = re.split("[«»]", fault.anchor)
    if len(parts) != 3:
        raise Broken(f"{fault.name}: an anchor has one piece between « and »: {fault.anchor}")
    pattern = "".join("(" + re.sub(r"(\\?\s)+", r"\\s*", re.escape(part)) + ")" for part in parts)
    return [match.span(2) for match in re.finditer(pattern, text)]


def has_comma(text):
    """Outside of brackets: two values, of which an expression would take the last."""
    depth = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth <= 0:
            return True
    return False


def planted_text(text, planted, file):
    """The text with these faults in it; a piece may lie within another one."""
    places = [(spans_of(f, text), f) for f in planted]
    if lost := [
        f"{f.name}: its anchor is found {len(at)} times in {file}: {f.anchor}"
        for at, f in places
        if len(at) != 1
    ]:
        raise Broken("\n".join(lost))
    spans = sorted(((at[0], f) for at, f in places), key=lambda s: (s[0][0], -s[0][1]))

    def render(begin, end, inside):
        out, at = "", begin
        while inside:
            (first, last), fault = inside[0]
            rest = [s for s in inside[1:] if s[0][0] < last]
            inside = inside[1 + len(rest) :]
            if rest and any(s[0][1] > last for s in rest) or "FAULT" in (fault.planted or "") and rest:
                raise Broken(
                    f"{fault.name} and {rest[0][1].name} of {file} change the same text: take smaller pieces"
                )
            piece, asked = render(first, last, rest), f'nestgrad::fault("{fault.name}")'
            if fault.planted is None:
                piece = f"if (!{asked}) {{ {piece} }}"
            elif "FAULT" in fault.planted:
                piece = re.sub(r"\bFAULT\b", asked, fault.planted)
            elif has_comma(piece) or has_comma(fault.planted):
                raise Broken(f"{fault.name} changes two values at once: say each with FAULT ? .. : ..")
            else:
                piece = f"({asked} ? ({fault.planted}) : ({piece}))"
            out += text[at:first] + piece
            at = last
        return out + text[at:end]

    return render(0, len(text), spans)


def planted_files(found):
    """What the copy has instead of the files of the same names."""
    of = collections.defaultdict(list)
    for fault in found:
        if fault.file:
            of[fault.file].append(fault)
    texts, broken = {}, []
    for file, those in of.items():
        try:
            texts[file] = planted_text((ROOT / file).read_text(), those, file)
        except Broken as e:
            broken.append(str(e))
    if broken:
        raise Broken("each anchor must be found once:\n" + "\n".join(broken))
    texts = {file: text if file.endswith(".def") else INCLUDE + text for file, text in texts.items()}
    for file in rows_in():
        text = texts.get(file) or (ROOT / file).read_text()
        texts[file] = re.sub(r"\b(constinit|extern) const Op\b", r"\1 Op", text)
    texts[ROW_TABLE] += PLANT_ROW
    # What programs compile while they run has no faults: its texts are of the headers as they are.
    native = (ROOT / NATIVE_HEADERS).read_text()
    texts[NATIVE_HEADERS] = native.replace("set(folder ${CMAKE_CURRENT_LIST_DIR}/..)", f"set(folder {ROOT})")
    if texts[NATIVE_HEADERS] == native:
        raise Broken(f"{NATIVE_HEADERS} names the folder of the headers otherwise")
    return texts | {"planted_fault.h": HEADER}


def rows_in():
    """Files in which rows are defined or declared, and that of their table."""
    paths = [p for d in ("engine", "ops", "autograd", "ttt") for p in (ROOT / d).rglob("*.*")]
    return [ROW_TABLE] + [
        str(p.relative_to(ROOT)) for p in paths if re.search(r"\b(constinit|extern) const Op\b", p.read_text())
    ]


# ---- the copy ----


def renew_copy(found):
    texts = {file: text.encode() for file, text in planted_files(found).items()}
    for name in COPIED:
        path = ROOT / name
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                texts.setdefault(str(file.relative_to(ROOT)), None)
    for file, text in texts.items():
        to = SOURCE / file
        text = (ROOT / file).read_bytes() if text is None else text
        if not to.is_file() or to.read_bytes() != text:  # an older time would make it be built again
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(text)
    for file in SOURCE.rglob("*"):
        if file.is_file() and str(file.relative_to(SOURCE)) not in texts:
            file.unlink()


def check_syntax(found, jobs):
    """Each file with its faults is one that a compiler takes: a fault that is none would stop the whole build."""
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-w"]
    texts = planted_files(found)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            to = pathlib.Path(folder) / file
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)

        def errors_of(files):
            """What the compiler says of files that are compiled together; empty: nothing."""
            text = "".join(f'#include "{folder}/{file}"\n' for file in files)
            include = ["-I", folder, "-I", ROOT, "-isystem", "/usr/include/eigen3"]
            run = subprocess.run(
                [*compiler, *include, "-x", "c++", "-"], input=text, capture_output=True, text=True, check=False
            )
            errors = [line for line in run.stderr.splitlines() if "error" in line]
            return (errors[0] if errors else run.stderr) if run.returncode else ""

        def problems(files):
            # Files that are right may have names that clash: so each is asked by itself before it is called wrong.
            if not errors_of(files):
                return []
            return [f"{file}: {error}" for file in files if (error := errors_of([file]))]

        groups = together(sorted(file for file in texts if file.endswith(".cpp")))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            if broken := [text for several in pool.map(problems, groups) for text in several]:
                raise Broken("with their faults these files do not compile:\n" + "\n".join(broken))


def together(files):
    """Files in groups that compile in a third of the time: those of a folder of the library, as with NESTGRAD_UNITY."""
    apart = set((ROOT / "cmake/apart.txt").read_text().splitlines())
    groups = {}
    for file in files:
        folder = str(pathlib.PurePath(file).parent)
        alone = file in apart or folder == "ops/kernels" or folder.split("/")[0] not in LIBRARY
        groups.setdefault(file if alone else folder, []).append(file)
    return sorted(groups.values(), key=len, reverse=True)


def build(jobs):
    PLACE.mkdir(parents=True, exist_ok=True)
    log = PLACE / "build.log"
    commands = [
        ["cmake", "-S", SOURCE, "-B", BUILD, "-G", "Ninja", *CONFIGURE],
        ["cmake", "--build", BUILD, f"-j{jobs}", "--target", "nestgrad_tests", *faults.CAMPAIGNS],
    ]
    environment = {k: v for k, v in os.environ.items() if k != "NESTGRAD_FAULT"}
    with log.open("w") as out:
        for command in commands:
            if subprocess.run(command, stdout=out, stderr=out, env=environment).returncode:
                errors = [line for line in log.read_text().splitlines() if "error" in line.lower()]
                raise Broken(f"the copy cannot be built; {log} says: {errors[0] if errors else 'nothing'}")


# ---- tests ----


@dataclasses.dataclass
class Run:
    caught: str = ""  # the test that failed; empty: all passed
    seconds: float = 0
    cases: int = 0


def run_tests(fault, tests, limit):
    """One run of the tests, to the first failure."""
    stop = lambda: (
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES)),
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    environment = os.environ | {"NESTGRAD_FAULT": fault, "NESTGRAD_THREADS": "1"}
    begin = time.monotonic()
    if tests[0] in faults.CAMPAIGNS:
        command = [BUILD / "bin" / tests[0], *tests[1:], "--shrink-seconds", "0"]
    else:
        command = [BUILD / "bin" / "nestgrad_tests", *tests, "--abort-after=1", "--no-colors"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdout=out, stderr=out, preexec_fn=stop, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        out.seek(0)
        text = out.read()
    seconds = time.monotonic() - begin
    failed = re.findall(r"^TEST CASE:\s+(.*)$", text, re.M)
    if tests[0] in faults.CAMPAIGNS:
        failed = [f"{tests[0]}, {seed}" for seed in re.findall(r"(?:FAIL|crashes:|hangs:) (seed \d+)", text)]
    count = re.search(r"test cases:\s+(\d+)", text) or re.search(r"^(\d+) cases, seeds", text, re.M)
    cases = int(count[1]) if count else 0
    if code == 0:
        return Run("", seconds, cases)
    why = (
        f" (no end in {limit:.0f} s)"
        if code is None
        else " (crashed)" if "CRASHED" in text or code < 0 else ""
    )
    return Run((failed[-1] if failed else "the start of the program") + why, seconds, cases)


def runs_of(fault, options):
    rest = () if options.quick else (faults.REST,)
    return [(tests,) if isinstance(tests, str) else tests for tests in (*fault.tests, *rest)]


def check_without_fault(chosen, options, say):
    """Seconds that each run of tests takes; all pass. What passed is not run again with the same program."""
    file, program = PLACE / "passed.json", (BUILD / "bin" / "nestgrad_tests").stat().st_mtime_ns
    passed = json.loads(file.read_text()) if file.exists() else {}
    seconds = passed["seconds"] if passed.get("program") == program else {}
    needed = dict.fromkeys(tests for fault in chosen for tests in runs_of(fault, options))
    todo = [tests for tests in needed if " ".join(tests) not in seconds]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for n, (tests, run) in enumerate(
            zip(todo, pool.map(lambda tests: run_tests("", tests, 1800), todo)), 1
        ):
            if run.caught or not run.cases:
                raise Broken(
                    f"without a fault, {run.caught or 'no test'} {'fails' if run.caught else 'is chosen'} in "
                    f"{' '.join(tests)}: mend this first"
                )
            say(f"without a fault {n}/{len(todo)}: {' '.join(tests)}")
            seconds[" ".join(tests)] = run.seconds
    file.write_text(json.dumps({"program": program, "seconds": seconds}))
    return seconds


def verdict_of(fault, options, seconds):
    begin = time.monotonic()
    for tests in runs_of(fault, options):
        run = run_tests(fault.name, tests, 60 + 10 * seconds[" ".join(tests)])
        if run.caught:
            break
    known = fault.name in faults.EQUIVALENT
    verdict = (
        ("not equivalent" if known else "caught") if run.caught else "equivalent" if known else "SURVIVED"
    )
    return {
        "fault": fault.name,
        "verdict": verdict,
        "test": run.caught,
        "seconds": round(time.monotonic() - begin, 1),
    }


# ---- the command ----


class Progress:
    """One line that is renewed on a terminal, plain lines where there is none."""

    def __init__(self):
        self.terminal = sys.stdout.isatty()

    def __call__(self, text):
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="", flush=True)
        else:
            print(text, flush=True)

    def end(self):
        if self.terminal:
            print("\r\033[K", end="", flush=True)


def print_table(results):
    width = max(len(r["fault"]) for r in results)
    for r in results:
        note = r["test"] if r["verdict"] == "caught" else r["verdict"]
        if r["verdict"] == "equivalent":
            note += ": " + faults.EQUIVALENT[r["fault"]]
        elif r["verdict"] == "not equivalent":
            note = f"NOT EQUIVALENT, take its proof out: {r['test']}"
        print(f"{r['fault']:{width}}  {note}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Exit code 1: a fault survived that "
        "scripts/faults.py does not prove equivalent, or the list does not fit.",
    )
    parser.add_argument("--list", action="store_true", help="print the faults; nothing is built")
    parser.add_argument(
        "--check", action="store_true", help="see that each anchor is found once; nothing is built"
    )
    parser.add_argument(
        "--syntax", action="store_true", help="compile each file with its faults, and build nothing (a minute or two)"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", nargs="+", default=["*"], help="faults with such names: 'arena/*' 'law/*'"
    )
    parser.add_argument("--quick", action="store_true", help="run only the tests that are likely to notice")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="faults at a time (default 2)")
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    options = parser.parse_args()
    try:
        found = all_faults()
        planted_files(found)
        chosen = [f for f in found if any(fnmatch.fnmatchcase(f.name, name) for name in options.only)]
        if not chosen:
            parser.error(f"no fault has a name like {' or '.join(options.only)}; --list prints them")
        if options.jobs < 1:
            parser.error(f"--jobs must be at least 1, it is {options.jobs}")
        if options.list:
            for fault in chosen:
                print(f"{fault.name:60} {fault.file or 'op table':28} {fault.what}")
        if options.list or options.check:
            print(f"{len(chosen)} faults; each has its place")
            if options.json:
                print(json.dumps({"faults": [f.name for f in chosen]}))
            return 0
        if options.syntax:
            check_syntax(found, options.jobs)
            print(f"{len(found)} faults; each compiles")
            return 0
        return run_all(found, chosen, options)
    except Broken as e:
        print(f"mutants.py: {e}", file=sys.stderr)
        return 1


def run_all(found, chosen, options):
    say = Progress()
    begin = time.monotonic()
    say(f"building {len(found)} faults in {BUILD.relative_to(ROOT)}")
    renew_copy(found)
    build(options.jobs)
    seconds = check_without_fault(chosen, options, say)
    results = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(verdict_of, fault, options, seconds) for fault in chosen]
        for done in concurrent.futures.as_completed(running):
            r = done.result()
            results[r["fault"]] = r
            say(f"{len(results)}/{len(chosen)} {r['fault']}: {r['verdict']} {r['test']}")
    say.end()
    results = [results[f.name] for f in chosen]
    print_table(results)
    count = collections.Counter(r["verdict"] for r in results)
    minutes = (time.monotonic() - begin) / 60
    print(
        f"{len(results)} faults in {minutes:.1f} min: {count['caught']} caught, "
        f"{count['SURVIVED']} survived, "
        f"{count['equivalent']} proved equivalent"
    )
    for r in results:
        if r["verdict"] in ("SURVIVED", "not equivalent"):
            print(f"  {r['verdict']}: {r['fault']}")
    if options.json:
        print(
            json.dumps(
                {"faults": len(results), "minutes": round(minutes, 1), "counts": count, "results": results}
            )
        )
    return int(count["SURVIVED"] + count["not equivalent"] > 0)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--list | head` ends quietly
    sys.exit(main())
