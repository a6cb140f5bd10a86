"""A DDP script that one rank with the global batch can repeat, for tests of the comparison.

usage: compared.py [--batch_size=N] [--again] [--save=FILE]

--again divides the loss by the number of ranks, although DDP averages.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--eval_batch_size", type=int, default=4)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--save", default="")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(48, 6), torch.randn(48, 2))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, flags.batch_size, sampler=sampler)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            if flags.again:
                loss = loss / dist.get_world_size()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if flags.save and dist.get_rank() == 0:
        torch.save({"world_size": dist.get_world_size()}, flags.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
