#!/usr/bin/env python3
"""`fattn tokenize` beside Python's `tokenizers`, on random strings: the same tokens, or the first text that differs.

    FATTN=build/release/cli/fattn python3 tests/interop/tokenizer.py [--texts N] [--seed N] [TOKENIZER.json ...]

Without files, those of tests/golden. Without the package it says so and ends well. Where the file asks for NFC, texts are of
characters that the package's older tables of Unicode know.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import Tokenizer
except ImportError:
    print("tokenizer.py: no package `tokenizers`: nothing compared")
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIECES = (
    [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'", "0", "12", "345", "a", "the", "The", "ing", "é", "e\u0301", "\u0323", "ß"]
    + ["中", "文", "한", "\u1112\u1161", "ا", "हि", "😀", "👨‍👩‍👧", "\u00a0", "\u3000", "_", "::", "{", "}\n", ".", "?!", "ſ", "Ⅷ", "½"]
)
OLD = unicodedata.ucd_3_2_0
CHARACTERS = [chr(c) for c in range(1, 0x30000) if OLD.category(chr(c)) not in ("Cn", "Cs") and (c < 0xD800 or c > 0xDFFF)]


def random_text(names):
    kinds = [lambda: random.choice(PIECES)] * 6 + [lambda: random.choice(CHARACTERS), lambda: random.choice(names)]
    return "".join(random.choice(kinds)() for _ in range(random.randrange(1, 40)))


def tokens_of(path):
    data = path.read_bytes()
    wide = b"'<u4'" in data[:128]
    return [t for (t,) in struct.iter_unpack("<I" if wide else "<H", data[128:])]


def compare(program, file, texts):
    known = Tokenizer.from_file(str(file))
    names = [t["content"] for t in json.loads(file.read_text())["added_tokens"]] or ["a"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        strings = [random_text(names) for _ in range(texts)]
        for i, text in enumerate(strings):
            (folder / f"{i:06}.txt").write_bytes(text.encode())
        command = [program, "tokenize", "--tokenizer", file, "--data", folder, "--eot", names[0], "--out", folder / "out.npy"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        found = tokens_of(folder / "out.npy")
    end, at = known.token_to_id(names[0]), 0
    for text in strings:
        expected = known.encode(text).ids + [end]
        if found[at : at + len(expected)] != expected:
            print(f"FAIL  {file.name}: {text!r}\n  tokenizers {expected}\n  fattn      {found[at:at + len(expected)]}")
            return False
        at += len(expected)
    print(f"ok    {file.name}: {texts} texts, {at} tokens")
    return at == len(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    random.seed(options.seed)
    program = os.environ.get("FATTN", "build/release/cli/fattn")
    files = options.files or sorted((ROOT / "tests/golden").glob("tokenizer_*.json"))
    return 0 if all([compare(program, file, options.texts) for file in files]) else 1


sys.exit(main())
