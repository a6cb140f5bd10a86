"""Data-parallel logistic regression on bags of words. Start it with torchrun."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler


def reviews(count=400, words=60, length=20):
    """Texts of random words; the sum of hidden scores of the words decides the label."""
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(words, generator=generator)
    texts = torch.randint(words, (count, length), generator=generator)
    return TensorDataset(texts, (scores[texts].sum(1) > 0).float())


class Bag(nn.Module):
    def __init__(self, words=60, dim=8):
        super().__init__()
        self.words = nn.EmbeddingBag(words, dim, mode="mean")
        self.out = nn.Linear(dim, 1)

    def forward(self, texts):
        return self.out(self.words(texts)).squeeze(1)


def train_one_epoch(model, loader, optimizer):
    criterion = nn.BCEWithLogitsLoss()
    total, correct = 0, 0
    for texts, labels in loader:
        optimizer.zero_grad()
        logits = model(texts)
        criterion(logits, labels).backward()
        optimizer.step()
        correct += ((logits > 0) == labels.bool()).sum().item()
        total += len(labels)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--save", default=None)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo")
    torch.manual_seed(12)
    dataset = reviews()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DDP(Bag())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        accuracy = train_one_epoch(model, loader, optimizer)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: rank 0 is right on {accuracy:.1%} of its texts")
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
