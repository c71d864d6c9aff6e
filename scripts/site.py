#!/usr/bin/env python3
"""What scripts/site.sh needs besides doxygen.

    site.py --inputs BUILD   writes BUILD/reference.md; prints what doxygen reads, in the order of the site
    site.py FILE             FILE as doxygen wants it: a page or a header (INPUT_FILTER)
    site.py --check FOLDER   do all links of the site lead somewhere? external ones are not tried

Pages: a heading gets the name by which links find it, and links to other pages become references. Headers: the
comment in front of a declaration, or behind it, becomes a comment for doxygen; lists of a .def file are declared.
"""

import html
import html.parser
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPICS = ["lecture/index", "guide/index", "writing-a-learner", "inspecting", "published-models", "kernel-authors", "numerics",
          "performance", "benchmarks", "learners", "architecture", "add_an_op", "changes"]  # beside the index

DOXYGENS_OWN = {"#nested-classes"}  # it links a list of nested classes that it leaves out where all are private


def pages():
    """The index first, then the tree in its order."""
    docs, found = ROOT / "docs", [ROOT / "docs/index.md", ROOT / "README.md"]
    for topic in TOPICS:
        page = docs / f"{topic}.md"
        if not page.exists():
            continue
        found.append(page)
        if page.name == "index.md":
            found += [(page.parent / link).resolve() for link in re.findall(r"\]\((\w+\.md)\)", page.read_text())]
    rest = set(docs.rglob("*.md")) - set(found)
    return found + sorted(rest) + [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def headers():
    """What is installed: the roots that cmake/NestgradInstall.cmake names, and what they include."""
    text = (ROOT / "cmake/NestgradInstall.cmake").read_text()
    todo = [h for group in re.findall(r"list\(APPEND headers ([^)]*)\)", text) for h in group.split() if h.endswith(".h")]
    todo += [str(p.relative_to(ROOT)) for p in sorted((ROOT / "ttt/learners").glob("*.h"))]
    done = []
    while todo:
        header = todo.pop(0)
        if header not in done:
            done.append(header)
            todo += [h for h in re.findall(r'^#include "(.+?)"', (ROOT / header).read_text(), re.M) if h.endswith(".h")]
    return sorted(done)


def name_of(page, anchor=""):
    """The doxygen name of a page, or of a heading in it."""
    path = page.relative_to(ROOT).with_suffix("") if page.is_relative_to(ROOT) else pathlib.Path(page.stem)
    if str(path) == "docs/index" and not anchor:
        return "index"  # the main page
    name = "page_" + re.sub(r"\W", "_", str(path).removeprefix("docs/"))
    return name + ("__" + re.sub(r"\W", "_", anchor) if anchor else "")


def slug(heading):  # as GitHub makes it
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def plain(text):
    return text.replace("`", "").replace('"', "'").replace("*", "")


def link(page, text, target, known, subpages):
    """A link as a reference, or its text where the site does not have what it leads to."""
    if re.match(r"\w+:", target):
        return f"[{text}]({target})"
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if file in known:
        command = "@ref"
        if not anchor and file in subpages:
            subpages.discard(file)
            command = "@subpage"
        return f'{command} {name_of(file, anchor)} "{plain(text)}"'
    if file.suffix == ".h" and str(file.relative_to(ROOT)) in headers():
        return f'@ref nestgrad/{file.relative_to(ROOT)} "{plain(text)}"'
    return text


def children(page, known):
    """Which pages stand below this one in the tree."""
    if page.name != "index.md" or page == known[0]:  # what the main page lists is no tree for doxygen
        return []
    return [p for p in known if p.parent == page.parent and p != page]


def filter_line(page, line):
    """A line of a page that is not in a block; links, which may go over lines, come after."""
    if re.fullmatch(r"<!-- .* -->", line.strip()):
        return ""
    if heading := re.match(r"(#+) (.*)$", line):
        title = plain(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[2]))
        id_ = name_of(page) if heading[1] == "#" else name_of(page, slug(heading[2]))
        numbered = re.sub(r"^(\d+)\.", r"\1:", title)  # else it is a list
        return f"{heading[1]} {numbered}" + (f" {{#{id_}}}" if id_ != "index" else "")
    return re.sub(r"!\[([^]]*)\]\((?:\S*/)?(\S+?)\)", r"@image html \2", line)


def code(text):
    text = " ".join(text.split())
    if "\\|" in text:  # in a table
        return f"<code>{html.escape(text)}</code>"  # where \| is |
    return f"``{text}``"


def filter_page(page):
    known = pages()
    subpages, out = set(children(page, known)), []
    for segment in re.split(r"^(```.*?^```$)", page.read_text(), flags=re.M | re.S):
        if segment.startswith("```"):
            out.append(re.sub(r"^```(\w*)$", lambda m: "```{." + {"cpp": "cpp", "python": "py"}.get(m[1], "unparsed") + "}",
                              segment, count=1, flags=re.M))
            continue
        text = "\n".join(filter_line(page, line) for line in segment.split("\n"))
        out.append(re.sub(r"`([^`]*)`|\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)",  # a quote ends `code` for doxygen, not ``code``
                          lambda m: code(m[1]) if m[2] is None else link(page, " ".join(m[2].split()), m[3], known, subpages),
                          text))
    return "".join(out)


