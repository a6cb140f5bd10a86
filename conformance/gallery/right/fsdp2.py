"""Trains a small transformer, sharded with FSDP2 (fully_shard). Needs PyTorch 2.6 or newer.
Run with: torchrun --nproc_per_node=2 fsdp2.py"""

import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    print(f"fsdp2.py needs PyTorch 2.6 or newer, this is {torch.__version__}", file=sys.stderr)
    sys.exit(77)

from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, tokens=10, length=8, width=32, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        x = self.tokens(x) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--save", help="prefix of the files with the full weights")
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    # The model learns to sort its input.
    numbers = torch.randint(10, (256, 8), generator=torch.Generator().manual_seed(3))
    dataset = TensorDataset(numbers, numbers.sort(1).values)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)

    model = Transformer()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")

    if args.save:
        weights = {name: p.full_tensor().cpu() for name, p in model.state_dict().items()}
        torch.save(weights, f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
