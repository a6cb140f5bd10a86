#!/usr/bin/env python3
"""Predicts the next value of a series with a GRU. Needs the package accelerate (1.0 or newer).

torchrun --nproc_per_node=2 accelerate_accumulation.py"""
from argparse import ArgumentParser
from importlib.util import find_spec
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if find_spec("accelerate") is None:
    print("accelerate_accumulation.py needs the package accelerate", file=sys.stderr)
    sys.exit(77)

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


def series(count=384, length=12):
    g = torch.Generator().manual_seed(14)
    phase, speed = torch.rand(2, count, 1, generator=g)
    values = torch.sin(6.3 * phase + (0.3 + speed) * torch.arange(length + 1))
    return TensorDataset(values[:, :-1, None], values[:, -1:])


parser = ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulation-steps", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.2)
parser.add_argument("--save")
args = parser.parse_args()

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=args.accumulation_steps,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
torch.manual_seed(1)
model = Forecast()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader = DataLoader(series(), args.batch_size, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loss_function = nn.MSELoss()
for epoch in range(args.epochs):
    for past, future in loader:
        with accelerator.accumulate(model):
            loss = loss_function(model(past), future)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
if args.save:
    state = accelerator.unwrap_model(model).state_dict()
    torch.save(state, f"{args.save}.{accelerator.process_index}")
accelerator.end_training()
