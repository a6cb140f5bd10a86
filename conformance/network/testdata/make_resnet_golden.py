#!/usr/bin/env python3
"""Writes resnet_golden.txt from a real PyTorch (python3-torch): make_resnet_golden.py > resnet_golden.txt

ResNet-18 as the d2l chapter has it, in float64, on the float32 parameters, running statistics and batch of
network_run.cc, which are computed here once more. Floats are hexadecimal, so that they are exact.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIDE, SAMPLES = 10, 8


class Residual(nn.Module):
    """The block of the book."""

    def __init__(self, cin, cout, use_1x1conv=False, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, kernel_size=3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(cout, cout, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(cin, cout, kernel_size=1, stride=stride) if use_1x1conv else None
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.conv3 is None else self.conv3(x)))


def resnet18():
    net = nn.Sequential(nn.Conv2d(1, 64, kernel_size=3, stride=1, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    cin = 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        first = Residual(cin, cout) if cin == cout else Residual(cin, cout, True, 2)
        net.add_module(f"resnet_block{stage}", nn.Sequential(first, Residual(cout, cout)))
        cin = cout
    net.add_module("global_avg_pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(512, 10)))
    return net


class Draws:
    """std::mt19937(seed)'s numbers."""

    def __init__(self, seed):
        self.bits = np.random.MT19937()
        self.bits._legacy_seeding(seed)

    def raw(self, n):
        return self.bits.random_raw(n)

    def uniform(self, n):
        return self.raw(n) * 2.0**-32

    def centred(self, n):
        return np.sqrt(12.0) * (self.uniform(n) - 0.5)


def fill_parameters(net, seed):
    draws = Draws(seed)
    norm_weights = None
    for name, p in net.named_parameters():
        n = p.numel()
        is_norm = "bn" in name or name.startswith("1.")
        if p.dim() > 1:
            scale = 0.15 if "conv3" in name or name == "fc.1.weight" else 1.0
            value = scale * draws.centred(n) * np.sqrt(p.shape[0] / n)
        elif is_norm and name.endswith("weight"):
            value = norm_weights = 0.5 + draws.uniform(n)
        elif is_norm:
            up = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
            value = up * (1.5 + draws.uniform(n)) * norm_weights
        else:
            value = 0.1 * draws.centred(n)
        p.data = torch.from_numpy(value.astype(np.float32).astype(np.float64)).reshape(p.shape)


def fill_running(net, seed):
    draws = Draws(seed)
    for name, b in net.named_buffers():
        n = b.numel()
        if name.endswith("tracked"):
            continue
        value = 0.2 * draws.centred(n) if name.endswith("mean") else 0.5 + draws.uniform(n)
        b.data = torch.from_numpy(value.astype(np.float32).astype(np.float64))


def batch(seed):
    draws = Draws(seed)
    pixels = (draws.raw(SAMPLES * SIDE * SIDE) >> np.uint64(24)).astype(np.float32) / np.float32(255)
    labels = (draws.raw(SAMPLES) % np.uint64(10)).astype(np.int64)
    return torch.from_numpy(pixels).double().reshape(SAMPLES, 1, SIDE, SIDE), torch.from_numpy(labels)


def line(kind, name, tensor):
    """The tensor's norm and ten of its elements."""
    flat = tensor.detach().flatten()
    at = [i * (flat.numel() - 1) // 9 for i in range(10)]
    print(kind, name, float(flat.norm()).hex(), " ".join(f"{i} {float(flat[i]).hex()}" for i in at))


def main():
    torch.set_num_threads(1)
    net = resnet18().double()
    fill_parameters(net, 1)
    fill_running(net, 1)
    x, y = batch(1)
    net.eval()
    with torch.no_grad():
        print("evaluation", float(F.cross_entropy(net(x), y, reduction="sum")).hex())
    net.train()
    loss = F.cross_entropy(net(x), y, reduction="sum")
    (loss / SAMPLES).backward()
    print("training", float(loss.detach()).hex())
    for name, p in net.named_parameters():
        line("gradient", name, p.grad)
    for name, b in net.named_buffers():
        if not name.endswith("tracked"):
            line("running", name, b)


if __name__ == "__main__":
    print("torch", torch.__version__)
    main()
