#!/usr/bin/env python3
"""Memory and speed of training with the flash kernels and with composed attention, at several sequence lengths.

    python3 bench/train_memory.py [--seq 512,1024,2048] [--tokens 4096] [--steps 8] [--device cpu] [-- more options of `fattn train`]

The same model and the same tokens per step everywhere: batch = tokens / seq. `planned` is mem_bytes of the training log,
the memory that the trainer plans for, on a GPU of the GPU's memory; `peak`, on the CPU, is the most that the process held, as the
system counts it. Tokens per second are the median over the steps after the first two. Composed and flash take turns. Prints a
Markdown table, and exits 1 if flash used more memory than composed, or trained slower, at any length.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

import bench


def peak_of(command):
    """Runs a command; its peak resident memory in bytes."""
    # The high-water mark that getrusage keeps for children is over all of them, so each command gets a parent of its own.
    child = os.fork()
    if child == 0:
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            print("%s\nfailed with exit code %d:\n%s" % (" ".join(command), run.returncode, run.stderr.strip()), file=sys.stderr)
            os._exit(1)
        with open(command[command.index("--log") + 1] + ".peak", "w") as file:
            file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(1)
    with open(command[command.index("--log") + 1] + ".peak") as file:
        return int(file.read())


def train(seq, flash, options, folder):
    log = os.path.join(folder, "train.jsonl")
    command = [bench.program(), "train", "--preset", options.preset, "--seq", str(seq), "--batch",
               str(max(1, options.tokens // seq)), "--steps", str(options.steps), "--eval-every", "0", "--sample-every", "0",
               "--device", options.device, "--log", log] + (["--flash"] if flash else []) + options.more
    peak = peak_of(command)
    with open(log) as file:
        steps = [entry for entry in map(json.loads, file) if "tokens_per_s" in entry]
    os.remove(log)
    return {"planned": max(entry["mem_bytes"] for entry in steps), "peak": peak,
            "speed": statistics.median(entry["tokens_per_s"] for entry in steps[2:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", default="512,1024,2048")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--tokens", type=int, default=4096, help="per step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("more", nargs="*", help="after --: further options of `fattn train`")
    options = parser.parse_args()

    rows, short = [], []
    measures = ("planned", "peak") if options.device == "cpu" else ("planned",)
    with tempfile.TemporaryDirectory() as folder:
        for seq in map(int, options.seq.split(",")):
            best = {}
            for round_number in range(options.rounds):
                for flash in (False, True):
                    bench.note("seq %d, round %d of %d, %s" % (seq, round_number + 1, options.rounds, "flash" if flash else "composed"))
                    result = train(seq, flash, options, folder)
                    if flash not in best or result["speed"] > best[flash]["speed"]:
                        best[flash] = result
            off, on = best[False], best[True]
            rows.append([seq, max(1, options.tokens // seq)] +
                        ["%.1f" % (run[what] / 2**20) for what in measures for run in (off, on)] +
                        ["%.0f" % off["speed"], "%.0f" % on["speed"], "%.2f" % (on["speed"] / off["speed"])])
            if any(on[what] > off[what] for what in measures):
                short.append("seq %d: flash used more memory" % seq)
            if on["speed"] < off["speed"]:
                short.append("seq %d: flash trained slower" % seq)
    print("preset %s, %d tokens per step, %s%s\n" % (options.preset, options.tokens, options.device,
                                                     "".join(" " + word for word in options.more)))
    bench.table(["seq", "batch"] + [words for what in measures for words in (what + " MiB, composed", what + ", flash")] +
                ["tokens/s, composed", "tokens/s, flash", "flash / composed"], rows)
    for line in short:
        print(line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
