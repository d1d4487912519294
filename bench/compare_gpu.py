#!/usr/bin/env python3
"""fattn against its peers on a GPU: cuDNN and FlashAttention-2 as PyTorch has them, FlashAttention-3 (the package fa3-fwd) and
FlashAttention-4 (flash-attn-4) where they are installed.

    python3 bench/compare_gpu.py [--peers cudnn,fa3] [--dim 64,128] [--seq 512,2048,16384] [--mask full,causal] [--pass fwd,bwd] ...

FlashAttention's protocol: 16384 tokens, heads x dim = 2048, bfloat16; rates count 4 dim operations for each kept score, 2.5 times
that backward. Every contender gets the same warm-up right before it is timed, in turns, in every round: a card at its power
limit is slower the longer it works. The table has medians over the rounds. Backward of fattn is timed in both of its modes, "+" marking
the one that may add in any order, as the peers do. Exits 1 where fattn is slower than --least times the best peer.
"""
import argparse
import statistics
import sys

import bench

WARM_UP_MS, REPEAT_MS = 250, 200


def peer_call(name):
    """What runs a peer on [batch, seq, heads, dim], and whether it has a backward."""
    if name in ("cudnn", "fa2"):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        backend = SDPBackend.CUDNN_ATTENTION if name == "cudnn" else SDPBackend.FLASH_ATTENTION

        def call(q, k, v, causal):
            with sdpa_kernel([backend]):
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        return call, True
    if name == "fa3":
        import fa3_fwd_interface as module
    elif name == "fa4":
        import flash_attn.cute as module
    else:
        sys.exit("--peers: '%s' is none of cudnn, fa2, fa3, fa4" % name)

    def first_output(q, k, v, causal):
        out = module.flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out
    return first_output, name == "fa4"


def time_peer(call, backward, cell):
    """Milliseconds: the median of the runs after the warm-up."""
    import torch
    from triton.testing import do_bench
    batch, heads = max(1, 16384 // cell["seq"]), 2048 // cell["dim"]
    shape = (batch, cell["seq"], heads, cell["dim"])
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    run = lambda: call(q, k, v, cell["mask"] == "causal")
    if backward:
        out = run()
        dout = torch.randn_like(out)
        run = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    return do_bench(run, warmup=WARM_UP_MS, rep=REPEAT_MS, return_mode="median")


def time_fattn(cell, unordered):
    found = bench.fattn("bench", "attention", "--device", "cuda", "--json", "--preset", "fa", "--dtype", "bf16", "--layout", "bshd",
                        "--pass", cell["pass"], "--dim", cell["dim"], "--seq", cell["seq"], "--mask", cell["mask"], "--seconds",
                        REPEAT_MS / 1000, *(["--unordered"] if unordered else []))
    return found[0]["ms"], found[0]["kernel"]


def scores(cell):
    seq = cell["seq"]
    each = seq * (seq + 1) // 2 if cell["mask"] == "causal" else seq * seq
    return max(1, 16384 // seq) * (2048 // cell["dim"]) * each


def rate(cell, ms):
    return scores(cell) * 4 * cell["dim"] * (2.5 if cell["pass"] == "bwd" else 1) / ms / 1e9


def contenders(cell, peers):
    """Names and functions that return milliseconds."""
    backward = cell["pass"] == "bwd"
    yield "fattn", lambda: time_fattn(cell, False)[0]
    if backward:
        yield "fattn+", lambda: time_fattn(cell, True)[0]
    for name, (call, has_backward) in peers.items():
        if has_backward or not backward:
            yield name, lambda call=call: time_peer(call, backward, cell)


def main():
    numbers = lambda text: [int(part) for part in text.split(",")]
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=words, default=["cudnn"])
    parser.add_argument("--dim", type=numbers, default=[64, 128])
    parser.add_argument("--seq", type=numbers, default=[512, 2048, 16384])
    parser.add_argument("--mask", type=words, default=["full", "causal"])
    parser.add_argument("--pass", dest="passes", type=words, default=["fwd", "bwd"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.0)
    options = parser.parse_args()
    peers = {name: peer_call(name) for name in options.peers}
    names = ["fattn", "fattn+"] + list(peers)
    cells = [{"pass": p, "dim": dim, "mask": mask, "seq": seq}
             for p in options.passes for dim in options.dim for mask in options.mask for seq in options.seq]
    times = {}
    for round_number in range(options.rounds):
        for number, cell in enumerate(cells):
            bench.note("round %d of %d: %s" % (round_number + 1, options.rounds, cell))
            for name, run in contenders(cell, peers):
                times.setdefault((number, name), []).append(run())
    rows, worst = [], float("inf")
    for number, cell in enumerate(cells):
        rates = {name: rate(cell, statistics.median(times[number, name])) for name in names if (number, name) in times}
        theirs = max((rates[name] for name in peers if name in rates), default=float("nan"))
        ratio = max(rates["fattn"], rates.get("fattn+", 0)) / theirs
        worst = min(worst, ratio)
        rows.append([cell["pass"], cell["dim"], cell["mask"], cell["seq"]] +
                    ["%.0f" % rates[name] if name in rates else "" for name in names] + ["%.2f" % ratio])
    print("TFLOP/s, bfloat16, 16384 tokens, width 2048\n")
    bench.table(["pass", "dim", "mask", "seq"] + names + ["best / best peer"], rows)
    return 1 if worst < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
