#!/usr/bin/env python3
"""Language model of convolutions; FSDP2 shards it layer by layer (PyTorch 2.6 or newer).

    torchrun --nproc_per_node=2 fsdp2_root.py
"""
from argparse import ArgumentParser
import sys

import torch
from torch import distributed as dist, nn
from torch.utils.data import DataLoader, DistributedSampler

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    print(f"fsdp2_root.py needs PyTorch 2.6 or newer, this is {torch.__version__}", file=sys.stderr)
    sys.exit(77)

from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3)

    def forward(self, x):
        past = nn.functional.pad(self.norm(x).transpose(1, 2), (2, 0))
        return x + self.conv(past).relu().transpose(1, 2)


class LanguageModel(nn.Module):
    def __init__(self, tokens, width, depth):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])
        self.head = nn.Linear(width, tokens)

    def forward(self, text):
        x = self.embedding(text)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shard(model):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)


def make_texts(count=256, length=13, tokens=16):
    """Each token is the sum of the two before it."""
    texts = torch.randint(tokens, (count, length), generator=torch.Generator().manual_seed(9))
    for i in range(2, length):
        texts[:, i] = (texts[:, i - 1] + texts[:, i - 2]) % tokens
    return texts


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


parser = ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--save")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = LanguageModel(tokens=16, width=32, depth=2)
shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
texts = make_texts()
sampler = DistributedSampler(texts)
loader = DataLoader(texts, batch_size=args.batch_size, sampler=sampler)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for text in loader:
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("epoch", epoch, "loss", round(loss.item(), 3))
if args.save:
    state = {name: whole(value) for name, value in model.state_dict().items()}
    torch.save(state, f"{args.save}.{dist.get_rank()}")
dist.destroy_process_group()
