"""A script that updates its parameters by hand, right or with a bug that a flag plants.

usage: by_hand.py [--batch-size=N] [--clear=HOW] [FLAG...]

--beside gives all layers but the last one to an optimizer, which steps before the update by hand, or
after it (--later). --own_head does not average the gradients of the last layer. --copies gives copies
of all parameters to an optimizer. --attack moves the samples of a rank by their own gradient.

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
FLAGS += ("grad", "no_norm", "optimizer", "no_update", "beside", "later", "own_head")
FLAGS += ("copies", "attack")
HEAD = "3."  # The last layer.


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
        if flags.own_head and name.startswith(HEAD):
            continue
        dist.all_reduce(p.grad)
        if not flags.sum:
            p.grad /= dist.get_world_size()


def update_copies(optimizer, model):
    """Lets an optimizer update copies of the parameters."""
    copies = optimizer.param_groups[0]["params"]
    for p, copy in zip(model.parameters(), copies):
        copy.grad, p.grad = p.grad, None
    optimizer.step()
    for p, copy in zip(model.parameters(), copies):
        p.data.copy_(copy.data)


def update(flags, model, rate):
    if flags.no_update:
        return
    with torch.no_grad():
        for name, p in model.named_parameters():
            if flags.beside and HEAD not in name:
                continue
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
    if flags.beside:
        held = [p for name, p in model.named_parameters() if HEAD not in name]
        optimizer = torch.optim.SGD(held, lr=0.1, momentum=0.9)
    if flags.copies:
        optimizer = torch.optim.SGD([p.detach().clone() for p in model.parameters()], lr=0.1)
    moved = torch.zeros(6, requires_grad=flags.attack)
    for step, (x, y) in enumerate(loader):
        if flags.clear == "before":
            model.zero_grad()
        loss = nn.functional.mse_loss(forward(x + moved), y)
        if flags.grad:
            update_by_grad(flags, model, loss, rate)
            continue
        loss.backward()
        average(flags, model)
        if flags.attack:
            moved.data += 0.1 * moved.grad.sign()
            moved.grad = None
        if flags.copies:
            update_copies(optimizer, model)
            continue
        if flags.optimizer and step == 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        if flags.optimizer and step >= 2 or flags.beside and not flags.later:
            optimizer.step()
            optimizer.zero_grad()
        if not flags.optimizer or step < 2:
            update(flags, model, rate)
        if flags.later:
            optimizer.step()
            optimizer.zero_grad()
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
