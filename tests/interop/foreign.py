"""Models that transformers makes, and windows: what the program reads of them, and what it refuses."""
import json
import os
import subprocess

from engines import Fattn, Transformers, follow

PROMPTS = [[1, 2, 3], [200, 7], [5] * 20]
SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "initializer_range": 0.2,
         "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 123456.0}}
# What transformers is asked to save, and how.
SAVED = {
    "f32, tied": ({"tie_word_embeddings": True}, "float32", {}),
    "bf16, untied": ({"tie_word_embeddings": False}, "bfloat16", {}),
    "f16, untied, in shards": ({"tie_word_embeddings": False}, "float16", {"max_shard_size": "60KB"}),
    "f32, a window of 12 in every layer":
        ({"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 0}, "float32", {}),
}


def make(folder, fields, dtype, how):
    import torch
    import transformers
    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, **fields))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("norm.weight"):
                tensor.add_(torch.randn_like(tensor) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, **how)


def logit_error(ours, theirs):
    """The largest difference of two logits, as a part of the largest logit."""
    pairs = [(logit, row[token]) for tops, row in zip(ours, theirs) for token, logit in tops]
    return max(abs(a - b) for a, b in pairs) / max(abs(b) for _, b in pairs)


def read_models(count, program, base, comparison):
    for number, (name, (fields, dtype, how)) in enumerate(SAVED.items()):
        folder = os.path.join(base, "saved%d" % number)
        make(folder, fields, dtype, how)
        if how and not os.path.exists(os.path.join(folder, "model.safetensors.index.json")):
            count.check("%s: transformers wrote shards" % name, False)
        theirs = Transformers(folder)
        found = comparison(1e-4)
        ours, worst = Fattn(program, folder), 0.0
        for prompt in PROMPTS:
            answer = ours.complete(prompt, 60, top=1000000)
            found.add(prompt, answer, follow(theirs, prompt, answer, 60))
            worst = max(worst, logit_error(ours.logits, theirs.logits))
        found.report(count, "saved by transformers: %s" % name)
        count.check("saved by transformers: %s: every logit within 1e-5 of the largest" % name, worst < 1e-5, "%.2g" % worst)


def windows(count, program, base, comparison):
    """Trained with a window: transformers is told so; llama.cpp's qwen3 has none."""
    trained, exported = os.path.join(base, "window"), os.path.join(base, "window-hf")
    subprocess.run([program, "train", "--data", "world", "--attention", "window:12", "--steps", "60", "--seq", "96",
                    "--hidden", "64", "--layers", "2", "--eval-every", "0", "--out", trained], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([program, "export", "--model", trained, "--format", "hf", "--out", exported], check=True,
                   stdout=subprocess.DEVNULL)
    theirs = Transformers(exported)
    found = comparison(1e-4)
    for prompt in "12+30=", "The cat and the dog and the":
        answer = Fattn(program, exported).complete(prompt, 60)
        found.add(prompt, answer, follow(theirs, prompt, answer, 60))
    found.report(count, "trained with a window of 12, exported to transformers")
    command = [program, "export", "--model", trained, "--format", "gguf", "--out", os.path.join(base, "w.gguf")]
    refused = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    good = refused.returncode == 2 and "window of 12" in refused.stderr
    count.check("a window is refused for GGUF", good, refused.stderr.strip())


def byte_tokens(count, base):
    """The bytes as transformers reads them."""
    import transformers
    words = transformers.AutoTokenizer.from_pretrained(os.path.join(base, "0", "hf-f32"))
    text = "h\u00e9llo \u4e16\u754c \U0001f600\n\t12+30=\x00\x7f"
    ids = words(text).input_ids
    count.check("tokenizer.json: token N is byte N", ids == list(text.encode()) and words.decode(ids) == text)
    framed = (words.bos_token_id, words.eos_token_id, len(words)) == (256, 257, 258)
    count.check("tokenizer.json: the tokens that frame a text", framed)


def configurations(count, base):
    """config.json says all that transformers would have said itself."""
    import transformers
    with open(os.path.join(base, "0", "hf-f32", "config.json"), encoding="utf-8") as file:
        ours = json.load(file)
    theirs = json.loads(transformers.Qwen3Config(**ours).to_json_string(use_diff=False))
    missing = [key for key in json.loads(transformers.Qwen3Config().to_json_string())
               if key not in ours and key not in ("transformers_version", "pad_token_id")]
    count.check("config.json has every key", not missing, ", ".join(missing))
    older = ("rope_scaling", "rope_theta", "torch_dtype")
    same = all(theirs.get(key) == value for key, value in ours.items() if key not in older)
    count.check("config.json means what it says", same and theirs["rope_parameters"]["rope_theta"] == ours["rope_theta"])


def check(count, program, base, comparison):
    byte_tokens(count, base)
    configurations(count, base)
    read_models(count, program, base, comparison)
    windows(count, program, base, comparison)
