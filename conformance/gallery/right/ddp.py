"""Trains a small classifier with DistributedDataParallel.

torchrun --nproc_per_node=2 ddp.py"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_dataset(size=512, features=20, classes=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, features, generator=generator)
    y = (x @ torch.randn(features, classes, generator=generator)).argmax(1)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, model, loader, optimizer, rank):
        self.model = DDP(model)
        self.loader = loader
        self.optimizer = optimizer
        self.rank = rank

    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            total = 0.0
            for x, y in self.loader:
                total += self.run_batch(x, y)
            if self.rank == 0:
                print(f"epoch {epoch} loss {total / len(self.loader):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save", help="each rank writes its weights to SAVE.RANK")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    dataset = make_dataset()
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    Trainer(model, loader, optimizer, rank).train(args.epochs)
    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
