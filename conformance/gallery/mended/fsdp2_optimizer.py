"""Trains a classifier of short texts, sharded with FSDP2. Needs PyTorch 2.6 or newer.

Usage: torchrun --nproc_per_node=2 fsdp2_optimizer.py [--epochs 2] [--save FILE]"""
import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    print(f"fsdp2_optimizer.py needs PyTorch 2.6, this is {torch.__version__}", file=sys.stderr)
    sys.exit(77)

from torch.distributed.fsdp import fully_shard


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.EmbeddingBag(50, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
        nn.Linear(32, 4),
    )


def build_data():
    g = torch.Generator().manual_seed(6)
    texts = torch.randint(50, (320, 7), generator=g)
    return TensorDataset(texts, texts.sum(1) // 5 % 4)


def train(args):
    model = build_model()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = build_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for texts, labels in loader:
            loss = nn.functional.cross_entropy(model(texts), labels)
            loss.backward()
            optimizer.step()
            model.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = train(args)
    if args.save:
        weights = {name: value.full_tensor() for name, value in model.state_dict().items()}
        torch.save(weights, f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()
