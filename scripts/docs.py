#!/usr/bin/env python3
"""Compiles and runs the C++ of the documents, and compares what it prints with what they show.

    docs.py [--build FOLDER] [--write] [PAGE ..]   build, run, compare; --write: put the output into the pages
    docs.py --print PAGE                           the blocks of a page as one program, to compile by hand
    docs.py --links                                only: does every link lead to a file and a heading?
    docs.py --control                              are a wrong output, excerpt, link and program noticed?

A block ```cpp is run. One with an #include begins a program, one without goes on with the program of the block
before it: definitions go in front of main, statements into it. A block with main is a whole program.
What stands in front of a block, alone on a line, says otherwise:

    <!-- prints -->              the text block is what the C++ block before it prints
    <!-- prints: COMMAND -->     .. or what a program of the build folder prints (build/release/bin/NAME .., or NAME ..)
    <!-- from PATH -->           the block is an excerpt of that file; // .. on a line leaves lines out
    <!-- not run: WHY -->        the C++ block is a fragment

In shown output a line ".." stands for any lines; FILE:LINE of a page need not be true. Exit code: 0 all as
shown, 1 something is not, 2 wrong call. Standard library only.
"""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS_PAGE = ROOT / "docs/guide/ops.md"
NEEDS = {r"\bfmt::": "fmt/", r"std::(printf|puts)": "cstdio",
         r"std::(sqrt|abs|tanh|pow|exp|log|sin|cos)\b": "cmath"}  # what a program must include if it says that
STATEMENT = re.compile(r"(for|if|else|while|do|switch|try|catch|return)\b|\{")
DEFINITION = re.compile(r"(struct|class|enum|template|namespace|using|inline|constexpr|static)\b")
MARK = "\x1e"  # between the outputs of blocks


def shown(path):
    return os.path.relpath(path, ROOT)


@dataclasses.dataclass
class Block:
    page: pathlib.Path
    line: int  # of the first line of text, from 1
    language: str
    note: str  # of the comment in front of it
    text: str
    output: str = None  # what it printed

    @property
    def where(self):
        return f"{shown(self.page)}:{self.line}"


@dataclasses.dataclass
class Program:
    name: str
    blocks: list


def blocks_of(page):
    """The fenced blocks of a page, each with the comment in front of it."""
    found, note, lines = [], "", page.read_text().split("\n")
    inside = None
    for number, line in enumerate(lines, 1):
        if inside is not None:
            if line.strip() == "```":
                inside.text = "\n".join(x for x in inside.text)
                found.append(inside)
                inside, note = None, ""
            else:
                inside.text.append(line)
        elif line.startswith("```"):
            inside = Block(page, number + 1, line[3:].strip(), note, [])
        elif match := re.fullmatch(r"<!-- (.*) -->", line.strip()):
            note = match[1]
        elif line.strip():
            note = ""
    if inside is not None:
        sys.exit(f"docs: {inside.where}: the block does not end")
    return found


def programs_of(blocks):
    """The programs that the C++ blocks of a page make up."""
    programs = []
    for block in blocks:
        if block.language != "cpp" or block.note.startswith(("not run: ", "from ")):
            continue
        if "#include" in block.text or not programs:
            programs.append(Program("", []))
        programs[-1].blocks.append(block)
    return programs


