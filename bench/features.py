#!/usr/bin/env python3
"""What features cost, and whether that is what is promised, on this CPU.

    python3 bench/features.py [--only narrow,varlen,window,bias,decode] [--threads 1,2] [--kernel auto,cpu_avx2] [--json] ...

Rounds go through all cells before the next begins; of each cell the least time over the rounds counts, because other work on
the machine only ever adds to it. Cells that are compared are timed right behind each other. The promises:

    narrow    time of bf16, and of f16, divided by that of f32: at most 1.10 with the AVX2 kernels
    varlen    time per score of packed sequences of drawn lengths, divided by that of as many sequences of one length, with as
              many rows in all: at most 1.15
    window    time per score of a window of 512 keys (window:511,0), divided by that of the full mask: at most 1.15; and the
              time of a causal mask divided by that of a window of 256 keys (window:255,0): at least 6
    bias      time with a bias [1, heads, seq, seq] (dims hq), and with [batch, heads, seq, seq] (dims bhq), divided by that
              without: at most 1.15. With dbias too, backward: shown, nothing is promised
    decode    bytes of keys and values per second in the best call, divided by the best rate at which as many threads read the
              same memory in the same runs: at least 0.75 in f32, 0.70 in bf16

A score is a pair of query row and key that the mask keeps. Whatever else differs between two cells, the score's work is the
same, so time per score is what a feature may change. Prints a Markdown table, and exits 1 if a promise is not held.
"""
import argparse
import json
import sys

import bench

AVX2 = "cpu_avx2"

# What a cell is known by.
FIELDS = ("group", "op", "family", "threads", "dtype", "batch", "heads", "seq_k", "dim", "mask", "varlen", "bias", "dbias")


def numbers(text):
    return [int(part) for part in text.split(",")]


def runs_of(options):
    """(group, options of the benchmark) of every run of a round; each run times cells that are compared."""
    both = {"pass": "fwd,bwd", "batch": 1, "heads": options.heads, "dim": 64, "threads": options.threads}
    for dim in options.dim:
        for seq in options.seq:
            yield "narrow", dict(both, dtype="f32,bf16,f16", dim=dim, seq=seq)
    for varlen in (False, True):
        yield "varlen", dict(both, batch=4, seq=1024, varlen=varlen)
    yield "window", dict(both, seq=4096, mask="full,causal,window:511,0,window:255,0")
    for dbias in (False, True):
        yield "bias", dict(both, batch=2, seq=1024, bias="none,hq,bhq", dbias=dbias)
    yield "decode", {"pass": "decode", "dtype": "f32,bf16", "batch": 1, "heads": 32, "heads_kv": 8, "seq": 8192, "dim": 128,
                     "threads": options.threads}


class Promise:
    """The time per score of cells that match, divided by that of the same cell with other fields.

    inverse: the other way round, and of whole times. most, least: what is promised; None: nothing."""

    def __init__(self, group, name, match, other, most=None, least=None, family=None, inverse=False):
        self.group, self.name, self.match, self.other = group, name, match, other
        self.most, self.least, self.family, self.inverse = most, least, family, inverse

    def value(self, cell, other):
        if self.inverse:
            return other["ms_min"] / cell["ms_min"]
        return (cell["ms_min"] / cell["scores"]) / (other["ms_min"] / other["scores"])


class Reading(Promise):
    """The rate at which a cell reads its cache, as a part of the rate of plain reading."""

    def value(self, cell, other):
        return cell["bytes"] / cell["ms_min"] * 1e-6 / cell["best_copy"]


PROMISES = [
    Promise("narrow", "bf16 / f32", {"dtype": "bf16"}, {"dtype": "f32"}, most=1.10, family=AVX2),
    Promise("narrow", "f16 / f32", {"dtype": "f16"}, {"dtype": "f32"}, most=1.10, family=AVX2),
    Promise("varlen", "varlen / plain, per score", {"varlen": True}, {"varlen": False}, most=1.15),
    Promise("window", "window 512 / full, per score", {"mask": "window:511,0"}, {"mask": "full"}, most=1.15),
    Promise("window", "causal / window 256", {"mask": "window:255,0"}, {"mask": "causal"}, least=6, inverse=True),
    Promise("bias", "bias hq / none", {"bias": "hq", "dbias": False}, {"bias": "none"}, most=1.15),
    Promise("bias", "bias bhq / none", {"bias": "bhq", "dbias": False}, {"bias": "none"}, most=1.15),
    Promise("bias", "bias and dbias hq / none", {"bias": "hq", "dbias": True}, {"bias": "none", "dbias": False}),
    Promise("bias", "bias and dbias bhq / none", {"bias": "bhq", "dbias": True}, {"bias": "none", "dbias": False}),
    Reading("decode", "read / plain reading, f32", {"dtype": "f32"}, {}, least=0.75),
    Reading("decode", "read / plain reading, bf16", {"dtype": "bf16"}, {}, least=0.70),
]


