#!/usr/bin/env python3
"""Trains LeNet by the d2l chapter's recipe in PyTorch, on one thread.

Prints for each epoch the mean training loss and the test accuracy, with which
accuracy_test.cc compares. Needs torch and numpy (Debian: python3-torch) and
the package dataset-fashion-mnist.

  recipe.py [EPOCHS]
"""
import gzip
import sys

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = "/usr/share/datasets/fashion-mnist"


def read(name, offset):
    with gzip.open(f"{FOLDER}/{name}.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def load(split):
    images = read(f"{split}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = read(f"{split}-labels-idx1-ubyte", 8).astype(np.int64)
    return torch.from_numpy(images.copy()).float().div(255), torch.from_numpy(labels)


def logits(x, params):
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    x = F.avg_pool2d(F.relu(F.conv2d(x, w1, b1)), 2)
    x = F.avg_pool2d(F.relu(F.conv2d(x, w2, b2)), 2)
    return F.relu(x.flatten(1) @ w3 + b3) @ w4 + b4


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    images, labels = load("train")
    test_images, test_labels = load("t10k")
    torch.manual_seed(0)
    params = []
    for shape in ((20, 1, 3, 3), (50, 20, 5, 5), (800, 128), (128, 10)):
        bias = shape[0] if len(shape) == 4 else shape[1]
        params += [torch.randn(shape) * 0.01, torch.zeros(bias)]
    for param in params:
        param.requires_grad_()
    print("torch", torch.__version__)
    for epoch in range(1, epochs + 1):
        total = 0.0
        order = torch.randperm(len(images))  # From the generator of the weights.
        for index in order.split(256):
            loss = F.cross_entropy(logits(images[index], params), labels[index], reduction="sum")
            total += loss.item()
            gradients = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for param, gradient in zip(params, gradients):
                    param -= 0.2 * gradient / len(index)
        with torch.no_grad():
            right = sum((logits(x, params).argmax(1) == y).sum().item()
                        for x, y in zip(test_images.split(1000), test_labels.split(1000)))
        print(f"epoch {epoch}  loss {total / len(images):.4f}  accuracy {right / len(test_images):.4f}", flush=True)


if __name__ == "__main__":
    main()
