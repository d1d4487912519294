#!/usr/bin/env python3
"""The shared library exports the functions that the header declares, and nothing else.

    python3 symbols.py NM LIBRARY HEADER
"""
import re
import subprocess
import sys


def main():
    nm, library, header = sys.argv[1:]
    lines = subprocess.run([nm, "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    # Address, kind, name@@version; of kind A is the version itself. Sanitizers and coverage add names with two underscores.
    fields = [line.split() for line in lines]
    exported = {f[-1].split("@")[0] for f in fields if f[-2] != "A" and not f[-1].startswith("__")}
    with open(header, encoding="utf-8") as file:
        declared = set(re.findall(r"^FATTN_API [^;(]*?\b(fattn_\w+)\(", file.read(), re.MULTILINE))
    for name in sorted(declared - exported):
        print("not exported:", name)
    for name in sorted(exported - declared):
        print("exported, but not in the header:", name)
    if not declared:
        print("no function found in", header)
    print(len(declared & exported), "functions agree")
    return 0 if declared and declared == exported else 1


sys.exit(main())
