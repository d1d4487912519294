#!/usr/bin/env python3
"""The kernels that the library chooses against `composed` (matrix product, softmax, matrix product), on this CPU or a GPU.

    python3 bench/compare_composed.py [--seq 256,1024,4096] [--dim 32,64,128] [--threads 1,2] [--mask full,causal] ...
    python3 bench/compare_composed.py --device cuda [--dtype bf16,f32] ...

Both run in the same process, one right after the other, in every round; the ratio of a cell is the median over the rounds
of composed's median time divided by flash's. `both` adds the times of forward and backward. Prints a Markdown table for each type,
and exits 1 if any ratio is below --least. The program need not be the checkout's: FATTN names it.
"""
import argparse
import statistics
import sys

import bench

# What is compared where nothing else is asked for. On a GPU: heads as small models have them.
DEFAULTS = {
    "cpu": {"dim": [32, 64, 128], "threads": [1, 2], "mask": "full,causal", "dtype": "f32", "batch": 1},
    "cuda": {"dim": [32], "threads": [0], "mask": "causal", "dtype": "bf16,f32", "batch": 8},
}
COMPOSED = {"cpu": "composed", "cuda": "cuda_composed"}


def numbers(text):
    return [int(part) for part in text.split(",")]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=sorted(DEFAULTS), default="cpu")
    parser.add_argument("--seq", type=numbers, default=[256, 1024, 4096])
    parser.add_argument("--dim", type=numbers)
    parser.add_argument("--threads", type=numbers, help="of a CPU")
    parser.add_argument("--mask")
    parser.add_argument("--pass", dest="passes", default="fwd,bwd")
    parser.add_argument("--dtype")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each cell and kernel in a round")
    parser.add_argument("--least", type=float, default=1.0)
    options = parser.parse_args()
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def time_cells(options, dtype, seq, dim, kernels):
    """One round of a size: (mask, op, threads) -> {"flash": ms, "composed": ms}. Adds the names that ran to `kernels`."""
    cells = {}
    composed = COMPOSED[options.device]
    threads = {"threads": options.threads} if options.device == "cpu" else {}
    for result in bench.attention(device=options.device, dtype=dtype, batch=options.batch, heads=options.heads, seq=seq, dim=dim,
                                  mask=options.mask, kernel="auto," + composed, seconds=options.seconds, **threads,
                                  **{"pass": options.passes}):
        which = "composed" if result["kernel"].startswith(composed) else "flash"
        cells.setdefault((result["mask"], result["op"], result["threads"]), {})[which] = result["ms"]
        if which == "flash":
            kernels.add(result["kernel"])
    for key, both in cells.items():
        if len(both) != 2:
            sys.exit("the benchmark did not run both kernels for %s: it ran %s" % (key, ", ".join(both)))
    for mask, op, count in list(cells):
        rest = cells.get((mask, "backward", count))
        if op == "forward" and rest:
            cells[mask, "both", count] = {which: ms + rest[which] for which, ms in cells[mask, op, count].items()}
    return cells


def compare(options, dtype):
    """Prints the table of a type; returns its least ratio and where that is."""
    times, kernels = {}, set()  # (op, mask, dim, seq, threads) -> [(flash ms, composed ms)]
    for round_number in range(options.rounds):
        for seq in options.seq:
            for dim in options.dim:
                bench.note("round %d of %d: %s, seq %d, dim %d" % (round_number + 1, options.rounds, dtype, seq, dim))
                for (mask, op, threads), both in time_cells(options, dtype, seq, dim, kernels).items():
                    times.setdefault((op, mask, dim, seq, threads), []).append((both["flash"], both["composed"]))

    rows, worst = [], None
    order = ["forward", "backward", "both"]
    for key in sorted(times, key=lambda key: (order.index(key[0]),) + key[1:]):
        flash = statistics.median(pair[0] for pair in times[key])
        composed = statistics.median(pair[1] for pair in times[key])
        ratio = statistics.median(pair[1] / pair[0] for pair in times[key])
        rows.append([*key, "%.3f" % flash, "%.3f" % composed, "%.2f" % ratio])
        worst = min(worst, (ratio, key)) if worst else (ratio, key)
    print("%s, batch %d, %d heads; flash: %s\n" % (dtype, options.batch, options.heads, ", ".join(sorted(kernels))))
    bench.table(["op", "mask", "dim", "seq", "threads", "flash ms", "composed ms", "composed / flash"], rows)
    print("\nthe least ratio is %.2f, at op %s, mask %s, dim %d, seq %d, threads %d\n" % (worst[0], *worst[1]))
    return worst[0]


def main():
    options = read_options()
    least = min(compare(options, dtype) for dtype in options.dtype.split(","))
    return 1 if least < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