def escape(text):
    """Text of a comment, of which doxygen shall take nothing for a command; `code` stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([\\@<>&#%*_~|])", r"\\\1", p) for p in parts).replace("..", "&hellip;")


def comment(lines, first=""):
    """Lines of a comment block (without //) as one for doxygen; what is indented is code."""
    out, code = [], False
    for text in lines:
        indented = text.startswith("   ")
        if indented != code:
            out.append("@code{.cpp}" if indented else "@endcode")
            code = indented
        out.append(text[3:] if indented else escape(text.strip()))
    if code:
        out.append("@endcode")
    return [f"/// {first}"] * bool(first) + [f"/// {x}".rstrip() for x in out]


def filter_header(path):
    lines, out, at, about = path.read_text().split("\n"), [], 0, []
    defs = re.findall(r'#include "(.*\.def)"', path.read_text())
    while at < len(lines):
        line = lines[at]
        block = []
        while at < len(lines) and re.match(r"\s*//(?!/)", lines[at]):
            block.append(re.sub(r"^\s*//( ?)", "", lines[at]))
            at += 1
        if block:
            floating = out and (at == len(lines) or not lines[at].strip() or re.match(r"\s*[})]", lines[at]))
            section = any(re.match(r"(----|clang-format)", b) for b in block)
            if not out:
                out += comment(block, "@file")
                about = block
            elif floating or section:
                out += ["//"] * len(block)
            else:
                out += comment(block)
            continue
        at += 1
        named = re.match(r"(?:class|struct) (\w+)[^;]*$", line)
        if named and about and about[0].startswith(f"{named[1]}: ") and not (out and out[-1].startswith("///")):
            out += comment(about)  # what the file says of itself, it says of its class
        if line.startswith("#define") and defs or re.match(r'#include ".*\.def"', line):
            continue
        trailing = re.match(r"(.*\S)(\s+)// (.*)$", line)
        if trailing and not re.search(r"[{(]$|^\s*#|^\s*}", trailing[1]):
            line = f"{trailing[1]}{trailing[2]}///< {escape(trailing[3])}"
        out.append(line)
        if re.match(r"namespace nestgrad.* \{", line):
            for definition in defs:
                out += declared(ROOT / definition)
    return "\n".join(out)


def declared(definition):
    """The functions that a .def file lists."""
    arguments = {"UNARY": "Operand x", "BINARY": "Operand a, Operand b", "TERNARY": "Operand a, Operand b, Operand c"}
    for line in definition.read_text().split("\n"):
        if op := re.match(r'(UNARY|BINARY|TERNARY)(?:_STEP)?\((\w+),\s*"([^"]*)"', line):
            yield f"/// {escape(op[3])}\nTensor {op[2]}({arguments[op[1]]});"
        elif system := re.match(r"(SYSTEMS?)\((\w+)\)", line):
            yield f"{'std::vector<System>' if system[1] == 'SYSTEMS' else 'System'} {system[2]}();"


def write_reference(build):
    """The page of the headers, each with the first sentence of what it says of itself."""
    rows = []
    for header in headers():
        text = " ".join(re.match(r"((?://.*\n)*)", (ROOT / header).read_text())[1].replace("//", " ").split())
        rows.append(f"| @ref nestgrad/{header} \"{header}\" | {escape(re.split(r'(?<=[.]) ', text)[0])} |")
    page = build / "reference.md"
    page.write_text("# API reference {#page_reference}\n\nWhat a user may include, as `<nestgrad/..>`; `nestgrad.h` has most of it.\n"
                    "All classes: @ref nestgrad and @ref nestgrad::ttt.\n\n| header | what |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return page


class Links(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.targets, self.names = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            if (key == "href" and tag in ("a", "area", "link") or key in ("src", "data")) and value:
                self.targets.append(value)


def check(site):
    files = {f.resolve(): Links(f) for f in site.rglob("*.html")}
    wrong = set()
    for file, links in files.items():
        for target in links.targets:
            url = urllib.parse.urlparse(target)
            if url.scheme or target.startswith("//") or target in DOXYGENS_OWN:
                continue
            to = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
            if not to.exists() or url.fragment and to in files and urllib.parse.unquote(url.fragment) not in files[to].names:
                wrong.add(f"{file.name}: {target}")
    for w in sorted(wrong):
        print(f"site: a dead link in {w}", file=sys.stderr)
    print(f"site: {len(files)} pages, {len(wrong)} dead links")
    return 1 if wrong or not files else 0


def main(arguments):
    if arguments[:1] == ["--inputs"]:
        build = pathlib.Path(arguments[1]).resolve()
        (build / "include").mkdir(parents=True, exist_ok=True)
        if not (build / "include/nestgrad").exists():  # headers have the names by which they are included
            (build / "include/nestgrad").symlink_to(ROOT)
        listed = [*pages(), write_reference(build), *(build / "include/nestgrad" / h for h in headers())]
        print("\n".join(map(str, listed)))
    elif arguments[:1] == ["--check"]:
        return check(pathlib.Path(arguments[1]))
    else:
        file = pathlib.Path(arguments[0]).resolve()
        generated = file.suffix == ".md" and file not in pages()
        print(file.read_text() if generated else filter_page(file) if file.suffix == ".md" else filter_header(file))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
