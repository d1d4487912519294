#!/usr/bin/env python3
"""Writes train/unicode_tables.c: what a tokenizer asks of Unicode, from Python's unicodedata2.

    python3 tools/unicode_tables.py > train/unicode_tables.c

The patterns of tokenizers are matched elsewhere by Unicode 16, so the package unicodedata2 of that version is asked for; with
another one, characters that are new or not yet there are classed otherwise.
"""

import sys

import unicodedata2 as unicodedata

WANTED = "16.0.0"
LAST = 0x110000
SPACES = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Alphabetic beyond letters, letter numbers and marks; joiners.
OTHER_WORD = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}


def unicode_class(code):
    category = unicodedata.category(chr(code))
    if category[0] == "L":
        return "LETTER"
    if category[0] == "N":
        return "NUMBER"
    return "SPACE" if code in SPACES else "OTHER"


def is_word(code):
    category = unicodedata.category(chr(code))
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or code in OTHER_WORD


def decomposition(code):
    """The canonical one, as one or two characters."""
    text = unicodedata.decomposition(chr(code))
    return [int(part, 16) for part in text.split()] if text and text[0] != "<" else []


def pairs():
    """(first, second, whole) of all that composition joins."""
    for code in range(LAST):
        parts = decomposition(code)
        if len(parts) == 2 and unicodedata.normalize("NFC", chr(code)) == chr(code):
            yield parts[0], parts[1], code


def joining(seconds):
    """code -> its combining class, or 255 where the class is 0 but a character may still join what stands before it."""
    for code in range(LAST):
        combining = unicodedata.combining(chr(code))
        full = unicodedata.normalize("NFD", chr(code)) if not 0xD800 <= code < 0xE000 else ""
        hangul = 0x1161 <= code <= 0x1175 or 0x11A8 <= code <= 0x11C2
        if combining:
            yield code, combining
        elif code in seconds or hangul or (full and unicodedata.combining(full[0])):
            yield code, 255


def ranges(classed):
    """(first, last, value) of neighbours with the same value."""
    found = []
    for code, value in classed:
        if found and found[-1][1] == code - 1 and found[-1][2] == value:
            found[-1][1] = code
        else:
            found.append([code, code, value])
    return found


def table(kind, name, rows):
    items = ["{" + ", ".join(f"0x{x:x}" if isinstance(x, int) else x for x in row) + "}" for row in rows]
    print(f"const {kind} {name}[] = {{")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 128:
            print(line)
            line = "   "
        line += f" {item},"
    print(line)
    print(f"}};\nconst int {name}_count = {len(items)};\n")
    return len(items)


def main():
    if unicodedata.unidata_version != WANTED:
        sys.exit(f"unicodedata2 is of Unicode {unicodedata.unidata_version}, not {WANTED}")
    print(f"/* Made by tools/unicode_tables.py from Unicode {WANTED}. */")
    print("/* clang-format off */")
    print('#include "unicode_tables.h"\n')
    triples = sorted(pairs())
    classes = ranges((code, "UNICODE_" + name) for code in range(LAST) if (name := unicode_class(code)) != "OTHER")
    words = ranges((code, 1) for code in range(LAST) if is_word(code))
    joins = ranges(joining({second for _, second, _ in triples}))
    split = [(code, *(decomposition(code) + [0])[:2]) for code in range(LAST) if decomposition(code)]
    size = 12 * table("unicode_range", "unicode_classes", classes)
    size += 12 * table("unicode_range", "unicode_words", words)
    size += 12 * table("unicode_range", "unicode_joins", joins)
    size += 12 * table("unicode_triple", "unicode_splits", split)
    size += 12 * table("unicode_triple", "unicode_pairs", triples)
    print(f"/* {size} bytes of tables. */")


main()
