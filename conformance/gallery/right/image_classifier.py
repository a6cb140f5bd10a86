"""Image classification in the style of reference scripts: DDP, batch norm, augmentation, best model.
torchrun --nproc_per_node=2 image_classifier.py --epochs 3"""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Checkers(Dataset):
    """Chessboards of several field sizes, in noise; training images are flipped at random."""

    def __init__(self, size, train):
        gen = torch.Generator().manual_seed(int(train))
        self.labels = torch.randint(3, (size,), generator=gen)
        self.noise = 0.8 * torch.randn(size, 1, 16, 16, generator=gen)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = self.labels[index].item()
        field = torch.arange(16) // 2 ** (label + 1)
        image = self.noise[index] + (field[:, None] + field) % 2
        if self.train and random.random() < 0.5:
            image = image.flip(2)
        return image, label


class ConvNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * width, 3)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(self.dropout(x.mean((2, 3))))


def train_one_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return loss.item()


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(args.seed + rank)
    torch.manual_seed(args.seed + rank)  # DDP starts from rank 0's weights.

    train_set, val_set = Checkers(250, train=True), Checkers(75, train=False)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    val_loader = DataLoader(val_set, args.batch_size)
    model = DDP(ConvNet())
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 1e-3}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, nesterov=True)
    scheduler = MultiStepLR(optimizer, milestones=[2], gamma=0.1)

    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer)
        scheduler.step()
        if rank == 0:
            accuracy = evaluate(model.module, val_loader)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}")
            best = max(best, accuracy)
        dist.barrier()
    if rank == 0:
        print(f"best accuracy {best:.3f}")
    if args.save:
        torch.save(model.module.state_dict(), f"{args.save}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="each rank writes SAVE.RANK")
    main(parser.parse_args())
