#!/usr/bin/env python3
"""Training steps of `fattn bench train` beside PyTorch's, of the same model, on the CPU or a GPU.

    python3 bench/compare_torch_train.py [--seq 256,512,2048] [--dtype f32,bf16] [--threads 2] [--torch eager,repeat] ...
    python3 bench/compare_torch_train.py --device cuda --hidden 768 --layers 12 --head-dim 64 --heads-kv 12 --ffn 2048 --vocab 50304 \\
        --tokens 32768 --seq 1024 --dtype bf16 --torch compile

The model is the trainer's: a residual stream of blocks with RMS norm, norms of queries and keys, rotation, causal attention of
grouped heads, SwiGLU, tied embedding. A step is forward, backward, clipping to a norm of 1 and AdamW, of --tokens random tokens. In
bf16 PyTorch runs under autocast, with parameters in float, as the trainer does.

What PyTorch is asked for (--torch): `eager` has attention group the heads (enable_gqa), `repeat` repeats keys and values first, for which
it may have a faster kernel, and `compile` is torch.compile of `eager`. On a GPU its attention is cuDNN's or flash.

fattn and one PyTorch after the other take turns; a round's figure is that of its median step, and the best round counts. The ratio
is fattn's tokens per second to those of the fastest PyTorch. On a GPU memory is what fattn plans, products' room included, and the
most that PyTorch's allocator held in tensors; MFU is the share of what PyTorch's product of 8192 x 8192 reaches in bf16. Prints a
Markdown table, and exits 1 if a ratio is below --least. Needs PyTorch, of 2.5 or later. FATTN names the program.
"""
import argparse
import contextlib
import gc
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
        if o.device == "cuda":
            gc.collect()  # the run before
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        torch.manual_seed(1)
        self.torch, self.device, self.rows = torch, o.device, max(1, o.tokens // seq) * seq
        self.p = parameters(torch, o)
        self.adam = torch.optim.AdamW(listed(self.p), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        angles = torch.outer(torch.arange(seq), 1e4 ** (-torch.arange(0, o.head_dim, 2) / o.head_dim)).to(o.device)
        self.angles = angles.cos(), angles.sin()
        self.tokens = torch.randint(o.vocab, (self.rows // seq, seq), device=o.device)
        self.bf16 = dtype == "bf16"
        loss = loss_of(torch, o, way == "repeat")
        self.loss = loss
        if way == "compile":
            torch._dynamo.reset()  # else another length is compiled for any length
            self.loss = torch.compile(loss, dynamic=False)
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
        return self.torch.cuda.max_memory_allocated() - self.before


# ----------------------------------------------------------------------------------------------------------------- comparison


def fattn_speed(o, dtype, seq):
    threads = ["--threads", o.threads] if o.device == "cpu" else []
    (result,) = bench.fattn("bench", "train", "--json", "--device", o.device, "--dtype", dtype, "--attention", "flash", "--seq", seq,
                            "--tokens", o.tokens, "--vocab", o.vocab, "--layers", o.layers, "--hidden", o.hidden, "--head-dim",
                            o.head_dim, "--heads-kv", o.heads_kv, "--ffn", o.ffn, "--seconds", o.seconds, *threads)
    return result


def compare_with(torch, o, way, dtype, seq):
    """The best of fattn's results, and of PyTorch's speeds, taken in turns; PyTorch's memory."""
    run, best, best_fattn = TorchRun(torch, o, way, dtype, seq), 0.0, None
    for round_number in range(o.rounds):
        result, speed = fattn_speed(o, dtype, seq), run.speed(o.seconds)
        if run.count() != result["parameters"]:
            sys.exit("the models differ: PyTorch's has %d parameters, fattn's %d" % (run.count(), result["parameters"]))
        bench.note("%s, seq %d, round %d of %d: fattn %.0f tok/s, PyTorch %s %.0f" %
                   (dtype, seq, round_number + 1, o.rounds, result["tokens_per_s"], way, speed))
        best = max(best, speed)
        if best_fattn is None or result["tokens_per_s"] > best_fattn["tokens_per_s"]:
            best_fattn = result
    return best_fattn, best, run.memory() if o.device == "cuda" else 0


def product_peak(torch):
    """FLOP/s of a large product in bf16, the best of a few."""
    a, best = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16), float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * 8192**3 / best


def compare(torch, o, dtype, seq, peak):
    """A row of the table, and the ratio."""
    results = [compare_with(torch, o, way, dtype, seq) for way in o.torch]
    fattn = max((result for result, _, _ in results), key=lambda result: result["tokens_per_s"])
    speeds = [fattn["tokens_per_s"]] + [speed for _, speed, _ in results]
    ratio = speeds[0] / max(speeds[1:])
    row = [dtype, seq, fattn["batch"], *("%.0f" % speed for speed in speeds), "%.2f" % ratio]
    if o.device == "cuda":
        # The products' and, causal, half of attention's multiplications and additions, forward and backward.
        per_token = 6 * fattn["parameters"] + 6 * o.layers * seq * o.hidden
        row += ["%.1f %%" % (100 * speed * per_token / peak) for speed in speeds]
        row += ["%.2f" % (size / 2**30) for size in [fattn["mem_bytes"]] + [memory for _, _, memory in results]]
    return row, ratio


def attention_kernels(o):
    """PyTorch's choice of kernels: on a GPU, one of those that keep no matrix of scores."""
    if o.device == "cpu":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])


def main():
    o = read_options()
    if not importlib.util.find_spec("torch"):
        sys.exit("this comparison needs PyTorch, which is not installed for %s" % sys.executable)
    import torch
    torch.set_float32_matmul_precision("highest")  # as fattn
    if o.device == "cpu" and o.threads:
        torch.set_num_threads(o.threads)
    rows, least, peak = [], None, product_peak(torch) if o.device == "cuda" else 0
    with attention_kernels(o):
        for dtype in o.dtype:
            for seq in o.seq:
                row, ratio = compare(torch, o, dtype, seq, peak)
                rows.append(row)
                least = ratio if least is None else min(least, ratio)
    where = "CPU, %d threads" % torch.get_num_threads() if o.device == "cpu" else "%s, %.0f TFLOP/s" % (
        torch.cuda.get_device_name(), peak / 1e12)
    print("%s, PyTorch %s; %d layers of %d, heads of %d, %d for keys, ffn %d, vocabulary %d, %d tokens in a step\n" %
          (where, torch.__version__, o.layers, o.hidden, o.head_dim, o.heads_kv, o.ffn, o.vocab, o.tokens))
    who = ["fattn"] + ["PyTorch " + way for way in o.torch]
    bench.table(["dtype", "seq", "batch", *(name + ", tok/s" for name in who), "ratio",
                 *(name + what for what in (", MFU", ", GiB") if o.device == "cuda" for name in who)], rows)
    print("\nthe least ratio is %.2f" % least)
    return 1 if least < o.least else 0


if __name__ == "__main__":
    sys.exit(main())
