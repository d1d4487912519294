#!/usr/bin/env python3
"""Writes tests/golden/adamw.safetensors: 20 steps of torch.optim.AdamW with clipping, in double.

Needs torch, numpy and safetensors. The parameters are those of a very small model (config as in golden_model.py); matrices
decay, vectors do not. lr F64 [steps]; norm F64 [steps] before clipping; start.NAME F32; grad.NAME F32 [steps, ...];
after.NAME F64 [steps, ...]; options F64 [5] beta1 beta2 eps weight_decay clip.
"""
import pathlib

import torch
from safetensors.torch import save_file

VOCAB, HIDDEN, LAYERS, HEADS, HEADS_KV, DIM, FFN, MAX_SEQ = 5, 4, 1, 2, 1, 4, 6, 8
STEPS, BETA1, BETA2, EPS, DECAY, CLIP = 20, 0.9, 0.95, 1e-3, 0.1, 1.0  # an eps that can be seen
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    LAYER + "input_layernorm.weight": (HIDDEN,),
    LAYER + "self_attn.q_proj.weight": (HEADS * DIM, HIDDEN),
    LAYER + "self_attn.k_proj.weight": (HEADS_KV * DIM, HIDDEN),
    LAYER + "self_attn.v_proj.weight": (HEADS_KV * DIM, HIDDEN),
    LAYER + "self_attn.q_norm.weight": (DIM,),
    LAYER + "self_attn.k_norm.weight": (DIM,),
    LAYER + "self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
    LAYER + "post_attention_layernorm.weight": (HIDDEN,),
    LAYER + "mlp.gate_proj.weight": (FFN, HIDDEN),
    LAYER + "mlp.up_proj.weight": (FFN, HIDDEN),
    LAYER + "mlp.down_proj.weight": (HIDDEN, FFN),
    "model.norm.weight": (HIDDEN,),
}


def main():
    generator = torch.Generator().manual_seed(3)
    start = {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}
    # Norms from 0.15 to 3, so that some steps are clipped and some are not.
    sizes = [0.01 * (1 + step % 5) ** 2 for step in range(STEPS)]
    grads = {name: torch.stack([torch.randn(*shape, generator=generator) * size for size in sizes])
             for name, shape in SHAPES.items()}
    p = {name: torch.nn.Parameter(x.double()) for name, x in start.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [x for x in p.values() if x.ndim >= 2], "weight_decay": DECAY},
         {"params": [x for x in p.values() if x.ndim < 2], "weight_decay": 0.0}],
        betas=(BETA1, BETA2), eps=EPS)
    lrs, norms, after = [], [], {name: [] for name in p}
    for step in range(STEPS):
        lr = 0.02 * (step + 1) / STEPS
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, x in p.items():
            x.grad = grads[name][step].double()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        lrs.append(lr)
        optimizer.step()
        for name, x in p.items():
            after[name].append(x.detach().clone())
    tensors = {"config": torch.tensor([VOCAB, HIDDEN, LAYERS, HEADS, HEADS_KV, DIM, FFN, MAX_SEQ]),
               "lr": torch.tensor(lrs, dtype=torch.float64), "norm": torch.tensor(norms, dtype=torch.float64),
               "options": torch.tensor([BETA1, BETA2, EPS, DECAY, CLIP], dtype=torch.float64)}
    for name in p:
        tensors |= {"start." + name: start[name], "grad." + name: grads[name], "after." + name: torch.stack(after[name])}
    path = pathlib.Path(__file__).parent.parent / "tests/golden/adamw.safetensors"
    save_file(tensors, path)
    print(path, path.stat().st_size, f"norms {min(norms):.2f} .. {max(norms):.2f}")


if __name__ == "__main__":
    main()
