#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets from what the program itself writes: a small checkpoint, configurations, a world.

    python3 tests/fuzz/seeds.py FATTN FOLDER

FATTN is the program; FOLDER gets a folder of files for each target. The corpora in tests/fuzz/corpus/ were grown from these and
minimised by `make fuzz-merge`; nothing needs the seeds again, except a corpus that starts anew.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

SHAPE = {"hidden": 2, "layers": 1, "heads": 1, "heads-kv": 1, "head-dim": 2, "ffn": 2, "seq": 8, "batch": 2, "steps": 1}


def run(program, *arguments):
    return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def checkpoint(program, folder, tied):
    """The three files of a run of one step on three tokens."""
    data = os.path.join(folder, "tokens.bin")
    with open(data, "wb") as file:
        file.write(struct.pack("<200H", *(i * i % 3 for i in range(200))))
    out = os.path.join(folder, "run")
    options = [word for name, value in SHAPE.items() for word in ("--" + name, str(value))]
    run(program, "train", "--data", data, "--out", out, "--tied" if tied else "--untied", *options)
    return [read(out, name) for name in ("state.json", "model.safetensors", "optimizer.safetensors")]


def hf_folders(program, folder):
    """Exports of the run that checkpoint() left there, as one file and as an index with a part, and lists of checksums."""
    out = os.path.join(folder, "hf")
    run(program, "export", "--model", os.path.join(folder, "run"), "--format", "hf", "--dtype", "bf16", "--out", out)
    config, weights = (read(out, name) for name in ("config.json", "model.safetensors"))
    size = struct.unpack("<Q", weights[:8])[0]
    names = [name for name in json.loads(weights[8:8 + size]) if name != "__metadata__"]
    index = json.dumps({"weight_map": {name: "part.safetensors" for name in names}}).encode()
    old = json.dumps({"model_type": "qwen3", "vocab_size": 3, "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1,
                      "num_attention_heads": 1, "head_dim": 2, "rope_theta": 1e4, "eos_token_id": [1, 2]}).encode()
    pack = [(1, config, read(out, "SHA256SUMS"), weights), (0, config, index, weights), (0, old, index, weights),
            (1, config.replace(b"full_attention", b"sliding_attention").replace(b'window": false', b'window": true'), b"", weights)]
    return [bytes([kind]) + struct.pack("<H", len(a)) + a + struct.pack("<H", len(b)) + b + c for kind, a, b, c in pack]


def front(state):
    """state.json without the checksum at its end."""
    return state[:state.rindex(b',\n"sha256":"')]


def safetensors(entries, metadata=None):
    """A file of small tensors: (name, dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, content in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensors():
    return [safetensors([]), safetensors([], {"format": "pt"}),
            safetensors([("a", "F32", [2, 3], bytes(24)), ("b", "U8", [3], b"abc")], {"step": "1"}),
            safetensors([("x", "F64", [], bytes(8)), ("y", "I64", [0, 5], b""), ("z", "I32", [1] * 7 + [2], bytes(8))])]


def configurations(program):
    flat = {"hidden": 8, "lr": 1e-3, "tied": True, "data": "a \"b\" \u00e9 \U0001f600", "clip": 1e300, "seed": 9007199254740993}
    return [run(program, "train", "--print-config"), run(program, "train", "--print-config", "--preset", "small"),
            json.dumps(flat).encode(), b"{}", b'{"a":null}', b'{"a":{}}', b'{"a":1,"a":2}', b'{"attention":"window:8"}']


def tokens(text):
    header = struct.pack("<3i", 20240520, 1, 40) + bytes(1012)
    options = bytes([0, 7, 1, 5, 0, 0])
    return [options + struct.pack("<60H", *range(60)), options + header + struct.pack("<40H", *range(40)),
            bytes([1, 3, 2, 5, 0, 1]) + text[:300], bytes([2, 5, 0, 1, 1, 2, 40]) + text[:40] + bytes([0]) + text[40:200]]


def texts(text):
    return [text[:100], "a\u00e9\u4e2d\U0001f600\"\\\n\t\x7f".encode(), bytes(range(256)),
            b"\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80\xe4\xb8"]


def write(folder, target, files):
    where = os.path.join(folder, target)
    os.makedirs(where, exist_ok=True)
    for i, content in enumerate(files):
        with open(os.path.join(where, "seed%d" % i), "wb") as file:
            file.write(content)


def tokenizers():
    """Small files of byte-level BPE, each with a text before it."""
    letters = [b for b in range(256) if 0x21 <= b <= 0x7E or b >= 0xA1 and b != 0xAD]
    rest = [b for b in range(256) if b not in letters]
    vocab = {chr(b if b in letters else 256 + rest.index(b)): b for b in range(256)}
    vocab |= {"th": 256, "the": 257, "Ġt": 258}
    newer = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": newer}, "behavior": "Isolated", "invert": False}
    added = {"id": 259, "content": "<e>", "special": True, "lstrip": True, "rstrip": True, "normalized": False}
    plain = {"added_tokens": [added], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
             "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": vocab, "merges": ["t h", "th e", "Ġ t"], "ignore_merges": True}}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<e>"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"<e>": {"ids": [259]}}}
    other = dict(plain, normalizer={"type": "NFC"}, post_processor=template,
                 added_tokens=[dict(added, normalized=True, special=False, single_word=True)],
                 pre_tokenizer={"type": "Sequence", "pretokenizers": [split, dict(byte_level, use_regex=False)]},
                 model=dict(plain["model"], merges=[["t", "h"]], ignore_merges=False))
    text = "the  <e> 12 it's e\u0301\r\n".encode()
    return [bytes([len(text)]) + text + json.dumps(file, ensure_ascii=False, separators=(",", ":")).encode()
            for file in (plain, other)]


def main():
    program, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    text = run(program, "world", "--lines", "20")
    with tempfile.TemporaryDirectory() as tied, tempfile.TemporaryDirectory() as untied:
        runs = [checkpoint(program, tied, True), checkpoint(program, untied, False)]
        folders = hf_folders(program, tied) + hf_folders(program, untied)
    write(folder, "safetensors", tensors() + [run_[1] for run_ in runs])
    write(folder, "config", configurations(program))
    write(folder, "settings", configurations(program))
    write(folder, "state", [part for run_ in runs for part in (run_[0], front(run_[0]))])
    write(folder, "checkpoint", [struct.pack("<H", len(front(s))) + front(s) + struct.pack("<H", len(m)) + m + o
                                 for s, m, o in runs])
    write(folder, "tokens", tokens(text))
    write(folder, "text", texts(text))
    write(folder, "tokenizer", tokenizers())
    write(folder, "hf", folders)
    for target in "api", "merge", "cache":
        write(folder, target, [bytes([i]) * (8 + 16 * i) for i in range(12)])


if __name__ == "__main__":
    sys.exit(main())
