#!/usr/bin/env python3
"""Trains small models, exports them, and has engines that we did not write continue prompts: they choose the same tokens.

    python3 tests/interop/closed_loop.py FATTN [--engines transformers,llama.cpp] [--steps 150]

FATTN is the program. An engine that is not installed is skipped, with the reason. Both attention paths of the program are
compared with each engine on weights of f32 and bf16: the prompt's tokens, each engine reading the text by the tokenizer that
was exported, and then 60 tokens. Where two engines choose differently, the largest two logits have to be closer than BOUNDS says: a
tie within rounding, which is printed; the engine then goes on from fattn's token. Nine of ten tokens have to be the same
nevertheless. The last line counts what was compared.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from engines import Fattn, Llama, Transformers, follow

TOKENS = 60
PROMPTS = ["12+30=", "The ", "A cat and", "\n", "If it rains, the", "na\u00efve \u4e16\u754c, 1234 & it's"]
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
# Tied and untied, grouped heads, both head dims that models of this size have; tokens of bytes, and of byte-pair encoding as
# Qwen and Llama 3 have it.
MODELS = {
    "tied, dim 32": "--tied --hidden 128 --layers 3 --heads 4 --heads-kv 2 --head-dim 32 --ffn 256 --flash",
    "untied, dim 64": "--untied --hidden 96 --layers 2 --heads 6 --heads-kv 2 --head-dim 64 --ffn 160",
    "untied, dim 32, Qwen's BPE": "--untied --hidden 96 --layers 2 --heads 4 --heads-kv 1 --head-dim 32 --ffn 160 --flash "
                                  "--tokenizer %s" % (GOLDEN / "tokenizer_qwen.json"),
    "tied, dim 64, Llama 3's BPE": "--tied --hidden 64 --layers 2 --heads 2 --heads-kv 2 --head-dim 64 --ffn 128 "
                                   "--tokenizer %s" % (GOLDEN / "tokenizer_llama3.json"),
}
# How close two logits must be for a different choice to be a tie, and how far gaps may differ. llama.cpp rounds what it
# multiplies with weights of bf16 to bf16 too; everything else here computes in f32.
BOUNDS = {("transformers", "f32"): 1e-4, ("transformers", "bf16"): 1e-4, ("llama.cpp", "f32"): 1e-4, ("llama.cpp", "bf16"): 0.1}


class Count:
    passed = failed = skipped = 0

    def check(self, what, good, detail=""):
        self.passed += bool(good)
        self.failed += not good
        print("%s  %s%s" % ("ok  " if good else "FAIL", what, "; " + detail if detail else ""), flush=True)

    def skip(self, what, why):
        self.skipped += 1
        print("skip  %s: %s" % (what, why), flush=True)


class Comparison:
    """Of two engines' answers to all prompts."""

    def __init__(self, bound):
        self.bound = bound
        self.tokens, self.wanted, self.ties, self.wrong = 0, 0, [], []
        self.smallest, self.difference = float("inf"), 0.0

    def add(self, prompt, our_answer, their_answer):
        (our_prompt, ours), (their_prompt, theirs) = our_answer, their_answer
        self.wanted += TOKENS
        if our_prompt != their_prompt:
            self.wrong.append("%r is %s and %s" % (prompt, our_prompt, their_prompt))
        if len(ours) != TOKENS or len(theirs) != TOKENS:
            self.wrong.append("%r: %d tokens and %d, not %d" % (prompt, len(ours), len(theirs), TOKENS))
        for at, ((a, gap_a), (b, gap_b)) in enumerate(zip(ours, theirs)):
            self.smallest = min(self.smallest, gap_a, gap_b)
            if a == b:
                self.tokens += 1
                self.difference = max(self.difference, abs(gap_a - gap_b))
                continue
            where = "%r, token %d: %d and %d, gaps %.2g and %.2g" % (prompt, at, a, b, gap_a, gap_b)
            (self.ties if max(gap_a, gap_b) < self.bound else self.wrong).append(where)

    def report(self, count, what):
        detail = "%d tokens the same, smallest gap %.2g, gaps differ by at most %.1g" % (
            self.tokens, self.smallest, self.difference)
        for tie in self.ties:
            detail += "\n      a tie within %g: %s" % (self.bound, tie)
        for wrong in self.wrong:
            detail += "\n      %s" % wrong
        good = not self.wrong and self.tokens >= 0.9 * self.wanted and self.difference < self.bound
        count.check(what, good, detail)


