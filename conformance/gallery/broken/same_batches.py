"""Trains a regression model with DDP.

torchrun --nproc_per_node=2 same_batches.py"""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Springs(Dataset):
    """Positions of a damped spring after a time; features are stiffness, damping and time."""

    def __init__(self, size, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(size, 3, generator=generator)
        stiffness, damping, time = self.x.unbind(1)
        self.y = torch.exp(-damping * time) * torch.cos(6 * stiffness * time)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", help="each rank writes SAVE.RANK")
    return parser.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    set_seed(args.seed)

    dataset = Springs(384)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        running = 0.0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean loss {running / len(loader):.4f}")

    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
