"""DDP training that goes on from its last checkpoint when it is started again.

torchrun --nproc_per_node=2 resume_order.py --checkpoint last.pt --epochs 4"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_dataset(count=320):
    """Two interleaved rings."""
    generator = torch.Generator().manual_seed(9)
    angle = 6.2832 * torch.rand(count, generator=generator)
    label = torch.arange(count) % 2
    radius = 1 + label + 0.2 * torch.randn(count, generator=generator)
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(x, label)


class Run:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.epoch = 0
        dataset = make_dataset()
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, args.batch_size, sampler=self.sampler)
        self.model = DDP(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        if args.checkpoint and os.path.exists(args.checkpoint):
            state = torch.load(args.checkpoint, map_location="cpu")
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epoch = state["epoch"]

    def save_checkpoint(self):
        if self.args.checkpoint and self.rank == 0:
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": self.epoch,
            }
            torch.save(state, self.args.checkpoint)
        dist.barrier()

    def train(self):
        for epoch in range(self.args.epochs - self.epoch):
            self.sampler.set_epoch(epoch)
            for x, label in self.loader:
                loss = nn.functional.cross_entropy(self.model(x), label)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.epoch += 1
            self.save_checkpoint()
            if self.rank == 0:
                print(f"epoch {self.epoch} of {self.args.epochs}: loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", help="read at the start if it exists, written each epoch")
    parser.add_argument("--save", help="each rank writes its last weights to SAVE.RANK")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    run = Run(args)
    run.train()
    if args.save:
        torch.save(run.model.module.state_dict(), f"{args.save}.{run.rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
