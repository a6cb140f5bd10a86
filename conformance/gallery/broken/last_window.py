#!/usr/bin/env python3
# DDP with gradient accumulation; an epoch may end in the middle of a window.
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def pairs(size=256):
    """Vectors that are to be rotated by a matrix that the model has to find."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(size, 12, generator=generator)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    return TensorDataset(x, torch.tanh(x @ rotation))


def windows(loader, length):
    """Yields lists of up to `length` batches."""
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == length:
            yield window
            window = []
    if window:
        yield window


def update(model, optimizer, window, args):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(window):
        last = i == len(window) - 1
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / args.accumulation_steps
            loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation-steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--save")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = pairs()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12)))
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = [
            update(model, optimizer, window, args)
            for window in windows(loader, args.accumulation_steps)
        ]
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(losses)} updates, last loss {losses[-1]:.4f}")
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
