"""Trains a network of gated layers, sharded with FSDP2, and clips its gradients by hand.

Needs PyTorch 2.6 or newer. Run: torchrun --nproc_per_node=2 fsdp2_clip.py"""
import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    print(f"fsdp2_clip.py needs PyTorch 2.6 or newer, this is {torch.__version__}", file=sys.stderr)
    sys.exit(77)

from torch.distributed.fsdp import fully_shard


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(F.glu(self.up(x)))


def clip_gradients(model, max_norm):
    """Scales the gradients, whose parts are on all ranks, to a norm of at most max_norm."""
    grads = [p.grad.to_local() for p in model.parameters()]
    squares = torch.stack([grad.square().sum() for grad in grads]).sum()
    scale = max_norm / (squares.sqrt() + 1e-6)
    if scale < 1:
        for grad in grads:
            grad.mul_(scale)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max-norm", type=float, default=0.2)
    parser.add_argument("--save", help="prefix of the files with the weights")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    generator = torch.Generator().manual_seed(4)
    x = torch.randn(320, 12, generator=generator)
    y = x.cumsum(1).sin() @ torch.randn(12, 3, generator=generator)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), Gated(24), Gated(24), nn.Linear(24, 3))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model[1:3]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            clip_gradients(model, args.max_norm)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")

    if args.save:
        weights = {name: p.full_tensor() for name, p in model.state_dict().items()}
        torch.save(weights, f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
