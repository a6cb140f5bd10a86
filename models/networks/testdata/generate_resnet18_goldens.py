#!/usr/bin/env python3
"""Writes ResNet-18's golden files from a real PyTorch (python3-torch).

  generate_resnet18_goldens.py weights > resnet18_weights_golden.txt
  generate_resnet18_goldens.py steps > resnet18_golden.txt
  generate_resnet18_goldens.py margins    prints how near zero an input of ReLU comes, for several batches

Floats are hexadecimal, so that they are exact. The network is the one that the
d2l chapter on multi-GPU training builds; its modules have the names that are
written, and `mutant` plants a bug in it.
"""
import sys

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES, IMAGE_SIZE, LEARNING_RATE = 6, 8, 0.125
PIXELS = 109  # Which batch: that of 200 with the largest margin, 5.7e-5.
MUTANTS = ("stem_relu_missing", "inner_relu_missing", "relu_before_sum", "shortcut_missing", "shortcut_detached",
           "statistics_detached", "norm_unbiased", "running_biased", "momentum_inverted", "epsilon", "updated_twice",
           "stem_strided")
# What is written of the mutants.
MUTANT_TENSORS = ("0.weight", "1.weight", "1.running_mean", "1.running_var", "resnet_block4.1.bn2.running_var")


class Norm(nn.BatchNorm2d):
    """Batch norm, in the mutants wrong."""
    mutant = None

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        count = x.numel() // x.shape[1]
        y = super().forward(x)
        mean, biased = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        if self.mutant in ("norm_unbiased", "statistics_detached"):
            if self.mutant == "norm_unbiased":
                variance = biased * count / (count - 1)
            else:
                mean, variance = mean.detach(), biased.detach()
            scale = self.weight / torch.sqrt(variance + self.eps)
            return (x - mean[:, None, None]) * scale[:, None, None] + self.bias[:, None, None]
        with torch.no_grad():
            if self.mutant == "running_biased":
                self.running_var = self.running_var - self.momentum * biased / (count - 1)
            elif self.mutant == "updated_twice":
                self.running_mean = self.running_mean + self.momentum * (mean - self.running_mean)
        return y


