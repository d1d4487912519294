#!/usr/bin/env python3
"""Writes tests/golden/attention.safetensors: attention and its gradients in double, by PyTorch's autograd.

Needs torch, numpy and safetensors. For every case n:

    n.problem  I64 [11]  batch heads_q heads_kv seq_q seq_k dim dim_v mask align window_left window_right (fattn.h's numbers)
    n.scale    F64 [1]   0: 1/sqrt(dim)
    n.q n.k n.v n.dout   inputs, F64, values that a float holds exactly
    n.out n.lse n.dq n.dk n.dv
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FULL, CAUSAL, WINDOW = 0, 1, 2
TOP, BOTTOM = 0, 1

#        batch hq hkv  sq  sk  dim dimv mask    align   left right scale
CASES = [
    (2, 4, 4, 13, 13, 8, 8, FULL, TOP, 0, 0, 0.0),
    (2, 4, 2, 17, 17, 16, 16, CAUSAL, TOP, 0, 0, 0.0),
    (2, 6, 2, 9, 21, 8, 8, CAUSAL, BOTTOM, 0, 0, 0.0),
    (2, 2, 1, 9, 21, 8, 8, CAUSAL, TOP, 0, 0, 0.0),
    (1, 2, 2, 11, 7, 8, 8, CAUSAL, BOTTOM, 0, 0, 0.0),  # the first four rows keep no key
    (2, 4, 2, 19, 19, 8, 12, WINDOW, TOP, 4, 2, 0.0),
    (2, 4, 1, 14, 23, 8, 8, WINDOW, BOTTOM, 5, 0, 0.3),
    (1, 3, 3, 10, 10, 20, 5, FULL, TOP, 0, 0, -0.2),
    (2, 2, 1, 40, 40, 32, 32, CAUSAL, TOP, 0, 0, 0.0),
    (1, 2, 2, 12, 12, 8, 8, WINDOW, TOP, -1, 3, 0.0),
]


def kept(sq, sk, mask, align, left, right):
    """[sq, sk], true where row i keeps key j."""
    i = torch.arange(sq)[:, None] + (sk - sq if align == BOTTOM else 0)
    j = torch.arange(sk)[None, :]
    keep = torch.ones(sq, sk, dtype=torch.bool)
    if mask == CAUSAL:
        keep &= j <= i
    if mask == WINDOW and left >= 0:
        keep &= j >= i - left
    if mask == WINDOW and right >= 0:
        keep &= j <= i + right
    return keep


def attention(q, k, v, keep, scale):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    some = keep.any(-1, keepdim=True)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~(keep | ~some), -torch.inf)
    out = (scores.softmax(-1) @ v) * some
    lse = scores.logsumexp(-1).masked_fill(~some[:, 0], -torch.inf)
    if some.all():  # PyTorch's own
        assert torch.allclose(out, F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=scale), rtol=0, atol=1e-13)
    return out, lse


def main():
    generator = torch.Generator().manual_seed(20240607)
    tensors = {}
    for n, (b, hq, hkv, sq, sk, d, dv, mask, align, left, right, scale) in enumerate(CASES):
        def normal(*shape):
            return torch.randn(*shape, generator=generator).double()

        q, k, v = (x.requires_grad_() for x in (normal(b, hq, sq, d), normal(b, hkv, sk, d), normal(b, hkv, sk, dv)))
        dout = normal(b, hq, sq, dv)
        keep = kept(sq, sk, mask, align, left, right)
        out, lse = attention(q, k, v, keep, scale or d**-0.5)
        out.backward(dout)
        case = {"q": q, "k": k, "v": v, "dout": dout, "out": out, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}
        case["problem"] = torch.tensor([b, hq, hkv, sq, sk, d, dv, mask, align, left, right])
        case["scale"] = torch.tensor([scale], dtype=torch.float64)
        tensors |= {f"{n}.{name}": x.detach().contiguous() for name, x in case.items()}
    path = pathlib.Path(__file__).parent.parent / "tests/golden/attention.safetensors"
    save_file(tensors, path)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
