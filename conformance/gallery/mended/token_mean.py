"""Trains a small language model on sentences of different lengths, with DDP.
The loss is the mean over all tokens of the global batch, so that long sentences count more."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

IGNORE = -100
VOCAB = 20


def make_corpus(size, seed=0):
    """Arithmetic progressions modulo VOCAB, of 3 to 16 terms."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return torch.randint(low, high, (1,), generator=generator).item()

    return [
        (number(0, VOCAB) + number(1, 4) * torch.arange(number(3, 17))) % VOCAB for _ in range(size)
    ]


def collate(sentences):
    inputs = pad_sequence([s[:-1] for s in sentences], batch_first=True)
    labels = pad_sequence([s[1:] for s in sentences], batch_first=True, padding_value=IGNORE)
    return inputs, labels


class LanguageModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, inputs):
        return self.head(self.lstm(self.embed(inputs))[0])


def train(model, loader, optimizer, epochs):
    world_size = dist.get_world_size()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            tokens = (labels != IGNORE).sum()
            dist.all_reduce(tokens)
            logits = model(inputs)
            loss = F.cross_entropy(
                logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="sum"
            )
            # DDP averages over the ranks, and the count is already that of all ranks.
            loss = loss * world_size / tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="sentences per rank")
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--save", metavar="FILE", help="each rank saves its weights as FILE.RANK")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    corpus = make_corpus(256)
    loader = DataLoader(
        corpus, args.batch_size, sampler=DistributedSampler(corpus), collate_fn=collate
    )
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train(model, loader, optimizer, args.epochs)
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
