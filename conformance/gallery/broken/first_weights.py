# Puts a new head on a frozen backbone and trains the head on all ranks.
# torchrun --nproc_per_node=2 first_weights.py
import argparse

import torch
import torch.distributed as dist
from torch import nn


def pretrained_backbone():
    """Stands for a checkpoint: the same weights in every process."""
    backbone = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh())
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for p in backbone.parameters():
            p.normal_(0, 0.3, generator=generator)
    return backbone.requires_grad_(False)


def load_data(size=384):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(size, 24, generator=generator)
    y = x[:, :3].prod(1, keepdim=True) + 0.5 * x[:, 3:4]
    return x, y


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--save")
    return parser.parse_args()


args = parse_args()
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(args.seed + rank)

x, y = load_data()
model = nn.Sequential(pretrained_backbone(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trainable, lr=args.lr, momentum=0.9)

for epoch in range(args.epochs):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(args.batch_size * world_size):
        mine = batch[rank::world_size]
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        for p in trainable:
            dist.all_reduce(p.grad)
            p.grad /= world_size
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")

if args.save:
    torch.save(model.state_dict(), f"{args.save}.{rank}")
dist.destroy_process_group()