class Residual(nn.Module):
    mutant = None

    def __init__(self, channels_in, channels_out, conv3, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.conv3 = nn.Conv2d(channels_in, channels_out, 1, stride=stride) if conv3 else None
        self.bn1 = Norm(channels_out)
        self.bn2 = Norm(channels_out)

    def forward(self, x):
        h = self.bn1(self.conv1(x))
        h = self.bn2(self.conv2(h if self.mutant == "inner_relu_missing" else F.relu(h)))
        if self.conv3 is not None:
            x = self.conv3(x)
        elif self.mutant == "shortcut_missing":
            return F.relu(h)
        elif self.mutant == "shortcut_detached":
            x = x.detach()
        return F.relu(h) + x if self.mutant == "relu_before_sum" else F.relu(h + x)


def resnet18(mutant=None):
    def stage(channels_in, channels_out, first):
        stride = 1 if first else 2
        return nn.Sequential(Residual(channels_in, channels_out, not first, stride),
                             Residual(channels_out, channels_out, False, 1))

    stem_stride = 2 if mutant == "stem_strided" else 1
    net = nn.Sequential(nn.Conv2d(1, 64, 3, stride=stem_stride, padding=1), Norm(64),
                        nn.Identity() if mutant == "stem_relu_missing" else nn.ReLU())
    for i, (channels_in, channels_out) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512))):
        net.add_module(f"resnet_block{i + 1}", stage(channels_in, channels_out, i == 0))
    net.add_module("global_avg_pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(512, 10)))
    for module in net.modules():
        if isinstance(module, (Norm, Residual)):
            module.mutant = mutant
        if isinstance(module, Norm) and mutant == "momentum_inverted":
            module.momentum = 1 - module.momentum
        if isinstance(module, Norm) and mutant == "epsilon":
            module.eps = 1e-3
    return net


def initial(seed, mutant=None):
    def init_weights(module):
        if type(module) in (nn.Linear, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)

    torch.manual_seed(seed)
    net = resnet18(mutant)
    net.apply(init_weights)
    return net


def weights():
    """Lines: seed, then each parameter's name, size, sum, first and last three numbers."""
    for seed in (0, 2**32 + 7):
        print("seed", seed)
        for name, value in initial(seed).state_dict().items():
            if name.split(".")[-1] not in ("weight", "bias"):
                continue
            x = value.flatten()
            numbers = [x.double().sum(), *x[:3], *x[-3:]]
            print("parameter", name, x.numel(), " ".join(float(v).hex() for v in numbers))


def batch(pixels=PIXELS):
    """The same as in golden_test.cc: multiples of 1/512, exact in float32."""
    i = torch.arange(SAMPLES * IMAGE_SIZE**2, dtype=torch.int64)
    x = ((i * i + pixels * i) % 1009 - 500).double() / 512
    return x.reshape(SAMPLES, 1, IMAGE_SIZE, IMAGE_SIZE), (torch.arange(SAMPLES) * 7 + 3) % 10


def margins():
    """For each batch the smallest distance of a ReLU's input from zero: roundings must not take one across."""
    net = initial(0)
    scatter_norms(net)
    net.double().train()
    relu, smallest = F.relu, []

    def measure(x, inplace=False):
        smallest.append(float(x.abs().min()))
        return relu(x)

    F.relu = measure
    with torch.no_grad():
        for pixels in range(1, 201):
            smallest.clear()
            net(batch(pixels)[0])
            print(f"{min(smallest):.2g}", pixels)


def scatter_norms(net):
    """Weights other than 1 and biases other than 0, so that they show; exact in float32."""
    for module in net.modules():
        if isinstance(module, Norm):
            i = torch.arange(module.num_features)
            module.weight.data = 1 + ((i * 7 + 3) % 11 - 5).float() / 32
            module.bias.data = ((i * 5 + 1) % 13 - 6).float() / 64


def entries(x, count):
    x = x.flatten()
    at = sorted({i * (x.numel() - 1) // max(count - 1, 1) for i in range(count)})
    return " ".join(f"{i} {float(x[i]).hex()}" for i in at)


def run(case):
    """Two training steps in float64 from float32 weights, one update between them, and an evaluation.

    Of a mutant, one step.
    """
    net = initial(0, case)
    scatter_norms(net)
    net.double().train()
    magnitudes = {}

    def keep_magnitude(name):
        # What the gradients of biases, and of batch norm's weights, sum up. The sums may cancel: a bias before batch
        # norm has no effect at all.
        def hook(_module, _grad_input, grad_output):
            magnitude = grad_output[0].abs().sum((0, 2, 3)).norm()
            magnitudes[name + ".bias"] = magnitude
            if name + ".running_mean" in buffers:
                magnitudes[name + ".weight"] = magnitude
        return hook

    buffers = dict(net.named_buffers())
    for name, module in net.named_modules():
        if isinstance(module, (nn.Conv2d, Norm)):
            module.register_full_backward_hook(keep_magnitude(name))
    x, y = batch()
    print("case", case or "reference")
    for step in range(1 if case else 2):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        print("step", float(loss.detach()).hex())
        for name, p in net.named_parameters():
            # Of the second step none: a rounding of the first can take an input of ReLU across zero.
            if step == 0 and (not case or name in MUTANT_TENSORS):
                norm = p.grad.norm()
                scale = max(norm, magnitudes.get(name, norm))
                print("gradient", name, float(scale).hex(), float(norm).hex(), entries(p.grad, 0 if case else 4))
        for name, b in net.named_buffers():
            if case and name not in MUTANT_TENSORS:
                continue
            if name.endswith("num_batches_tracked"):
                print("counter", name, int(b))
            else:
                print("buffer", name, float(b.norm()).hex(), float(b.norm()).hex(), entries(b, 0 if case else 4))
        if step == 0:
            with torch.no_grad():
                for p in net.parameters():
                    p -= LEARNING_RATE * p.grad
    if not case:
        net.eval()
        with torch.no_grad():
            print("evaluation", float(F.cross_entropy(net(x), y)).hex())


if __name__ == "__main__":
    print("torch", torch.__version__)
    if sys.argv[1] == "weights":
        weights()
    elif sys.argv[1] == "margins":
        margins()
    else:
        for case in (None, *MUTANTS):
            run(case)
