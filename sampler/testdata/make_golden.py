#!/usr/bin/env python3
"""Writes the indices that PyTorch's DistributedSampler draws, for the golden test.

    python3 sampler/testdata/make_golden.py > sampler/testdata/torch_golden.txt

needs PyTorch (Debian: python3-torch). The build and the tests do not need it:
the output is in the repository. Each line is one record, with fields separated
by one space:

    list N P DROP_LAST SHUFFLE SEED EPOCH RANK INDEX...
    hash N P DROP_LAST SHUFFLE SEED EPOCH RANK COUNT HASH INDEX...

N is the size of the data set, P the number of ranks. `list` has all indices of
the rank (none if drop_last leaves none); `hash` has their number, a hash, and
the first and the last three. Lines that start with # are comments.
PyTorch 1.13, 2.5, 2.6 and 2.15 write the same records.
"""

import itertools
import sys

import torch
from torch.utils.data.distributed import DistributedSampler

SMALL_SIZES = (1, 2, 3, 5, 7, 10, 11, 16, 31, 100)
LISTED_UP_TO = 16
WORLD_SIZES = (1, 2, 3, 4, 5, 8)
EPOCHS = (0, 1, 5)
SEEDS = (0, 42, 2**40 + 12345)
EDGE_SEEDS = (-1, -(2**63), 2**31, 2**32 - 1, 2**32 + 42, 2**63 - 6, 2**64 - 6)


def hash_of(indices):
    """Returns a polynomial hash modulo 2**64 of the values in their order."""
    value = 0
    for index in indices:
        value = (value * 6364136223846793005 + index + 1) % 2**64
    return value


def draw(size, world_size, drop_last, shuffle, seed, epoch, rank):
    sampler = DistributedSampler(
        range(size),
        num_replicas=world_size,
        rank=rank,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def emit(size, world_size, drop_last, shuffle, seed, epoch, rank):
    indices = draw(size, world_size, drop_last, shuffle, seed, epoch, rank)
    key = (size, world_size, int(drop_last), int(shuffle), seed, epoch, rank)
    if size <= LISTED_UP_TO:
        print("list", *key, *indices)
    else:
        ends = indices[:3] + indices[-3:]
        print("hash", *key, len(indices), hash_of(indices), *ends)


def main():
    sys.stdout.reconfigure(newline="\n")
    print("# torch", torch.__version__, "written by make_golden.py")
    for size, world_size, drop_last in itertools.product(
        SMALL_SIZES, WORLD_SIZES, (False, True)
    ):
        for rank in range(world_size):
            emit(size, world_size, drop_last, False, 0, 0, rank)
            for seed, epoch in itertools.product(SEEDS, EPOCHS):
                emit(size, world_size, drop_last, True, seed, epoch, rank)
    for seed, epoch in itertools.product(EDGE_SEEDS, EPOCHS):
        emit(7, 2, False, True, seed, epoch, 1)
    for size, world_size in itertools.product((60000, 1281167), (1, 8)):
        for drop_last, epoch in itertools.product((False, True), (0, 5)):
            emit(size, world_size, drop_last, True, 42, epoch, world_size - 1)


if __name__ == "__main__":
    main()
