#!/usr/bin/env python3
"""Writes tests/golden/model_{tied,untied}.safetensors: logits, loss and all gradients of a tiny model, in double.

Needs torch, numpy and safetensors. The model is written here a second time, from the formulas of train/model.h and without
a look at the C code, in plain PyTorch with autograd. In each file:

    config     I64 [8]   vocab hidden layers heads heads_kv head_dim ffn max_seq;  rope_theta 10000, rms_eps 1e-6
    tokens     I64 [batch, seq];  targets I64 [batch, seq], some of them -1
    logits     F64 [batch, seq, vocab];  loss F64 [1]
    NAME       F32, the parameters;  grad.NAME F64, their gradients
"""
import pathlib

import torch
from safetensors.torch import save_file

VOCAB, HIDDEN, LAYERS, HEADS, HEADS_KV, DIM, FFN, MAX_SEQ = 29, 24, 2, 4, 2, 10, 40, 32
BATCH, SEQ, THETA, EPS = 3, 14, 10000.0, 1e-6


def make_parameters(tied, generator):
    def matrix(rows, cols):
        return torch.randn(rows, cols, generator=generator) * 0.3

    def vector(n):
        return 1 + 0.2 * torch.randn(n, generator=generator)

    p = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        p[layer + "input_layernorm.weight"] = vector(HIDDEN)
        p[layer + "self_attn.q_proj.weight"] = matrix(HEADS * DIM, HIDDEN)
        p[layer + "self_attn.k_proj.weight"] = matrix(HEADS_KV * DIM, HIDDEN)
        p[layer + "self_attn.v_proj.weight"] = matrix(HEADS_KV * DIM, HIDDEN)
        p[layer + "self_attn.q_norm.weight"] = vector(DIM)
        p[layer + "self_attn.k_norm.weight"] = vector(DIM)
        p[layer + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * DIM)
        p[layer + "post_attention_layernorm.weight"] = vector(HIDDEN)
        p[layer + "mlp.gate_proj.weight"] = matrix(FFN, HIDDEN)
        p[layer + "mlp.up_proj.weight"] = matrix(FFN, HIDDEN)
        p[layer + "mlp.down_proj.weight"] = matrix(HIDDEN, FFN)
    p["model.norm.weight"] = vector(HIDDEN)
    if not tied:
        p["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return p


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x):
    """Half rotation; x [batch, heads, seq, dim]."""
    frequency = THETA ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequency
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def attention(p, layer, x):
    def heads(name, count):
        return (x @ p[layer + name].T).view(BATCH, SEQ, count, DIM).transpose(1, 2)

    q = rotate(rms_norm(heads("q_proj.weight", HEADS), p[layer + "q_norm.weight"]))
    k = rotate(rms_norm(heads("k_proj.weight", HEADS_KV), p[layer + "k_norm.weight"]))
    v = heads("v_proj.weight", HEADS_KV)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(BATCH, SEQ, HEADS * DIM) @ p[layer + "o_proj.weight"].T


def mlp(p, layer, x):
    gate, up = x @ p[layer + "gate_proj.weight"].T, x @ p[layer + "up_proj.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ p[layer + "down_proj.weight"].T


def model(p, tokens):
    x = p["model.embed_tokens.weight"][tokens]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        x = x + attention(p, layer + "self_attn.", rms_norm(x, p[layer + "input_layernorm.weight"]))
        x = x + mlp(p, layer + "mlp.", rms_norm(x, p[layer + "post_attention_layernorm.weight"]))
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return rms_norm(x, p["model.norm.weight"]) @ head.T


def main():
    for tied in (True, False):
        generator = torch.Generator().manual_seed(7 + tied)
        floats = make_parameters(tied, generator)
        p = {name: x.double().requires_grad_() for name, x in floats.items()}
        tokens = torch.randint(VOCAB, (BATCH, SEQ), generator=generator)
        targets = torch.randint(VOCAB, (BATCH, SEQ), generator=generator)
        targets[torch.rand(BATCH, SEQ, generator=generator) < 0.2] = -1
        logits = model(p, tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        tensors = {"config": torch.tensor([VOCAB, HIDDEN, LAYERS, HEADS, HEADS_KV, DIM, FFN, MAX_SEQ]), "tokens": tokens,
                   "targets": targets, "logits": logits.detach(), "loss": loss.detach()[None]}
        tensors |= floats | {"grad." + name: x.grad for name, x in p.items()}
        path = pathlib.Path(__file__).parent.parent / f"tests/golden/model_{'tied' if tied else 'untied'}.safetensors"
        save_file(tensors, path)
        print(path, path.stat().st_size, loss.item())


if __name__ == "__main__":
    main()
