"""A DDP script that one rank with the global batch can repeat, for tests of the comparisons.

usage: compared.py [--batch_size=N] [--save=FILE] [--lr=X] [--seed=N] [FLAG...]

--again divides the loss by the number of ranks, although DDP averages. --raw drops the
normalisation of the inputs. --by_hand computes the same loss with other roundings. --noise adds
numbers that each rank draws. PLAIN in the environment computes the loss as --by_hand does. A
negative seed is none.

--gpu stands in for a GPU, as long as CUDA_VISIBLE_DEVICES is not empty: parameters say that they
are on cuda:0, and the loss has other roundings. --gpu_fault computes a wrong loss there, and
--gpu_seed makes other first weights. --gpu_only fails without a GPU. Without a GPU, --gpu asks for
NCCL, which a script would do with one: this one has only gloo.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class OnStandIn(nn.Parameter):
    """A parameter on the CPU that says that it is on a GPU."""

    device = property(lambda self: torch.device("cuda", 0))


def has_gpu():
    return os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def move_to_stand_in(model):
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            module._parameters[name] = OnStandIn(parameter.data)


def loss_of(flags, model, x, y):
    if flags.noise:
        x = x + torch.randn(x.shape)
    if not flags.raw:
        x = (x - 3) / 2
    if flags.gpu_fault and has_gpu():
        y = y.round()
    if flags.by_hand or "PLAIN" in os.environ or flags.gpu and has_gpu():
        loss = (model(x) / y.numel() ** 0.5 - y / y.numel() ** 0.5).square().sum()
    else:
        loss = nn.functional.mse_loss(model(x), y)
    return loss / dist.get_world_size() if flags.again else loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--eval_batch_size", type=int, default=4)
    flags = ("--again", "--raw", "--by_hand", "--noise", "--gpu", "--gpu_fault", "--gpu_seed")
    for name in (*flags, "--gpu_only"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--save", default="")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if flags.gpu and not has_gpu() else "gloo")
    if flags.gpu_only and not has_gpu():
        raise RuntimeError("no GPU is there")
    data = torch.Generator().manual_seed(0)
    x, y = 3 + torch.randn(48, 6, generator=data), torch.rand(48, 2, generator=data)
    dataset = TensorDataset(x, y)
    if flags.seed >= 0:
        torch.manual_seed(flags.seed + (flags.gpu_seed and has_gpu()))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, flags.batch_size, sampler=sampler)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    if flags.gpu and has_gpu():
        move_to_stand_in(network)
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
