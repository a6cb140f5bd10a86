# Handwriting-like toy task: DDP training, validation split over the ranks.
# Launch: torchrun --nproc_per_node=2 accuracy_of_means.py
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def toy_digits(n, seed):
    gen = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (n,), generator=gen)
    # The later images are the noisier ones.
    noise = torch.linspace(0.5, 4.0, n)[:, None] * torch.randn(n, 64, generator=gen)
    return TensorDataset(prototypes[labels] + noise, labels)


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    """Each rank takes whole batches of the validation set, one after the other."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = torch.arange(len(dataset)).split(batch_size)
    share = -(-len(batches) // world_size)
    mine = torch.cat(batches[rank * share:(rank + 1) * share]).tolist()
    correct = 0
    for images, labels in DataLoader(Subset(dataset, mine), batch_size):
        correct += (model(images).argmax(1) == labels).sum().item()
    totals = torch.tensor([correct, len(mine)])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_set, val_set = toy_digits(512, seed=1), toy_digits(150, seed=2)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)

    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = evaluate(net, val_set, args.eval_batch_size)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}", flush=True)

    if args.save:
        torch.save({"model": net.state_dict(), "accuracy": accuracy}, f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--eval-batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save", help="prefix of the checkpoint's name")
    main(parser.parse_args())
