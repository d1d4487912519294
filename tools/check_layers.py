#!/usr/bin/env python3
"""Checks the direction of includes: include <- core <- kernels, and clients that see the public header only.

    python3 tools/check_layers.py [ROOT]

A room is a folder. For each the rooms whose headers it may include stand below; a quoted include is looked for beside the
including file, then in the folders that the build gives to compilers. System headers (in angle brackets) are not looked at,
but for the public header, which includes stddef.h and stdint.h only.
"""
import pathlib
import re
import sys

# Room: the rooms it may include, besides itself. The longest matching path names a file's room.
ALLOWED = {
    "include": [],
    "src/core": ["include"],
    "src/ref": ["include", "src/core"],
    "src/composed": ["include", "src/core"],
    "src/cpu": ["include", "src/core"],
    "src/cuda": ["include", "src/core", "gpu"],
    "gpu": [],
    "harness": ["include", "gpu"],
    "train": ["include", "gpu"],
    "cli": ["include", "harness", "train", "gpu"],
    "bench": ["include", "harness", "train", "gpu"],
    "python": ["include"],
    "tests": ["include", "harness", "train", "cli", "gpu"],
}
SEARCHED = ["include", "src", ".", "harness", "train", "cli"]
PUBLIC_HEADER_MAY_INCLUDE = {"stddef.h", "stdint.h"}
SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]', re.MULTILINE)


def room_of(path):
    best = ""
    for room in ALLOWED:
        if (path == room or path.startswith(room + "/")) and len(room) > len(best):
            best = room
    return best


def resolve(root, source, name):
    """The included file relative to root, or None if it is not in the repository."""
    for folder in [source.parent, *(root / folder for folder in SEARCHED)]:
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def check_file(root, source):
    path = source.relative_to(root).as_posix()
    room = room_of(path)
    text = source.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        quoted, name = match.group(1) == '"', match.group(2)
        if room == "include" and name not in PUBLIC_HEADER_MAY_INCLUDE:
            yield f"{path}:{line}: the public header includes {name}; it may include {', '.join(sorted(PUBLIC_HEADER_MAY_INCLUDE))}"
            continue
        target = resolve(root, source, name) if quoted or name.startswith("fattn/") else None
        if quoted and target is None:
            yield f"{path}:{line}: {name} is nowhere in the repository"
            continue
        if target is None:
            continue
        other = room_of(target)
        if other != room and other not in ALLOWED[room]:
            may = ", ".join(ALLOWED[room]) or "nothing"
            yield f"{path}:{line}: includes {target} of {other or 'no room'}; {room} may include {may}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = [file for room in ALLOWED for file in sorted((root / room).rglob("*"))
             if file.is_file() and file.suffix in SUFFIXES]
    files = sorted(set(files))
    faults = [fault for file in files for fault in check_file(root, file)]
    for fault in faults:
        print(fault)
    if not files:
        print("no files under", root)
    print(f"{len(files)} files, {len(faults)} faults")
    return 1 if faults or not files else 0


sys.exit(main())
