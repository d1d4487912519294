#!/usr/bin/env python3
"""Training steps of `fattn bench train` beside PyTorch's, of the same model, on the CPU or a GPU.

    python3 bench/compare_torch_train.py [--seq 256,512,2048] [--dtype f32,bf16] [--threads 2] [--torch eager,repeat] ...
    python3 bench/compare_torch_train.py --device cuda --hidden 768 --layers 12 --head-dim 64 --heads-kv 12 --ffn 2048 --vocab 50304 \\
        --tokens 32768 --seq 1024 --dtype bf16 --torch compile

The model is the trainer's: a residual stream of blocks with RMS norm, norms of queries and keys, rotation, causal attention of
grouped heads, SwiGLU, tied embedding. A step is forward, backward, clipping to a norm of 1 and AdamW, of --tokens random tokens. In
bf16 PyTorch runs under autocast, with parameters in float, as the trainer does.

What PyTorch is asked for (--torch): `eager` has attention group the heads (enable_gqa), `repeat` repeats keys and values first, for which
it may have a faster kernel, and `compile` is torch.compile of `eager`.

fattn and every PyTorch take turns in each round; a round's figure is that of its median step, and the best round counts. The ratio
is fattn's tokens per second to those of the fastest PyTorch. Prints a Markdown table, and exits 1 if a ratio is below --least.
Needs PyTorch, of 2.5 or later. FATTN names the program.
"""
import argparse
import importlib.util
import statistics
import sys
import time

import bench

WARM_UP, LEAST = 3, 3  # steps, as `fattn bench train` has them
WAYS = ("eager", "repeat", "compile")


def numbers(text):
    return [int(part) for part in text.split(",")]


def words(known):
    def read(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError("'%s' is not one of %s" % (word, ", ".join(known)))
        return text.split(",")
    return read


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", type=words(("f32", "bf16")), default=["f32"])
    parser.add_argument("--torch", type=words(WAYS), default=["eager", "repeat"], help="what PyTorch is asked for: " + ", ".join(WAYS))
    parser.add_argument("--seq", type=numbers, default=[256, 512, 2048])
    parser.add_argument("--tokens", type=int, default=2048, help="in a step; a sequence at least")
    parser.add_argument("--vocab", type=int, default=258)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=2)
    parser.add_argument("--ffn", type=int, default=352)
    parser.add_argument("--threads", type=int, default=0, help="on the CPU; 0: as many as the process may use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for fattn and each PyTorch in a round; three steps at least")
    parser.add_argument("--least", type=float, default=0.0, help="ratio")
    options = parser.parse_args()
    if options.hidden % options.head_dim:
        parser.error("--head-dim: %d does not divide --hidden, %d" % (options.head_dim, options.hidden))
    return options


# ------------------------------------------------------------------------------------------------------------------- PyTorch


def parameters(torch, o):
    """The model's parameters by name. Products' matrices are [out, in]."""
    heads = o.hidden // o.head_dim
    matrices = {"q": (heads * o.head_dim, o.hidden), "k": (o.heads_kv * o.head_dim, o.hidden),
                "v": (o.heads_kv * o.head_dim, o.hidden), "o": (o.hidden, heads * o.head_dim),
                "gate": (o.ffn, o.hidden), "up": (o.ffn, o.hidden), "down": (o.hidden, o.ffn)}
    norms = {"input_norm": o.hidden, "post_norm": o.hidden, "q_norm": o.head_dim, "k_norm": o.head_dim}
    draw = lambda *shape: torch.nn.Parameter(0.02 * torch.randn(*shape, device=o.device))
    ones = lambda size: torch.nn.Parameter(torch.ones(size, device=o.device))
    layers = [{**{name: draw(*shape) for name, shape in matrices.items()}, **{name: ones(size) for name, size in norms.items()}}
              for _ in range(o.layers)]
    return {"embed": draw(o.vocab, o.hidden), "norm": ones(o.hidden), "layers": layers}


def listed(p):
    return [p["embed"], p["norm"]] + [weight for layer in p["layers"] for weight in layer.values()]


