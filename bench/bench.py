"""What the scripts beside this file share: running `fattn bench attention --json`, and Markdown tables. Standard library
only. FATTN names the program; build/release/cli/fattn without it."""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def program():
    return os.environ.get("FATTN", os.path.join(ROOT, "build", "release", "cli", "fattn"))


def fattn(*arguments):
    """The JSON objects that `fattn ARGUMENTS` printed. Exits with its message if it failed."""
    command = [program(), *map(str, arguments)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit("%s\nfailed with exit code %d:\n%s" % (" ".join(command), run.returncode, run.stderr.strip()))
    return [json.loads(line) for line in run.stdout.splitlines() if line.strip()]


def attention(device="cpu", **options):
    """One run of the benchmark: option names as on the command line, lists for grids, True and False for flags."""
    arguments = ["bench", "attention", "--device", device, "--json"]
    for name, value in options.items():
        name = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            arguments += [name] if value else []
        else:
            arguments += [name, ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    return fattn(*arguments)


def table(head, rows):
    """A Markdown table; columns of numbers to the right."""
    widths = [max(len(str(row[i])) for row in [head] + rows) for i in range(len(head))]
    line = lambda row: "| " + " | ".join(str(cell).rjust(width) for cell, width in zip(row, widths)) + " |"
    print(line(head))
    print("|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    for row in rows:
        print(line(row))


def note(text):
    print(text, file=sys.stderr, flush=True)
