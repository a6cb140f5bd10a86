"""Trains a small ResNet with DDP; every rank validates on its part of the images.
torchrun --nproc_per_node=2 batch_norm_buffers.py"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self, channels=8, classes=4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.block = BasicBlock(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(self.block(self.stem(x)).mean((2, 3)))


def stripes(size, seed, classes=4):
    """Images of stripes; the class is their direction."""
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (size,), generator=gen)
    angle = labels * 3.1416 / classes
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    phase = 6.2832 * torch.rand(size, 1, 1, generator=gen)
    wave = angle.cos()[:, None, None] * columns + angle.sin()[:, None, None] * rows
    images = torch.sin(1.5 * wave + phase) + 0.3 * torch.randn(size, 12, 12, generator=gen)
    return TensorDataset(images[:, None], labels)


def train_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for images, labels in loader:
        counts[0] += (model(images).argmax(1) == labels).sum()
        counts[1] += len(labels)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save", help="each rank writes SAVE.RANK")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    train_set, val_set = stripes(192, seed=1), stripes(64, seed=2)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    val_loader = DataLoader(val_set, 16, sampler=DistributedSampler(val_set, shuffle=False))
    model = DDP(ResNet(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer)
        accuracy = validate(model, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}")

    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
