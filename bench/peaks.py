#!/usr/bin/env python3
"""How much of this CPU's FMA peak the chosen kernels reach, the peak being measured in the same run.

    python3 bench/peaks.py [--seq 2048] [--dim 64,128] [--threads 1,2] [--rounds 3] [--kernel auto]

A cell's fraction is the best over the rounds, because other work on the machine only ever lowers it; rounds go through all
cells before the next begins. Exits 1 if a forward cell is below --forward or a backward cell below --backward.
"""
import argparse
import sys

import bench


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--dim", default="64,128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--mask", default="full,causal")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each cell in a round")
    parser.add_argument("--forward", type=float, default=0.65, help="least fraction of peak")
    parser.add_argument("--backward", type=float, default=0.60)
    options = parser.parse_args()

    best = {}
    for round_number in range(options.rounds):
        for dim in options.dim.split(","):
            bench.note("round %d of %d: dim %s" % (round_number + 1, options.rounds, dim))
            for result in bench.attention(dtype=options.dtype, batch=1, heads=options.heads, seq=options.seq, dim=dim,
                                          mask=options.mask, threads=options.threads, kernel=options.kernel,
                                          seconds=options.seconds, **{"pass": "fwd,bwd"}):
                key = (result["op"], result["dim"], result["mask"], result["threads"])
                if key not in best or result["fraction_of_peak"] > best[key]["fraction_of_peak"]:
                    best[key] = result

    rows, short = [], []
    for key in sorted(best, key=lambda key: (key[0] != "forward", key[1], key[2] != "full", key[3])):
        result = best[key]
        least = options.forward if key[0] == "forward" else options.backward
        if result["fraction_of_peak"] < least:
            short.append("%s, dim %d, %s, %d threads: %.3f < %.2f" % (*key, result["fraction_of_peak"], least))
        rows.append([*key, result["kernel"], "%.2f" % result["ms_min"],
                     "%.0f" % (result["fraction_of_peak"] * result["peak_gflops"]), "%.0f" % result["peak_gflops"],
                     "%.3f" % result["fraction_of_peak"]])
    print("%s; %s, batch 1, %d heads, seq %d\n" % (next(iter(best.values()))["device_name"], options.dtype, options.heads,
                                                   options.seq))
    bench.table(["op", "dim", "mask", "threads", "kernel", "least ms", "GFLOP/s", "peak", "of peak"], rows)
    for line in short:
        print("too slow: " + line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
