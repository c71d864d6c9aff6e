#!/usr/bin/env python3
"""Draws the rooms of the project and what includes what: docs/rooms.svg.

A room is a folder. Each may include from those below it, and from no other: ROOMS is the order, from the
ground up.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = {  # room -> what it is for; rooms of one level stand side by side
    "ops/numerics": "numbers, elementary functions",
    "engine/core": "arrays, graph, the row of an op",
    "engine/io": "files of arrays",
    "engine/processes": "bytes between processes",
    "engine/plan": "analyses, passes, compiler",
    "engine/run": "executors, interpreter, profile",
    "engine/look": "printing, the first NaN",
    "ops": "the table of ops, kernels",
    "autograd": "derivatives, scan",
    "cuda_emulator": "a GPU in software, for tests",
    "cuda": "the same plans on a GPU",
    "ttt": "learners, forms, inner loop",
    "models": "language models, training",
    "look": "pages, pictures, inspection",
    "programs": "mains as functions",
    "reproduce": "papers' tables, with error bars",
    "examples": "mains, programs to read",
}
LEVELS = [  # in three columns
    (None, "ops/numerics", None),
    (None, "engine/core", None),
    ("engine/processes", "engine/plan", "cuda_emulator"),
    ("engine/io", "engine/run", None),
    ("engine/look", "ops", None),
    (None, "autograd", "cuda"),
    (None, "ttt", None),
    (None, "models", None),
    (None, "look", None),
    (None, "programs", None),
    (None, "reproduce", None),
    (None, "examples", None),
]
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".def"}
ALLOWED = {("examples", "tests")}  # the check of goldens stands beside the tests


def room_of(path):
    for room in sorted(ROOMS, key=len, reverse=True):
        if path.startswith(room + "/"):
            return room
    return path.split("/")[0]


def unlisted():
    """Folders of the top with headers and sources that git knows, or would add, and that are no rooms."""
    git = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(git, capture_output=True, text=True, check=False).stdout.split("\n")
    tops = {name.split("/")[0] for name in found if "/" in name and pathlib.Path(name).suffix in SOURCES}
    rooms = {room.split("/")[0] for room in ROOMS} | {"tests", "bench", "docs"}
    return [
        f"{top}/ has sources, and no line in ROOMS of scripts/rooms.py: say where it stands"
        for top in sorted(tops - rooms)
    ]


def includes():
    """(from room, to room) -> [(file, included)]; room -> lines."""
    arrows, lines = collections.defaultdict(list), collections.Counter()
    for top in sorted({room.split("/")[0] for room in ROOMS}):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            name, text = str(file.relative_to(ROOT)), file.read_text()
            lines[room_of(name)] += text.count("\n")
            for target in re.findall(r'^#include "([^"]+)"', text, re.M):
                # Lists (.def) are text for everybody; what lies beside a file is of its own room.
                known = "/" in target and target.endswith(".h") and (ROOT / target).is_file()
                if known and room_of(target) != room_of(name):
                    arrows[room_of(name), room_of(target)].append((name, target))
    return arrows, lines


def wrong(arrows):
    level = {room: i for i, rooms in enumerate(LEVELS) for room in rooms}
    return [
        f"{file} includes {target}: {a} stands below {b}, or beside it"
        for (a, b), uses in sorted(arrows.items())
        for file, target in uses
        if (a, b) not in ALLOWED and level.get(b, len(LEVELS)) >= level[a]
    ]


def is_implied(arrows, a, b):
    """Does another way lead from a to b?"""
    return any(x == a and y != b and (y == b or reaches(arrows, y, b)) for x, y in arrows)


def reaches(arrows, a, b):
    return any(x == a and (y == b or reaches(arrows, y, b)) for x, y in arrows if y != a)


def picture(arrows):
    """Rooms from the ground up, with the arrows that do not follow from others."""
    width, height, box, tall = 760, 90 * len(LEVELS) + 10, 230, 52
    at = {}
    for i, rooms in enumerate(reversed(LEVELS)):
        for k, room in enumerate(rooms):
            if room:
                at[room] = (width / 2 + (k - 1) * (box + 20), 20 + 90 * i + tall / 2)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<style>text{fill:#222}.line{stroke:#777;fill:none}.room{fill:#eef3f8;stroke:#4a6785}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.line{stroke:#999}.room{fill:#24303c;stroke:#8fb0d0}}"
        "</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
    ]
    for (a, b), uses in sorted(arrows.items()):
        if a not in at or b not in at or is_implied(arrows, a, b):
            continue
        (x1, y1), (x2, y2) = at[a], at[b]
        x1 += (x2 - x1) / 4
        out.append(
            f'<path class="line" d="M{x1:.0f} {y1 + tall / 2}L{x2} {y2 - tall / 2 - 2}" marker-end="url(#tip)"/>'
        )
    for room, (x, y) in at.items():
        out.append(
            f'<rect class="room" x="{x - box / 2}" y="{y - tall / 2}" width="{box}" height="{tall}" rx="6"/>'
            f'<text x="{x}" y="{y - 4}" text-anchor="middle" font-size="16" font-weight="bold">{room}/</text>'
            f'<text x="{x}" y="{y + 16}" text-anchor="middle" font-size="13">{ROOMS[room]}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if an arrow points upwards, or the picture is another")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "rooms.svg")
    options = parser.parse_args()
    arrows, lines = includes()
    bad = wrong(arrows) + unlisted()
    if not options.check and not bad:  # wrong arrows may go round in circles, which no picture shows
        options.out.write_text(picture(arrows))
    elif not bad and options.out.read_text() != picture(arrows):
        bad.append(f"{options.out.name} shows other rooms or arrows than there are: run scripts/rooms.py")
    for line in bad:
        print(line, file=sys.stderr)
    for room in ROOMS:
        print(f"{room:14} {lines[room]:6} lines")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
