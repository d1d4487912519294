#!/usr/bin/env python3
"""The kernels that the library chooses against `composed` (matrix product, softmax, matrix product), on this CPU.

    python3 bench/compare_composed.py [--seq 256,1024,4096] [--dim 32,64,128] [--threads 1,2] [--mask full,causal] ...

Both run in the same process, one right after the other, in every round; the ratio of a cell is the median over the rounds
of composed's median time divided by flash's. Prints a Markdown table, and exits 1 if any ratio is below --least.
"""
import argparse
import statistics
import sys

import bench


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", type=numbers, default=[256, 1024, 4096])
    parser.add_argument("--dim", type=numbers, default=[32, 64, 128])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--mask", default="full,causal")
    parser.add_argument("--pass", dest="passes", default="fwd,bwd")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each cell and kernel in a round")
    parser.add_argument("--least", type=float, default=1.0)
    options = parser.parse_args()

    times, kernels = {}, {}  # (seq, dim, mask, pass, threads) -> [(flash ms, composed ms)] and the names that ran
    for round_number in range(options.rounds):
        for seq in options.seq:
            for dim in options.dim:
                bench.note("round %d of %d: seq %d, dim %d" % (round_number + 1, options.rounds, seq, dim))
                cells = {}
                for result in bench.attention(dtype=options.dtype, batch=options.batch, heads=options.heads, seq=seq, dim=dim,
                                              mask=options.mask, kernel="auto,composed", threads=options.threads,
                                              seconds=options.seconds, **{"pass": options.passes}):
                    key = (seq, dim, result["mask"], result["op"], result["threads"])
                    which = "composed" if result["kernel"].startswith("composed") else "flash"
                    cells.setdefault(key, {})[which] = result["ms"]
                    kernels[key, which] = result["kernel"]
                for key, both in cells.items():
                    if len(both) != 2:
                        sys.exit("the benchmark did not run both kernels for %s: it ran %s" % (key, ", ".join(both)))
                    times.setdefault(key, []).append((both["flash"], both["composed"]))

    rows, worst = [], None
    for key in sorted(times, key=lambda key: (key[3] != "forward", key[2], key[1], key[0], key[4])):
        flash = statistics.median(pair[0] for pair in times[key])
        composed = statistics.median(pair[1] for pair in times[key])
        ratio = statistics.median(pair[1] / pair[0] for pair in times[key])
        seq, dim, mask, op, threads = key
        rows.append([op, mask, dim, seq, threads, "%.3f" % flash, "%.3f" % composed, "%.2f" % ratio])
        worst = min(worst, (ratio, key)) if worst else (ratio, key)
    used = sorted({name for (_, which), name in kernels.items() if which == "flash"})
    print("%s, batch %d, %d heads; flash: %s\n" % (options.dtype, options.batch, options.heads, ", ".join(used)))
    bench.table(["op", "mask", "dim", "seq", "threads", "flash ms", "composed ms", "composed / flash"], rows)
    print("\nthe least ratio is %.2f, at %s" % (worst[0], "op %s, mask %s, dim %d, seq %d, threads %d" %
                                               (worst[1][3], worst[1][2], worst[1][1], worst[1][0], worst[1][4])))
    return 1 if worst[0] < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
