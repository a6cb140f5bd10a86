#!/usr/bin/env python3
"""Writes the golden files of this folder from a real PyTorch (python3-torch).

  generate_goldens.py randn > randn_golden.txt
  generate_goldens.py lenet > lenet_golden.txt

Floats are hexadecimal, so that they are exact.
"""
import sys

import torch
import torch.nn.functional as F

SHAPES = [("W1", (20, 1, 3, 3)), ("b1", (20,)), ("W2", (50, 20, 5, 5)), ("b2", (50,)),
          ("W3", (800, 128)), ("b3", (128,)), ("W4", (128, 10)), ("b4", (10,))]


def hexes(values):
    return " ".join(float(v).hex() for v in values)


def randn():
    """Lines: seed, then for each draw after manual_seed(seed): size, first and last 20 numbers."""
    for seed in (0, 1, 2**32 + 5):
        torch.manual_seed(seed)
        print("seed", seed)
        for size in (180, 25000, 102400, 1280, 1, 2, 15, 16, 17, 3, 31, 33):
            x = torch.randn(size).flatten().tolist()
            print("draw", size, hexes(x[:20]), hexes(x[-20:]))


def images(n):
    """The synthetic batch, the same as in lenet_test.cc: small integers over 64, exact in float32."""
    i = torch.arange(n * 784, dtype=torch.int64)
    pixels = ((i * i + 31 * i) % 127 - 40).to(torch.float32) / 64
    labels = (torch.arange(n) * 7 + 3) % 10
    return pixels.reshape(n, 1, 28, 28), labels


def lenet(scale, n):
    """Loss sum, then for each parameter the norm, and 16 entries, of its gradient; in float64 from float32 weights."""
    torch.manual_seed(0)
    params = [torch.randn(s) * 0.01 if name[0] == "W" else torch.zeros(s) for name, s in SHAPES]
    params = [(p * scale).double().requires_grad_() for p in params]
    x, y = images(n)
    h = F.avg_pool2d(F.relu(F.conv2d(x.double(), params[0], params[1])), 2, 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, params[2], params[3])), 2, 2)
    h = F.relu(torch.mm(h.reshape(n, -1), params[4]) + params[5])
    logits = torch.mm(h, params[6]) + params[7]
    loss = F.cross_entropy(logits, y, reduction="sum")
    loss.backward()
    print("batch", n, "weight_scale", scale, "loss", float(loss.detach()).hex())
    for (name, _), p in zip(SHAPES, params):
        g = p.grad.flatten()
        at = [i * (g.numel() - 1) // 9 for i in range(10)]
        print("gradient", name, float(g.norm()).hex(), " ".join(f"{i} {float(g[i]).hex()}" for i in at))


if __name__ == "__main__":
    print("torch", torch.__version__)
    if sys.argv[1] == "randn":
        randn()
    else:
        lenet(1, 17)
        lenet(8, 17)
