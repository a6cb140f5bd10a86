"""Fine-tunes a pretrained network on a task with other classes.

    torchrun --nproc_per_node=2 optimizer_before_head.py"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4),
        )
        self.head = nn.Linear(16 * 4, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def pretrained_net():
    """A network for 100 classes, as if from a model zoo."""
    with torch.random.fork_rng():
        torch.manual_seed(2023)
        return Net(classes=100)


def make_dataset(size=320, classes=5):
    """Pulses in noise; the class is the pulse's width."""
    gen = torch.Generator().manual_seed(8)
    labels = torch.randint(classes, (size,), generator=gen)
    signals = 0.2 * torch.randn(size, 1, 64, generator=gen)
    starts = torch.randint(0, 64 - 6 * classes, (size,), generator=gen)
    for signal, start, label in zip(signals, starts.tolist(), labels.tolist()):
        signal[0, start : start + 6 * (label + 1)] += 1.0
    return TensorDataset(signals, labels)


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

    model = pretrained_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model.head = nn.Linear(model.head.in_features, 5)
    ddp_model = DDP(model)

    dataset = make_dataset()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for signals, labels in loader:
            loss = criterion(ddp_model(signals), labels)
            ddp_model.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print("epoch", epoch, "loss", round(loss.item(), 4))

    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
