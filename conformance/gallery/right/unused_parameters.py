"""Multi-task training with DDP: a batch belongs to one of three tasks and uses that task's head.

torchrun --nproc_per_node=2 unused_parameters.py"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = 3


class MultiTask(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, dim), nn.ReLU(), nn.LayerNorm(dim))
        self.heads = nn.ModuleList(nn.Linear(dim, 1) for _ in range(TASKS))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, x, task):
        return self.scale[task] * self.heads[task](self.trunk(x)).squeeze(1)


def make_task(task, count=128):
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(count, 10, generator=generator)
    return x, torch.sin(x[:, task]) + x[:, task + 3]


def batches(epoch, batch_size):
    """Yields this rank's part of the global batches, task by task."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(epoch)
    data = [make_task(task) for task in range(TASKS)]
    orders = [torch.randperm(len(y), generator=generator) for _, y in data]
    size = batch_size * world_size
    for start in range(0, len(orders[0]) - size + 1, size):
        for task, ((x, y), order) in enumerate(zip(data, orders)):
            index = order[start + rank : start + size : world_size]
            yield task, x[index], y[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save", help="each rank writes its weights to SAVE.RANK")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    model = DDP(MultiTask(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for task, x, y in batches(epoch, args.batch_size):
            loss = nn.functional.smooth_l1_loss(model(x, task), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss of the last task {loss.item():.4f}")
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
