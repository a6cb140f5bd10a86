"""DDP training of an autoencoder whose forward returns its loss.

Usage: torchrun --nproc_per_node=2 module_forward.py"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Autoencoder(nn.Module):
    def __init__(self, size=32, hidden=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, 24), nn.ReLU(), nn.Linear(24, hidden))
        self.decoder = nn.Sequential(nn.Linear(hidden, 24), nn.ReLU(), nn.Linear(24, size))

    def encode(self, x):
        return self.encoder(x)

    def forward(self, x):
        return nn.functional.mse_loss(self.decoder(self.encode(x)), x)


def signals(count, size=32):
    """Sums of two sine waves."""
    generator = torch.Generator().manual_seed(11)
    t = torch.arange(size) / size
    frequency = torch.randint(1, 5, (count, 2, 1), generator=generator)
    phase = torch.rand(count, 2, 1, generator=generator)
    return torch.sin(6.2832 * (frequency * t + phase)).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save", help="each rank writes SAVE.RANK")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = TensorDataset(signals(256))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = DDP(Autoencoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            codes = model.module.encode(dataset.tensors[0])
            print(f"epoch {epoch}: loss {loss:.4f}, spread of codes {codes.std():.3f}")

    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
