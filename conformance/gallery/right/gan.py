# A small GAN on a ring of Gaussians: two networks, two optimizers, both under DDP.
# torchrun --nproc_per_node=2 gan.py
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def ring(count=512):
    gen = torch.Generator().manual_seed(77)
    angle = 0.7854 * torch.randint(8, (count,), generator=gen)
    points = torch.stack([angle.cos(), angle.sin()], 1)
    return TensorDataset(points + 0.05 * torch.randn(count, 2, generator=gen))


def mlp(inputs, outputs, hidden=32):
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
        nn.Linear(hidden, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--latent", type=int, default=4)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)  # Each rank draws its own noise.

    dataset = ring()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    generator = DDP(mlp(args.latent, 2))
    critic = DDP(mlp(2, 1), broadcast_buffers=False)
    opt_g = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    opt_c = torch.optim.Adam(critic.parameters(), lr=2 * args.lr, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), args.latent))

            both = critic(torch.cat([real, fake.detach()]))
            loss_c = bce(both, torch.cat([ones, zeros]))
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()

            critic.requires_grad_(False)
            loss_g = bce(critic.module(fake), ones)
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
            critic.requires_grad_(True)
        if rank == 0:
            print(f"epoch {epoch}: critic {loss_c.item():.3f} generator {loss_g.item():.3f}")

    if args.save:
        weights = nn.ModuleDict({"generator": generator.module, "critic": critic.module})
        torch.save(weights.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
