#!/usr/bin/env python3
"""Writes the golden files of this folder from a real PyTorch (python3-torch).

  generate_goldens.py randn > randn_golden.txt
  generate_goldens.py lenet > lenet_golden.txt
  generate_goldens.py lenet_bn > lenet_bn_golden.txt

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
    """The synthetic batch, the same as in golden_test.cc: small integers over 64, exact in float32."""
    i = torch.arange(n * 784, dtype=torch.int64)
    pixels = ((i * i + 31 * i) % 127 - 40).to(torch.float32) / 64
    labels = (torch.arange(n) * 7 + 3) % 10
    return pixels.reshape(n, 1, 28, 28), labels


def initial(scale):
    """The parameters at `scale` times LeNet's initial ones, in float64, by name."""
    torch.manual_seed(0)
    params = {name: torch.randn(s) * 0.01 if name[0] == "W" else torch.zeros(s) for name, s in SHAPES}
    return {name: (p * scale).double().requires_grad_() for name, p in params.items()}


def forward(p, x, norm1, norm2):
    """Logits; norm1 and norm2 are applied before the convolutions' ReLUs."""
    h = F.avg_pool2d(F.relu(norm1(F.conv2d(x, p["W1"], p["b1"]))), 2, 2)
    h = F.avg_pool2d(F.relu(norm2(F.conv2d(h, p["W2"], p["b2"]))), 2, 2)
    h = F.relu(torch.mm(h.reshape(len(x), -1), p["W3"]) + p["b3"])
    return torch.mm(h, p["W4"]) + p["b4"]


def print_tensor(kind, name, tensor):
    """A line with the norm and 10 entries."""
    t = tensor.flatten()
    at = [i * (t.numel() - 1) // 9 for i in range(10)]
    print(kind, name, float(t.norm()).hex(), " ".join(f"{i} {float(t[i]).hex()}" for i in at))


def lenet(scale, n):
    """Loss sum, then each parameter's gradient; in float64 from float32 weights."""
    params = initial(scale)
    x, y = images(n)
    loss = F.cross_entropy(forward(params, x.double(), torch.nn.Identity(), torch.nn.Identity()), y, reduction="sum")
    loss.backward()
    print("batch", n, "weight_scale", scale, "loss", float(loss.detach()).hex())
    for name, p in params.items():
        print_tensor("gradient", name, p.grad)


def lenet_bn(scale, n):
    """The same with batch norm of weights 1/4 and biases 1, and the buffers; but for what later norms leave no gradient."""
    params = initial(scale)
    norms = [torch.nn.BatchNorm2d(20).double(), torch.nn.BatchNorm2d(50).double()]
    for norm in norms:
        torch.nn.init.constant_(norm.weight, 0.25)
        torch.nn.init.constant_(norm.bias, 1)
    x, y = images(n)
    loss = F.cross_entropy(forward(params, x.double(), *norms), y, reduction="sum")
    loss.backward()
    print("batch", n, "weight_scale", scale, "loss", float(loss.detach()).hex())
    for name in ("W1", "W2", "W3", "b3", "W4", "b4"):
        print_tensor("gradient", name, params[name].grad)
    for i, norm in enumerate(norms, start=1):
        for name, p in norm.named_parameters():
            if (i, name) != (1, "bias"):
                print_tensor("gradient", f"bn{i}.{name}", p.grad)
        for name in ("running_mean", "running_var"):
            print_tensor("buffer", f"bn{i}.{name}", getattr(norm, name))


if __name__ == "__main__":
    print("torch", torch.__version__)
    if sys.argv[1] == "randn":
        randn()
    elif sys.argv[1] == "lenet":
        lenet(1, 17)
        lenet(8, 17)
    else:
        lenet_bn(8, 17)
