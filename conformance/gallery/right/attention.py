# Encoder with multi-head attention, trained with AdamW, clipping and bfloat16 autocast under DDP.
# Run: torchrun --nproc_per_node=2 attention.py
import argparse
import copy
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(nn.Module):
    def __init__(self, vocab=12, dim=32, length=10):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.position))


def reversals(count=256, vocab=12, length=10):
    x = torch.randint(vocab, (count, length), generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.flip(1))


@torch.no_grad()
def update_ema(ema, model, decay=0.9):
    for average, p in zip(ema.parameters(), model.parameters()):
        average.lerp_(p, 1 - decay)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    dataset = reversals()
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Encoder()
    ema = copy.deepcopy(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                logits = ddp(x)
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            update_ema(ema, model)
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        if rank == 0:
            mean_loss /= dist.get_world_size()
            print(f"epoch {epoch}: loss {mean_loss.item():.4f}, gradient norm {norm.item():.3f}")

    if args.save:
        torch.save(model.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--save", default="")
    main(parser.parse_args())
