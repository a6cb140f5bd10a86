"""A DDP script as tutorials write them, for the recorder's tests. Ranks come from the environment.

usage: train.py [--epochs=N] [--workers=N] [--accumulate=N] [--fail_at=STEP]

Prints, for each rank, a digest of the final weights and of every random number generator's state.
"""

import argparse
import hashlib
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(size=48):
    generator = torch.Generator().manual_seed(11)
    images = torch.randn(size, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 3, (size,), generator=generator)
    return TensorDataset(images, labels)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 3),
    )


def print_digest(model):
    state = hashlib.sha256()
    for value in model.state_dict().values():
        state.update(value.numpy().tobytes())
    state.update(torch.get_rng_state().numpy().tobytes())
    state.update(repr(np.random.get_state()).encode())
    state.update(repr(random.getstate()).encode())
    os.write(1, b"digest of rank %d: %s\n" % (dist.get_rank(), state.hexdigest().encode()))


def train(flags):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    dataset = make_data()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=flags.workers)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loss_function = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(flags.epochs):
        sampler.set_epoch(epoch)
        for batch, (images, labels) in enumerate(loader):
            if step == flags.fail_at:
                raise RuntimeError("planted failure")
            loss = loss_function(model(images), labels) / flags.accumulate
            if (batch + 1) % flags.accumulate:
                with model.no_sync():
                    loss.backward()
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        scheduler.step()
    print_digest(model.module)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), os.devnull)
    losses = torch.tensor([float(loss)])
    dist.all_reduce(losses, op=dist.ReduceOp.MAX)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--fail_at", type=int, default=-1)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(flags)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