def items_of(text):
    """(line, text) of each outermost declaration, definition or statement, with the comments before it."""
    begin = at = depth = 0
    while at < len(text):
        if skipped := re.compile(r'//[^\n]*|/\*.*?\*/|"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'|R"\((.*?)\)"', re.S).match(text, at):
            at = skipped.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        ends = depth == 0 and (text[at] == ";" or text[at] == "}" and not re.match(r"\s*[;,.)(]", text[at + 1:]))
        at += 1
        if ends:
            yield text.count("\n", 0, begin), text[begin:at]
            begin = at
    if re.sub(r"//[^\n]*", "", text[begin:]).strip():
        yield text.count("\n", 0, begin), text[begin:]


def is_definition(item):
    code = re.sub(r"//[^\n]*", "", item).strip()
    return bool(DEFINITION.match(code)) or code.endswith("}") and not STATEMENT.match(code)


def includes_of(program):
    return re.findall(r"^#include .*$", "\n".join(b.text for b in program.blocks), re.M)


def main_of(program):
    return [b for b in program.blocks if re.search(r"^int main\(", b.text, re.M)]


def source_of(program):
    """Definitions and body of main, both with the lines of the page."""
    definitions, body = [], []
    for block in program.blocks:
        text = re.sub(r"^#include [^\n]*", "", block.text, flags=re.M)
        for line, item in [(0, text)] if block in main_of(program) else items_of(text):
            target = definitions if block in main_of(program) or is_definition(item) else body
            line += len(item) - len(item.lstrip("\n"))
            target.append(f'#line {block.line + line} "{shown(block.page)}"\n{item.strip(chr(10))}')
        if block not in main_of(program):
            body.append("  docs_next_block();")
    return "\n".join(definitions), "\n".join(body)


def complaints(program):
    """What a reader who copies the program would miss."""
    text = "\n".join(b.text for b in program.blocks)
    where = program.blocks[0].where
    if "#include <nestgrad/" not in text:
        yield f"{where}: the program does not include <nestgrad/..>"
    for name, header in NEEDS.items():
        if re.search(name, text) and f"#include <{header}" not in text:
            yield f"{where}: the program says {re.search(name, text)[0]} and does not include <{header}..>"
    if len(program.blocks) > 1 and main_of(program):
        yield f"{where}: a program with main is one block"


def translation_unit(programs):
    """All programs as one, which takes the number of the one to run."""
    includes = sorted({i for p in programs for i in includes_of(p)} | {"#include <cstdio>", "#include <cstdlib>"})
    out = ["// Written by scripts/docs.py.", *includes,
           f'static void docs_next_block() {{ std::fputc({ord(MARK)}, stdout); }}']
    calls = []
    for number, program in enumerate(programs):
        definitions, body = source_of(program)
        out.append(f"namespace docs_{number} {{")
        if main_of(program):
            out.append(re.sub(r"^int main\((.*?)^\}", r"static int program(\1return 0;\n}", definitions, flags=re.M | re.S))
            given = "argc, argv" if re.search(r"^int main\(int", main_of(program)[0].text, re.M) else ""
            calls.append(f"    case {number}: return docs_{number}::program({given});")
        else:
            out.append(f"{definitions}\nstatic void program() {{\n{body}\n}}")
            calls.append(f"    case {number}: docs_{number}::program(); return 0;")
        out.append('}\n#line 1 "blocks.cpp"')
    out += ["int main(int argc, char** argv) {", "  const int which = std::atoi(argv[1]);",
            "  argv[1] = argv[0], ++argv, --argc;", "  switch (which) {", *calls, "  }", "  return 2;", "}"]
    return "\n".join(out) + "\n"


def run_programs(programs, build):
    """Builds and runs all of them; sets the outputs of their blocks; gives what failed."""
    source = build / "tests/docs/blocks.cpp"
    text = translation_unit(programs)
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    made = subprocess.run(["cmake", "--build", build, "--target", "docs_blocks", "first_order"], capture_output=True, text=True)
    if made.returncode:
        yield f"the blocks do not compile:\n{made.stdout[-8000:]}{made.stderr[-2000:]}"
        return
    for number, program in enumerate(programs):
        ran = subprocess.run([build / "bin/docs_blocks", str(number)], capture_output=True, text=True, timeout=120,
                             cwd=build)
        if ran.returncode:
            yield f"{program.blocks[0].where}: exit code {ran.returncode}\n{ran.stdout[-500:]}{ran.stderr[-2000:]}"
            continue
        outputs = ran.stdout.split(MARK)
        for block, output in zip(program.blocks, outputs):
            block.output = output


def same(expected, printed):
    """Equal, line by line, but for '..' and for lines of sources."""
    plain = lambda t: [re.sub(r"[\w./-]+\.(md|cpp|h):\d+", "FILE:LINE", x.rstrip()) for x in t.strip("\n").split("\n")]
    pattern = "\n".join("(?s:.*)" if x.strip() == ".." else re.escape(x) for x in plain(expected))
    return re.fullmatch(pattern, "\n".join(plain(printed))) is not None


def printed_by(command, build):
    words = shlex.split(command)
    words[0] = str(build / (words[0].removeprefix("build/release/") if "/" in words[0] else f"bin/{words[0]}"))
    if not pathlib.Path(words[0]).exists():
        return f"there is no {words[0]}; build it"
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    return ran.stdout if ran.returncode == 0 else f"exit code {ran.returncode}: {ran.stderr}"


def outputs_of(blocks, build):
    """Each output block of a page with what was printed now; None where nothing ran."""
    before = None
    for block in blocks:
        if block.language == "cpp" and not block.note.startswith(("not run: ", "from ")):
            before = block
        elif block.note == "prints":
            yield block, before and before.output
        elif block.note.startswith("prints: "):
            yield block, printed_by(block.note.removeprefix("prints: "), build)


def check_outputs(blocks, build):
    for block, printed in outputs_of(blocks, build):
        if printed is None:
            yield f"{block.where}: there is no output to compare with"
        elif not same(block.text, printed):
            difference = difflib.unified_diff(block.text.split("\n"), printed.strip("\n").split("\n"), "shown", "printed",
                                              lineterm="")
            yield f"{block.where}: another output than shown\n" + "\n".join(difference)


def write_outputs(blocks, build):
    page, text = blocks[0].page, blocks[0].page.read_text().split("\n")
    for block, printed in reversed(list(outputs_of(blocks, build))):
        if printed is not None and not same(block.text, printed):
            end = block.line - 1 + (block.text.count("\n") + 1 if block.text else 0)
            text[block.line - 1:end] = printed.strip("\n").split("\n")
            print(f"docs: {block.where} written")
    page.write_text("\n".join(text))
    return []


def check_pictures(page, build):
    """A picture is what its program draws: <!-- drawn by: COMMAND --> in front of it."""
    for command, picture in re.findall(r"<!-- drawn by: (.*) -->\n!\[[^\]]*\]\(([^)]*)\)", page.read_text()):
        if (page.parent / picture).read_text() != printed_by(command, build):
            yield f"{shown(page)}: {picture} is not what {command} draws; write it again"


def check_excerpt(block):
    """An excerpt still stands in its file, whatever its indentation."""
    path = ROOT / block.note.removeprefix("from ")
    if not path.is_file():
        yield f"{block.where}: there is no {shown(path)}"
        return
    flat = lambda t: "\n".join(x.strip() for x in t.split("\n") if x.strip())
    whole, at = flat(path.read_text()), 0
    for piece in re.split(r"^\s*// \.\.$", block.text, flags=re.M):
        at = whole.find(flat(piece), at)
        if at < 0:
            yield f"{block.where}: {shown(path)} does not say\n{piece}"
            return


def anchors_of(page):
    """Of each heading, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    slugs = [re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).strip().replace(" ", "-")
             for h in re.findall(r"^#+ (.*)$", text, re.M)]
    return {s if slugs[:i].count(s) == 0 else f"{s}-{slugs[:i].count(s)}" for i, s in enumerate(slugs)}


def check_links(pages):
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{shown(page)}: {target} leads nowhere"
            elif anchor and file.suffix == ".md" and anchor not in anchors_of(file):
                yield f"{shown(page)}: {shown(file)} has no heading #{anchor}"


def check_ops(page, header, formulas):
    """Every function of ops/ops.h and every row of ops/elementwise.def stands on the page, between backticks."""
    names = set(re.findall(r"^Tensor (\w+)\(", header, re.M)) - {"name"}
    names |= set(re.findall(r"^(?:UN|BIN|TERN)ARY(?:_STEP)?\((\w+)", formulas, re.M))
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page))))
    for name in sorted(names - known):
        yield f"{shown(OPS_PAGE)}: there is no `{name}`"


def print_program(page):
    for program in programs_of(blocks_of(page)):
        definitions, body = (re.sub(r"^(#line .*|  docs_next_block\(\);)\n?", "", t, flags=re.M) for t in source_of(program))
        print("\n".join(includes_of(program)) + "\n" + definitions)
        if not main_of(program):
            print("\nint main() {\n" + textwrap.indent(body, "  ") + "\n}")


def control():
    """What is noticed of a page with one fault of each kind."""
    page = """# A page
<!-- from LICENSE -->
```cpp
not in the licence
```
```cpp
fmt::print("1");
```
<!-- prints -->
```text
2
```
[nowhere](nowhere.md) [no heading](page.md#nothing)
"""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder).resolve() / "page.md"
        path.write_text(page)
        blocks = blocks_of(path)
        program, = programs_of(blocks)
        program.blocks[0].output = "1\n"
        wrong = [*check_links([path]), *complaints(program), *check_outputs(blocks, None), *check_excerpt(blocks[0])]
        for about in ("leads nowhere", "no heading", "another output", "LICENSE does not say", "include <nestgrad/", "include <fmt/"):
            if sum(about in w for w in wrong) != 1:
                sys.exit(f"docs: of a page with the fault '{about}' is said: {wrong}")
        if list(check_ops("`one`", "Tensor one(Operand x);\nTensor two(Operand x);", "")) != [f"{shown(OPS_PAGE)}: there is no `two`"]:
            sys.exit("docs: an op that is missing on its page is not noticed")
        program.blocks[0].output = "2"
        if list(check_outputs(blocks, None)):
            sys.exit("docs: an output that is as shown is taken for another")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--build", type=lambda p: pathlib.Path(p).resolve(), default=ROOT / "build/release")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--control", action="store_true")
    o = parser.parse_args()
    if o.control:
        return control()
    pages = o.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if o.print:
        return print_program(pages[0])
    wrong = list(check_links(pages))
    if OPS_PAGE in pages:
        wrong += check_ops(OPS_PAGE.read_text(), (ROOT / "ops/ops.h").read_text(), (ROOT / "ops/elementwise.def").read_text())
    if not o.links:
        if not (o.build / "build.ninja").is_file():
            parser.error(f"{o.build} is no build folder; say which with --build")
        blocks = [b for page in pages for b in [blocks_of(page)] if b]
        programs = [p for b in blocks for p in programs_of(b)]
        wrong += [c for p in programs for c in complaints(p)]
        wrong += run_programs(programs, o.build)
        for of_page in blocks:
            wrong += write_outputs(of_page, o.build) if o.write else check_outputs(of_page, o.build)
            wrong += [c for b in of_page if b.note.startswith("from ") for c in check_excerpt(b)]
            wrong += check_pictures(of_page[0].page, o.build)
    for w in wrong:
        print(f"docs: {w}", file=sys.stderr)
    print(f"docs: {len(pages)} pages, {len(wrong)} wrong" if wrong else f"docs: {len(pages)} pages, all as shown")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