def measure(options):
    """The fastest result of every cell over the rounds, with the best rate of reading that was seen."""
    best = {}
    for round_number in range(options.rounds):
        for group, run in runs_of(options):
            if group not in options.only:
                continue
            bench.note("round %d of %d: %s" % (round_number + 1, options.rounds, group))
            for result in bench.attention(kernel=options.kernel, seconds=options.seconds, **run):
                result["group"] = group
                result["family"] = "_".join(result["kernel"].split("_")[:2])
                key = tuple(result[field] for field in FIELDS)
                copy = max(result.get("copy_gbps", 0), best[key]["best_copy"] if key in best else 0)
                if key not in best or result["ms_min"] < best[key]["ms_min"]:
                    best[key] = result
                best[key]["best_copy"] = copy
    return best


def judge(best):
    """A row for every promise and cell that it is about."""
    for promise in PROMISES:
        for key, cell in best.items():
            if cell["group"] != promise.group or any(cell[field] != value for field, value in promise.match.items()):
                continue
            other = best.get(tuple({**cell, **promise.other}[field] for field in FIELDS)) if promise.other else cell
            if other is None:
                sys.exit("nothing was measured to compare %s with" % dict(zip(FIELDS, key)))
            value = promise.value(cell, other)
            counts = promise.family in (None, cell["family"])
            most, least = (promise.most, promise.least) if counts else (None, None)
            held = (most is None or value <= most) and (least is None or value >= least)
            yield {"promise": promise.name, "op": "decode" if cell["pass"] == "decode" else cell["op"],
                   "kernel": cell["kernel"], "threads": cell["threads"], "batch": cell["batch"], "heads": cell["heads"],
                   "seq": cell["seq_k"], "dim": cell["dim"], "ms_min": cell["ms_min"],
                   "other_ms_min": other["ms_min"] if promise.other else None,
                   "value": value, "most": most, "least": least, "held": held}


def mark(row):
    promised = row["most"] is not None or row["least"] is not None
    return ("PASS" if row["held"] else "below") if promised else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = sorted({promise.group for promise in PROMISES})
    parser.add_argument("--only", type=lambda text: text.split(","), default=groups,
                        help="groups of promises: %s" % ",".join(groups))
    parser.add_argument("--kernel", default="auto,cpu_avx2")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--dim", type=numbers, default=[64, 128], help="of narrow")
    parser.add_argument("--seq", type=numbers, default=[1024, 2048], help="of narrow")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each cell and kernel in a round")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    options = parser.parse_args()
    for group in options.only:
        if group not in groups:
            parser.error("--only: '%s' is none of: %s" % (group, ", ".join(groups)))

    best = measure(options)
    rows = list(judge(best))
    short = [row for row in rows if not row["held"]]
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return 1 if short else 0
    print("%s; times are the least of %d rounds\n" % (next(iter(best.values()))["device_name"], options.rounds))
    bench.table(["what", "op", "kernel", "threads", "batch", "heads", "seq", "dim", "ms", "other ms", "ratio", "promised", ""],
                [[row["promise"], row["op"], row["kernel"], row["threads"], row["batch"], row["heads"], row["seq"], row["dim"],
                  "%.3f" % row["ms_min"],
                  "%.3f" % row["other_ms_min"] if row["other_ms_min"] else "", "%.2f" % row["value"],
                  "<= %.2f" % row["most"] if row["most"] else ">= %.2f" % row["least"] if row["least"] else "",
                  mark(row)]
                 for row in rows])
    print("\n%d promises held, %d not" % (sum(mark(row) == "PASS" for row in rows), len(short)))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
