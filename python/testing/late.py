"""Scripts whose ranks wait for one another in vain, or longer than usual.

usage: late.py KIND
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def different_calls():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.broadcast(torch.ones(4), 0)
        dist.barrier()


def different_sizes():
    dist.all_reduce(torch.ones(4 + 4 * dist.get_rank()))
    dist.barrier()


def missing_call():
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(4))
    else:
        time.sleep(1000)


def two_late():
    """Two of four ranks do not issue the call."""
    if dist.get_rank() % 2 == 0:
        dist.all_reduce(torch.ones(4))
    else:
        time.sleep(1000)


def never_joins():
    if os.environ["RANK"] == "1":
        time.sleep(1000)


def joins_late():
    """Rank 1 joins three seconds later than ranks usually do (forks.py)."""
    if os.environ["RANK"] == "1":
        time.sleep(3 + float(os.environ["JOIN_SECONDS"]))


def larger_world():
    os.environ["WORLD_SIZE"] = "3"


def leaves_before():
    if os.environ["RANK"] == "1":
        sys.exit(0)


def killed():
    """Rank 1 is killed, and rank 0 goes on for ever."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.barrier()
    except RuntimeError:
        time.sleep(1000)


def exits():
    """Rank 1 exits with a status, and rank 0 goes on for ever."""
    if dist.get_rank() == 1:
        sys.exit(3)
    time.sleep(1000)


def computes():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))
    else:
        while True:
            torch.ones(4).sum()


def order_of_groups():
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    if dist.get_rank() == 1:
        groups.reverse()
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)


def exits_early():
    if dist.get_rank() == 0:
        dist.barrier()


def steps(pause, count=STEPS):
    """Reduces a number in each step, after pause(step) seconds on rank 1."""
    for step in range(count):
        time.sleep(pause(step) if dist.get_rank() == 1 else 0.01)
        dist.all_reduce(torch.ones(4))


def sleeps():
    steps(lambda step: 2.5 if step == 7 else 0.01)


def uneven():
    steps(lambda step: 0.05 * (step % 7))


def slow():
    """Rank 1 is slow in each step, which is usual from the second step on."""
    steps(lambda step: 1.5, count=3)


def backward():
    """Rank 1 sleeps once before a step, so that rank 0 waits in its backward pass."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == 7 and dist.get_rank() == 1:
            time.sleep(2.5)
        model(torch.ones(4, 6) + dist.get_rank()).square().mean().backward()
        optimizer.step()


KINDS = (
    backward,
    computes,
    different_calls,
    different_sizes,
    exits,
    exits_early,
    killed,
    missing_call,
    order_of_groups,
    sleeps,
    slow,
    two_late,
    uneven,
)
BEFORE_THE_GROUP = (joins_late, larger_world, leaves_before, never_joins)

if __name__ == "__main__":
    torch.set_num_threads(1)
    before = {kind.__name__: kind for kind in BEFORE_THE_GROUP}.get(sys.argv[1])
    if before:
        before()
    dist.init_process_group("gloo")
    {kind.__name__: kind for kind in KINDS}.get(sys.argv[1], dist.barrier)()
    dist.destroy_process_group()
