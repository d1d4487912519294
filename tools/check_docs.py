#!/usr/bin/env python3
"""Checks that what the documentation points to exists: links between pages, and files named in `backquotes`.

    python3 tools/check_docs.py

A name with a folder counts from the root of the repository; a bare file name must exist somewhere in it. Names with <, * or a
... in them stand for several files and are not looked up.
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
NAME = re.compile(r"`([A-Za-z0-9_./-]+\.(?:c|h|cpp|py|sh|md|txt|json|cmake)|[A-Za-z0-9_.-]+/(?:[A-Za-z0-9_.-]+/)*)`")
FENCE = re.compile(r"```.*?```", re.DOTALL)
NOT_HERE = ("build/", "out/", "stddef.h", "stdint.h", "tokenizer.json", "tokenizer_config.json",
            "special_tokens_map.json", "generation_config.json", "config.json", "model.safetensors.index.json", "state.json")  # made later, or the system's


def main():
    os.chdir(ROOT)
    # What git knows or would take: build folders are left out.
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], stdout=subprocess.PIPE, text=True)
    bare = {os.path.basename(path) for path in listed.stdout.splitlines()}
    pages = sorted(glob.glob("*.md") + glob.glob("docs/**/*.md", recursive=True))
    wrong = 0
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        missing = [link for link, _ in LINK.findall(text)
                   if "://" not in link and not os.path.exists(os.path.join(os.path.dirname(page), link))]
        for name in NAME.findall(FENCE.sub("", text)):
            there = os.path.exists(name) or os.path.exists(os.path.join(os.path.dirname(page), name))
            if not there and not name.startswith(NOT_HERE) and ("/" in name.rstrip("/") or name not in bare):
                if not (name.endswith("/") and glob.glob("*/" + name)):
                    missing.append(name)
        for name in missing:
            wrong += 1
            print("%s: there is no %s" % (page, name))
    print("%d pages, %d things that are not there" % (len(pages), wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
