"""Measures what the hooks cost in a training step of ResNet-18 on the CPU.

usage: python -m lockstep run --nproc=1 [--first=N] [--every=N] -- python3 step_overhead.py [STEPS]

Steps with and without hooks take turns in one process. Prints medians, and the slowdown of the
median and of the slowest tenth. Needs torchvision.
"""

import statistics
import sys
import time

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

BATCH = 16


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = BATCH * (2 * steps + 2)
    dataset = TensorDataset(torch.randn(count, 3, 64, 64), torch.randint(0, 1000, (count,)))
    model = torchvision.models.resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    quiet = sys.modules["_lockstep.hooks.recorder"].active.quiet
    times = {0: [], 1: []}
    batches = iter(DataLoader(dataset, BATCH))
    for number in range(2 * steps + 2):
        quiet.depth = number % 2  # 1: the hooks return at once.
        start = time.perf_counter()
        images, labels = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if number >= 2:  # The first step of each kind warms up.
            times[number % 2].append(time.perf_counter() - start)
    quiet.depth = 0
    report(times[0], times[1])


def report(hooked, plain):
    for name, values in (("with hooks", hooked), ("without", plain)):
        tenth = sorted(values)[-max(1, len(values) // 10)]
        print("%-10s median %.1f ms, slowest tenth %.1f ms, %d steps"
              % (name, 1e3 * statistics.median(values), 1e3 * tenth, len(values)))
    pairs = sorted(a / b - 1 for a, b in zip(hooked, plain))
    print("slowdown of neighbouring steps: median %+.1f%%, slowest tenth %+.1f%%"
          % (100 * statistics.median(pairs), 100 * pairs[-max(1, len(pairs) // 10)]))


if __name__ == "__main__":
    main()
