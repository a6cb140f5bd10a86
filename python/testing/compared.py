"""A DDP script that one rank with the global batch can repeat, for tests of the comparisons.

usage: compared.py [--batch_size=N] [--save=FILE] [--lr=X] [--seed=N] [FLAG...]

--again divides the loss by the number of ranks, although DDP averages. --raw drops the
normalisation of the inputs. --by_hand computes the same loss with other roundings. --noise adds
numbers that each rank draws. PLAIN in the environment computes the loss as --by_hand does. A
negative seed is none.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loss_of(flags, model, x, y):
    if flags.noise:
        x = x + torch.randn(x.shape)
    if not flags.raw:
        x = (x - 3) / 2
    if flags.by_hand or "PLAIN" in os.environ:
        loss = (model(x) / y.numel() ** 0.5 - y / y.numel() ** 0.5).square().sum()
    else:
        loss = nn.functional.mse_loss(model(x), y)
    return loss / dist.get_world_size() if flags.again else loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--eval_batch_size", type=int, default=4)
    for name in ("--again", "--raw", "--by_hand", "--noise"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--save", default="")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = torch.Generator().manual_seed(0)
    x, y = 3 + torch.randn(48, 6, generator=data), torch.rand(48, 2, generator=data)
    dataset = TensorDataset(x, y)
    if flags.seed >= 0:
        torch.manual_seed(flags.seed)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, flags.batch_size, sampler=sampler)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = loss_of(flags, model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if flags.save and dist.get_rank() == 0:
        torch.save({"world_size": dist.get_world_size()}, flags.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
