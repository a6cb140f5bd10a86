#!/usr/bin/env python3
"""Writes what PyTorch's own BatchNorm2d computes, for the golden test.

    python3 conformance/syncbn/testdata/make_golden.py \\
        > conformance/syncbn/testdata/torch_golden.txt

needs PyTorch (Debian: python3-torch). Neither the build nor the tests need it:
its output is kept. All in float64, each number with the digits that give it
back. A case is a line

    case N C H W AFFINE TRACK MOMENTUM EPSILON

(MOMENTUM -1: none), then two steps of training and one of evaluation, each of
the lines `x`, `dy`, `y`, `dx`, and where they are there `dweight`, `dbias`,
`running_mean`, `running_var` (after the step); before the first step `weight`,
`bias`, `running_mean` and `running_var` as they are at the start. Arrays are
[n, c, h, w]; the loss is sum(y * dy). Lines that start with # are comments.
"""

import sys

import torch

CASES = (
    # n, c, h, w, affine, track, momentum, epsilon, mean over deviation
    (4, 3, 2, 3, True, True, 0.1, 1e-5, 1),
    (2, 1, 1, 1, True, True, 0.1, 1e-5, 1),
    (3, 2, 1, 1, False, True, None, 1e-5, 1),
    (2, 3, 3, 1, True, False, 0.1, 0.05, 1),
    (5, 2, 2, 2, False, False, 0.3, 1e-3, 1000),
    (1, 4, 2, 2, True, True, None, 0.05, 1000),
)


def show(name, tensor):
    numbers = tensor.detach().flatten().tolist()
    print(name, *("%.17g" % number for number in numbers))


def make_layer(channels, affine, track, momentum, epsilon):
    layer = torch.nn.BatchNorm2d(
        channels,
        eps=epsilon,
        momentum=momentum,
        affine=affine,
        track_running_stats=track,
        dtype=torch.float64,
    )
    with torch.no_grad():
        if affine:
            layer.weight.uniform_(-1.5, 1.5)
            layer.bias.uniform_(-1, 1)
            show("weight", layer.weight)
            show("bias", layer.bias)
        if track:
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            show("running_mean", layer.running_mean)
            show("running_var", layer.running_var)
    return layer


def run_step(layer, shape, offset):
    x = torch.randn(shape, dtype=torch.float64) + offset
    x.requires_grad_()
    dy = torch.randn(shape, dtype=torch.float64)
    layer.zero_grad()
    y = layer(x)
    (y * dy).sum().backward()
    for name, tensor in (("x", x), ("dy", dy), ("y", y), ("dx", x.grad)):
        show(name, tensor)
    if layer.affine:
        show("dweight", layer.weight.grad)
        show("dbias", layer.bias.grad)
    if layer.track_running_stats:
        show("running_mean", layer.running_mean)
        show("running_var", layer.running_var)


def main():
    sys.stdout.reconfigure(newline="\n")
    print("# torch", torch.__version__, "written by make_golden.py")
    torch.manual_seed(17)
    for n, c, h, w, affine, track, momentum, epsilon, offset in CASES:
        said = -1 if momentum is None else momentum
        print("case", n, c, h, w, int(affine), int(track), said, epsilon)
        layer = make_layer(c, affine, track, momentum, epsilon)
        for training in (True, True, False):
            layer.train(training)
            run_step(layer, (n, c, h, w), offset)


if __name__ == "__main__":
    main()
