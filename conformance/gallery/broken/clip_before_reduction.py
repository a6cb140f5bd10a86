#!/usr/bin/env python3
"""Data-parallel training of a recurrent network with all_reduce and gradient clipping."""
import argparse
import torch
import torch.distributed as dist
import torch.nn as nn


class Counter(nn.Module):
    """Counts the ones of a bit string."""

    def __init__(self, hidden=24):
        super().__init__()
        self.rnn = nn.RNN(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, bits):
        states, _ = self.rnn(bits)
        return self.out(states[:, -1])


def reduce_gradients(model):
    # One call for all gradients.
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, reduced in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(reduced.view_as(g))


def train(args):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    bits = torch.randint(2, (320, 10, 1), generator=torch.Generator().manual_seed(2)).float()
    counts = bits.sum(1)
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    step_size = args.batch_size * world_size
    for epoch in range(args.epochs):
        order = torch.randperm(len(bits), generator=torch.Generator().manual_seed(epoch))
        for step in range(len(bits) // step_size):
            batch = order[step * step_size:(step + 1) * step_size][rank::world_size]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(bits[batch]), counts[batch])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            reduce_gradients(model)
            optimizer.step()
        print(f"[rank {rank}] epoch {epoch} loss {loss.item():.4f}")
    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()