def loss_of(torch, o, repeat):
    """The function (parameters, tokens, targets, angles' cosines and sines) -> loss."""
    F = torch.nn.functional
    heads, dim = o.hidden // o.head_dim, o.head_dim

    def norm(x, weight):
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-6)  # of one type, or it is not fused

    def rotate(x, cosine, sine):
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    def attention(x, w, cosine, sine):
        batch, seq, _ = x.shape
        split = lambda y: y.view(batch, seq, -1, dim).transpose(1, 2)
        q, k, v = (split(F.linear(x, w[name])) for name in "qkv")
        q, k = (rotate(norm(y, w[which]), cosine, sine).to(v.dtype) for y, which in ((q, "q_norm"), (k, "k_norm")))
        if repeat:
            k, v = (y.repeat_interleave(heads // o.heads_kv, 1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeat and heads != o.heads_kv)
        return F.linear(out.transpose(1, 2).reshape(batch, seq, -1), w["o"])

    def loss(p, tokens, targets, cosine, sine):
        x = F.embedding(tokens, p["embed"])
        for w in p["layers"]:
            x = x + attention(norm(x, w["input_norm"]), w, cosine, sine)
            y = norm(x, w["post_norm"])
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
        logits = F.linear(norm(x, p["norm"]), p["embed"])
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return loss


class TorchRun:
    """A model in PyTorch, and steps of it."""

    def __init__(self, torch, o, way, dtype, seq):
        torch.manual_seed(1)
        self.torch, self.device, self.rows = torch, o.device, max(1, o.tokens // seq) * seq
        self.p = parameters(torch, o)
        self.adam = torch.optim.AdamW(listed(self.p), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        angles = torch.outer(torch.arange(seq), 1e4 ** (-torch.arange(0, o.head_dim, 2) / o.head_dim)).to(o.device)
        self.angles = angles.cos(), angles.sin()
        self.tokens = torch.randint(o.vocab, (self.rows // seq, seq), device=o.device)
        self.bf16 = dtype == "bf16"
        loss = loss_of(torch, o, way == "repeat")
        self.loss = torch.compile(loss) if way == "compile" else loss
        if o.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(WARM_UP):
            self.step()

    def count(self):
        return sum(weight.numel() for weight in listed(self.p))

    def step(self):
        with self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.bf16):
            loss = self.loss(self.p, self.tokens, self.tokens, *self.angles)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(listed(self.p), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        loss.item()

    def speed(self, seconds):
        """Tokens per second of the median step."""
        times, begin = [], time.perf_counter()
        while len(times) < LEAST or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.step()
            if self.device == "cuda":
                self.torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return self.rows / statistics.median(times)

    def memory(self):
        """Bytes of a GPU's memory, at most."""
        return self.torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


# ----------------------------------------------------------------------------------------------------------------- comparison


def fattn_speed(o, dtype, seq):
    threads = ["--threads", o.threads] if o.device == "cpu" else []
    (result,) = bench.fattn("bench", "train", "--json", "--device", o.device, "--dtype", dtype, "--attention", "flash", "--seq", seq,
                            "--tokens", o.tokens, "--vocab", o.vocab, "--layers", o.layers, "--hidden", o.hidden, "--head-dim",
                            o.head_dim, "--heads-kv", o.heads_kv, "--ffn", o.ffn, "--seconds", o.seconds, *threads)
    return result


def compare(torch, o, dtype, seq):
    """A row of the table, and the ratio."""
    runs = {way: TorchRun(torch, o, way, dtype, seq) for way in o.torch}
    best, best_fattn = dict.fromkeys(runs, 0.0), None
    for round_number in range(o.rounds):
        result = fattn_speed(o, dtype, seq)
        speeds = {way: run.speed(o.seconds) for way, run in runs.items()}
        bench.note("%s, seq %d, round %d of %d: fattn %.0f tok/s, PyTorch %s" % (
            dtype, seq, round_number + 1, o.rounds, result["tokens_per_s"],
            ", ".join("%s %.0f" % (way, speed) for way, speed in speeds.items())))
        if best_fattn is None or result["tokens_per_s"] > best_fattn["tokens_per_s"]:
            best_fattn = result
        for way, run in runs.items():
            best[way] = max(best[way], speeds[way])
            if run.count() != result["parameters"]:
                sys.exit("the models differ: PyTorch's has %d parameters, fattn's %d" % (run.count(), result["parameters"]))
    ratio = best_fattn["tokens_per_s"] / max(best.values())
    memory = []
    if o.device == "cuda":
        memory = ["%.2f" % (bytes_ / 2**30) for bytes_ in [best_fattn["mem_bytes"]] + [run.memory() for run in runs.values()]]
    return [dtype, seq, result["batch"], "%.0f" % best_fattn["tokens_per_s"], *("%.0f" % best[way] for way in runs),
            "%.2f" % ratio, *memory], ratio


def main():
    o = read_options()
    if not importlib.util.find_spec("torch"):
        sys.exit("this comparison needs PyTorch, which is not installed for %s" % sys.executable)
    import torch
    torch.set_float32_matmul_precision("highest")
    if o.device == "cpu" and o.threads:
        torch.set_num_threads(o.threads)
    rows, least = [], None
    for dtype in o.dtype:
        for seq in o.seq:
            row, ratio = compare(torch, o, dtype, seq)
            rows.append(row)
            least = ratio if least is None else min(least, ratio)
    threads = ", %d threads" % torch.get_num_threads() if o.device == "cpu" else ""
    print("%s%s, PyTorch %s; %d layers of %d, heads of %d, %d for keys, ffn %d, vocabulary %d, %d tokens in a step\n" %
          (o.device, threads, torch.__version__, o.layers, o.hidden, o.head_dim, o.heads_kv, o.ffn, o.vocab, o.tokens))
    bench.table(["dtype", "seq", "batch", "fattn, tok/s", *("PyTorch %s, tok/s" % way for way in o.torch), "ratio",
                 *(["fattn, GiB", *("%s, GiB" % way for way in o.torch)] if o.device == "cuda" else [])], rows)
    print("\nthe least ratio is %.2f" % least)
    return 1 if least < o.least else 0


if __name__ == "__main__":
    sys.exit(main())
