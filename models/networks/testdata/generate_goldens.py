#!/usr/bin/env python3
"""Writes the golden files of this folder with PyTorch (python3-torch). Run it in the repository's root:

  generate_goldens.py randn > randn_golden.txt
  generate_goldens.py weights > resnet18_d2l_golden.txt

Floats are hexadecimal, so that they are exact.
"""
import sys

import torch

sys.path.insert(0, "models/reference/testdata")
import torch_networks  # noqa: E402


def hexes(values):
    return " ".join(float(v).hex() for v in values)


def randn():
    """Prints each seed, and then for each draw after manual_seed(seed) its size and its first and last 20 numbers."""
    for seed in (0, 1, 2**32 + 5):
        torch.manual_seed(seed)
        print("seed", seed)
        for size in (180, 25000, 102400, 1280, 1, 2, 15, 16, 17, 3, 31, 33):
            x = torch.randn(size).flatten().tolist()
            print("draw", size, hexes(x[:20]), hexes(x[-20:]))


def weights():
    """Prints each seed, and then for each parameter of the chapter's ResNet-18 its name, size, sum, and first and last
    three numbers."""
    for seed in (0, 2**32 + 7):
        torch.manual_seed(seed)
        print("seed", seed)
        for name, value in torch_networks.d2l_resnet18(1, 10).named_parameters():
            x = value.detach().flatten()
            print("parameter", name, x.numel(), hexes([x.double().sum(), *x[:3], *x[-3:]]))


if __name__ == "__main__":
    print("torch", torch.__version__)
    {"randn": randn, "weights": weights}[sys.argv[1]]()
