#!/usr/bin/env python
# Synchronous SGD with plain all_reduce, no DDP.
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.fc = nn.Linear(16 * 3 * 3, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc(x.flatten(1))


def make_images(count):
    """12 x 12 images with a bright square in one of four corners."""
    gen = torch.Generator().manual_seed(1234)
    images = torch.rand(count, 1, 12, 12, generator=gen)
    labels = torch.randint(4, (count,), generator=gen)
    for image, label in zip(images, labels.tolist()):
        row, col = 6 * (label // 2), 6 * (label % 2)
        image[0, row:row + 5, col:col + 5] += 0.4
    return images, labels


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= size


def run(rank, size, args):
    torch.manual_seed(1234)
    images, labels = make_images(480)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)

    global_batch = args.batch_size * size
    for epoch in range(args.epochs):
        # All ranks draw the same permutation; each takes its slice of every batch.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        epoch_loss = 0.0
        for start in range(0, len(order) - global_batch + 1, global_batch):
            mine = order[start + rank * args.batch_size:start + (rank + 1) * args.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print('Rank', rank, ', epoch', epoch, ':', epoch_loss / (len(order) // global_batch))

    if args.save:
        torch.save(model.state_dict(), args.save + '.' + str(rank))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=20)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--save', default=None)
    args = parser.parse_args()
    dist.init_process_group('gloo', rank=int(os.environ['RANK']),
                            world_size=int(os.environ['WORLD_SIZE']))
    run(dist.get_rank(), dist.get_world_size(), args)
    dist.destroy_process_group()
