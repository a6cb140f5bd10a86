"""Measures what the hooks cost in a training step of ResNet-18 on the CPU: time and memory.

usage: python -m lockstep run --nproc=1 --first=0 --every=2 -- python3 step_overhead.py [STEPS]
       python3 step_overhead.py [STEPS]   (without hooks: the memory to compare with)
flags: --batch=N --image_size=N

Three steps with hooks and two without take turns in one process. The first of the three is left
out: it digests parameters that moved without hooks, as no step of a user's run does. With
--every=2, gradients are recorded in every second step that has hooks. Prints medians for each kind
of step, their page faults, the slowdown of neighbouring steps, and the memory of the process. Needs
torchvision.
"""

import argparse
import resource
import statistics
import sys
import time

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

PLAIN, LIGHT, DETAILED = "without hooks", "parameters", "parameters and gradients"
TURN = 5
HOOKED = 3  # Of each turn, the first one left out.


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int, nargs="?", default=20, help="of each kind with hooks")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image_size", type=int, default=64)
    return parser.parse_args()


class Hooks:
    """Turns the hooks of this process on and off, if it has any."""

    def __init__(self):
        module = sys.modules.get("_lockstep.hooks.recorder")
        self.recorder = module and module.active

    def choose(self, number):
        """Returns the kind of step `number`, and turns the hooks on or off for it."""
        if self.recorder is None:
            return PLAIN
        hooked = number % TURN < HOOKED
        self.recorder.quiet.depth = int(not hooked)  # 1: the hooks return at once.
        if not hooked:
            return PLAIN
        (state,) = self.recorder.optimizers.known.values()
        return DETAILED if state.in_detail() else LIGHT


def main():
    flags = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(TURN * flags.batch, 3, flags.image_size, flags.image_size)
    dataset = TensorDataset(images, torch.randint(0, 1000, (len(images),)))
    model = torchvision.models.resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    hooks, times = Hooks(), []
    batches = iter(())
    for number in range(TURN * (flags.steps + 1)):
        kind = hooks.choose(number)
        if number % TURN == 0:
            batches = iter(DataLoader(dataset, flags.batch, shuffle=True))
        start = time.perf_counter(), time.process_time(), page_faults()
        inputs, labels = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        end = time.perf_counter(), time.process_time(), page_faults()
        times.append((kind, *(b - a for a, b in zip(start, end))))
    report([times[i : i + TURN] for i in range(TURN, len(times), TURN)])  # The first warms up.
    print("memory: peak %.1f MB, parameters %.1f MB"
          % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
             sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20))


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def report(turns):
    columns = "step records", "steps", "median", "processor time", "page faults, median and most"
    print("%-26s %6s %9s %14s %s" % columns)
    kept = [step for turn in turns for step in turn[1:]]
    for kind in (PLAIN, LIGHT, DETAILED):
        steps = [step for step in kept if step[0] == kind]
        if steps:
            seconds, processor, faults = list(zip(*steps))[1:]
            medians = [1e3 * statistics.median(values) for values in (seconds, processor)]
            counts = statistics.median(faults), max(faults)
            print("%-26s %6d %6.0f ms %11.0f ms %10.0f %d" % (kind, len(steps), *medians, *counts))
    pairs = [pair for turn in turns for pair in zip(turn[1:HOOKED], turn[HOOKED:])]
    pairs += [(turn[HOOKED + 1], turn[HOOKED]) for turn in turns]  # Shows the noise.
    for kind in (PLAIN, LIGHT, DETAILED):
        for what, i in (("time", 1), ("processor time", 2)):
            slower = sorted(100 * (a[i] / b[i] - 1) for a, b in pairs if a[0] == kind)
            if slower:
                print("slowdown in %s, %s: median %+.1f%%, slowest tenth %+.1f%%"
                      % (what, kind, statistics.median(slower), slower[-max(1, len(slower) // 10)]))


if __name__ == "__main__":
    main()
