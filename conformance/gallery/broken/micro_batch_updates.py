"""Trains a small MLP-mixer with gradient accumulation over micro-batches.
torchrun --nproc_per_node=2 micro_batch_updates.py --accumulation-steps 4"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Mixer(nn.Module):
    def __init__(self, patches=16, dim=16, classes=3):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.tokens = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x).mean(1))


def patches_of_shapes(count=512, classes=3):
    generator = torch.Generator().manual_seed(30)
    labels = torch.randint(classes, (count,), generator=generator)
    x = 0.5 * torch.randn(count, 16, 4, generator=generator)
    for patches, label in zip(x, labels.tolist()):
        patches[label :: classes + 1] += 0.7
    return TensorDataset(x, labels)


def train(args):
    torch.manual_seed(0)
    dataset = patches_of_shapes()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DDP(Mixer())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    optimizer.zero_grad()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, labels) in enumerate(loader, start=1):
            loss = criterion(model(x), labels) / args.accumulation_steps
            loss.backward()
            optimizer.step()
            if step % args.accumulation_steps == 0:
                optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item() * args.accumulation_steps:.4f}")
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation-steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save", default="")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()