def run(*command):
    """Standard output; a failure ends the script with what the program said."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit("%s: exit code %d\n%s" % (" ".join(command), result.returncode, result.stderr))
    return result.stdout


def export(program, model, kind, dtype, out):
    run(program, "export", "--model", model, "--format", kind, "--dtype", dtype, "--out", out)
    return out


def answers(engine):
    return [engine.complete(prompt, TOKENS) for prompt in PROMPTS]


def compare(count, what, bound, ours, theirs):
    comparison = Comparison(bound)
    for prompt, a, b in zip(PROMPTS, ours, theirs):
        comparison.add(prompt, a, b)
    comparison.report(count, what)


def all_logits(program, model):
    """Every logit of every token of one answer."""
    engine = Fattn(program, model)
    engine.complete(PROMPTS[0], TOKENS, top=1000000)
    return engine.logits


def loop(count, program, engines, folder, name, options, steps):
    """One model: out to both formats in both types, and compared."""
    trained = os.path.join(folder, "run")
    run(program, "train", *options.split(), "--data", "world", "--steps", str(steps), "--seq", "128", "--batch", "8",
        "--eval-every", "0", "--warmup", "20", "--lr", "0.003", "--out", trained)
    for dtype in "f32", "bf16":
        # The GGUF file is made from the folder, so that all engines have the same numbers: norms, which stay f32 in GGUF,
        # were rounded with the rest.
        places = {"transformers": export(program, trained, "hf", dtype, os.path.join(folder, "hf-" + dtype))}
        places["llama.cpp"] = export(program, places["transformers"], "gguf", dtype, os.path.join(folder, dtype + ".gguf"))
        if dtype == "f32":
            same = all_logits(program, trained) == all_logits(program, places["transformers"])
            count.check("%s, f32: the export read again gives the checkpoint's logits, bit for bit" % name, same)
        ours = {path: answers(Fattn(program, places["transformers"], "--attention", path)) for path in ("flash", "composed")}
        for engine in engines:
            with contextlib.closing(engine(places[engine.name])) as opened:
                for path, tokens in ours.items():
                    compare(count, "%s, %s: %s and fattn --attention %s" % (name, dtype, engine.name, path),
                            BOUNDS[engine.name, dtype], tokens,
                            [follow(opened, prompt, lead, TOKENS) for prompt, lead in zip(PROMPTS, tokens)])


def tokenizers(count, program):
    """Random texts beside Python's `tokenizers`."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.py")
    result = subprocess.run([sys.executable, script], env={**os.environ, "FATTN": program}, stdout=subprocess.PIPE, text=True)
    if result.returncode == 0 and "no package" in result.stdout:
        count.skip("random texts", result.stdout.strip())
    else:
        count.check("random texts have the tokens of Python's tokenizers", result.returncode == 0, result.stdout.strip())


def fine_tune(count, program, folder):
    """A run that begins with an export begins with its loss."""
    exported = os.path.join(folder, "hf-f32")
    measured = json.loads(run(program, "eval", "--model", exported, "--data", "world", "--seq", "64", "--batch", "8", "--json"))
    log = os.path.join(folder, "log")
    run(program, "train", "--init", exported, "--data", "world", "--seq", "64", "--batch", "8", "--steps", "1", "--lr", "0",
        "--min-lr", "0", "--warmup", "0", "--eval-every", "1", "--log", log)
    with open(log, encoding="utf-8") as file:
        began = json.loads(file.read().splitlines()[-1])["val_loss"]
    count.check("train --init: validation loss before the first update is that of eval", began == measured["loss"],
                "%.9g and %.9g" % (began, measured["loss"]))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--engines", default="transformers,llama.cpp")
    parser.add_argument("--steps", type=int, default=150)
    return parser.parse_args()


def main():
    given = arguments()
    count = Count()
    engines = []
    for engine in Transformers, Llama:
        if engine.name not in given.engines.split(","):
            continue
        why = engine.missing()
        if why:
            count.skip(engine.name, why)
        else:
            engines.append(engine)
    with tempfile.TemporaryDirectory() as base:
        for number, (name, options) in enumerate(MODELS.items()):
            folder = os.path.join(base, str(number))
            os.mkdir(folder)
            loop(count, given.program, engines, folder, name, options, given.steps)
        fine_tune(count, given.program, os.path.join(base, "1"))
        tokenizers(count, given.program)
        if Transformers in engines:
            import foreign
            foreign.check(count, given.program, base, Comparison)
    print("%d passed, %d failed, %d skipped" % (count.passed, count.failed, count.skipped))
    return count.failed > 0 or count.passed == 0


if __name__ == "__main__":
    sys.exit(main())
