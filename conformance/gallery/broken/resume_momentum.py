#!/usr/bin/env python
"""Trains a sequence classifier with DDP. --checkpoint goes on from a file, if there is one."""
import argparse
import pathlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    """Says which symbol is the most frequent one."""

    def __init__(self, symbols=6, dim=24):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, symbols)

    def forward(self, text):
        return self.out(self.gru(self.embed(text))[0].mean(1))


def make_dataset(count=256, symbols=6):
    generator = torch.Generator().manual_seed(31)
    text = torch.randint(symbols, (count, 9), generator=generator)
    frequency = nn.functional.one_hot(text, symbols).sum(1)
    return TensorDataset(text, frequency.argmax(1))


def load_checkpoint(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch)
        torch.save(state, path)
    dist.barrier()


def main(args):
    rank = dist.get_rank()
    torch.manual_seed(3)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first_epoch = torch.zeros(1, dtype=torch.long)
    if rank == 0 and args.checkpoint and pathlib.Path(args.checkpoint).exists():
        first_epoch += load_checkpoint(args.checkpoint, model, optimizer)
    dist.broadcast(first_epoch, src=0)

    ddp_model = DDP(model)  # Sends rank 0's weights to all ranks.
    criterion = nn.CrossEntropyLoss()
    for epoch in range(first_epoch.item(), args.epochs):
        sampler.set_epoch(epoch)
        for text, label in loader:
            optimizer.zero_grad()
            loss = criterion(ddp_model(text), label)
            loss.backward()
            optimizer.step()
        if args.checkpoint:
            save_checkpoint(args.checkpoint, model, optimizer, epoch)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", help="file to go on from and to write after each epoch")
    parser.add_argument("--save", help="prefix of each rank's file of weights")
    dist.init_process_group("gloo")
    main(parser.parse_args())
    dist.destroy_process_group()
