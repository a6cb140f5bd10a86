"""A script that updates its parameters by hand, right or with a bug that a flag plants.

usage: by_hand.py [--batch-size=N] [--clear=HOW] [FLAG...]

Prints, for each rank, a digest of the final weights.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FLAGS = ("ddp", "bypass", "own_gradients", "own_bias", "sum", "seed_by_rank", "rate_by_rank", "data")
FLAGS += ("grad", "no_norm", "optimizer", "no_update")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--clear", default="none", choices=("none", "zero", "model", "before", ""))
    for name in FLAGS:
        parser.add_argument("--" + name, action="store_true")
    return parser.parse_args()


def average(flags, model):
    """Averages the gradients over the ranks, unless the flags say otherwise."""
    for name, p in model.named_parameters():
        if flags.ddp or flags.own_gradients or (flags.own_bias and name.endswith("bias")):
            continue
        dist.all_reduce(p.grad)
        if not flags.sum:
            p.grad /= dist.get_world_size()


def update(flags, model, rate):
    if flags.no_update:
        return
    with torch.no_grad():
        for p in model.parameters():
            if flags.data:
                p.data.sub_(rate * p.grad.data)
            else:
                p -= rate * p.grad
            if flags.clear == "zero":
                p.grad.zero_()
            if flags.clear == "none":
                p.grad = None
    if flags.clear == "model":
        model.zero_grad()


def update_by_grad(flags, model, loss, rate):
    """Updates with gradients that no parameter holds."""
    parameters = model.parameters() if flags.data else list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    for p, gradient in zip(model.parameters(), gradients):
        if not flags.own_gradients:
            dist.all_reduce(gradient)
        p.data -= rate / dist.get_world_size() * gradient


def train(flags):
    torch.manual_seed(dist.get_rank() if flags.seed_by_rank else 0)
    norm = nn.Identity() if flags.no_norm else nn.BatchNorm1d(5)
    model = nn.Sequential(nn.Linear(6, 5), norm, nn.Tanh(), nn.Linear(5, 2))
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(*(torch.randn(48, n, generator=generator) for n in (6, 2)))
    loader = DataLoader(data, flags.batch_size, sampler=DistributedSampler(data))
    if flags.ddp:
        model = DistributedDataParallel(model)
    forward = model.module if flags.bypass else model
    rate = 0.1 * (1 + dist.get_rank() * flags.rate_by_rank)
    for step, (x, y) in enumerate(loader):
        if flags.clear == "before":
            model.zero_grad()
        loss = nn.functional.mse_loss(forward(x), y)
        if flags.grad:
            update_by_grad(flags, model, loss, rate)
            continue
        loss.backward()
        average(flags, model)
        if flags.optimizer and step == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        if flags.optimizer and step >= 2:
            optimizer.step()
            optimizer.zero_grad()
        else:
            update(flags, model, rate)
    state = hashlib.sha256()
    for value in model.state_dict().values():
        state.update(value.numpy().tobytes())
    os.write(1, b"digest of rank %d: %s\n" % (dist.get_rank(), state.hexdigest().encode()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(parse())
    # Without this, PyTorch 1.13 may abort at exit: a thread of gloo still runs.
    dist.destroy_process_group()
