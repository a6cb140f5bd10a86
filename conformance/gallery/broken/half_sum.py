# Data-parallel training where gradients are reduced in one flat buffer.
# torchrun --nproc_per_node=2 half_sum.py
import argparse
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class FlatReducer:
    """Averages all gradients with one call."""

    def __init__(self, parameters, dtype):
        self.parameters = list(parameters)
        self.buffer = torch.zeros(sum(p.numel() for p in self.parameters), dtype=dtype)

    def reduce(self):
        offset = 0
        for p in self.parameters:
            self.buffer[offset:offset + p.numel()].copy_(p.grad.view(-1))
            offset += p.numel()
        dist.all_reduce(self.buffer)
        self.buffer /= dist.get_world_size()
        offset = 0
        for p in self.parameters:
            p.grad.view(-1).copy_(self.buffer[offset:offset + p.numel()])
            offset += p.numel()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 5)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def gaussians(count=640):
    generator = torch.Generator().manual_seed(13)
    centers = torch.randn(5, 16, generator=generator)
    labels = torch.randint(5, (count,), generator=generator)
    return centers[labels] + torch.randn(count, 16, generator=generator), labels


def main(args):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, labels = gaussians()
    model = Net()
    reducer = FlatReducer(model.parameters(), dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        generator = torch.Generator().manual_seed(args.seed + epoch)
        for batch in torch.randperm(len(x), generator=generator).split(args.batch_size * size):
            mine = batch.chunk(size)[rank]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[mine]), labels[mine])
            loss.backward()
            reducer.reduce()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}, loss {loss.item():.4f}")
    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--save")
    dist.init_process_group("gloo")
    main(parser.parse_args())
    dist.destroy_process_group()
