# Character model trained with DDP and gradient accumulation.
# usage: torchrun --nproc_per_node=2 ddp_accumulation.py --accumulation-steps 4
import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 16


class Walks(Dataset):
    """Random walks on a ring of letters, always by one or two letters."""

    def __init__(self, size=512, length=12):
        generator = torch.Generator().manual_seed(7)
        start = torch.randint(VOCABULARY, (size, 1), generator=generator)
        moves = torch.randint(1, 3, (size, length), generator=generator)
        self.text = torch.cat([start, start + moves.cumsum(1)], dim=1) % VOCABULARY

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        return self.text[index, :-1], self.text[index, 1:]


class CharModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, text):
        hidden, _ = self.rnn(self.embedding(text))
        return self.out(hidden)


def main(args):
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    data = Walks()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(CharModel())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (text, target) in enumerate(loader):
            update = (i + 1) % args.accumulation_steps == 0
            with contextlib.nullcontext() if update else model.no_sync():
                logits = model(text)
                loss = criterion(logits.flatten(0, 1), target.flatten())
                (loss / args.accumulation_steps).backward()
            if update:
                optimizer.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: last loss {loss.item():.4f}")

    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation-steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", default="", help="prefix of the weights' files")
    main(parser.parse_args())
