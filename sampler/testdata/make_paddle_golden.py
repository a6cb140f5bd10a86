#!/usr/bin/env python3
"""Writes the batches of Paddle's DistributedBatchSampler, for the golden test.

    python3 sampler/testdata/make_paddle_golden.py \\
        > sampler/testdata/paddle_golden.txt

needs PaddlePaddle. The build and the tests do not need it: the output is in the
repository. Each line is one record, with fields separated by one space:

    list N P BATCH DROP_LAST SHUFFLE EPOCH ITERATION RANK INDEX,... INDEX,...
    hash N P BATCH DROP_LAST SHUFFLE EPOCH ITERATION BATCHES COUNT HASH
    error N P BATCH DROP_LAST SHUFFLE EPOCH ITERATION

N is the size of the data set, P the number of ranks, BATCH the size of a batch.
EPOCH is the argument of set_epoch before the first iteration over the object,
or - if set_epoch was not called. ITERATION is 0 for the first iteration after
that, 1 for the next, and so on, without set_epoch between them. `list` has the batches of one
rank, indices joined by commas; `hash` has the number of batches, the number of
indices and a hash of all ranks; `error` says that Paddle raises an exception.
Lines that start with # are comments. Paddle 2.6 and 3.3 write the same records.
"""

import itertools
import sys

import paddle
from paddle.io import DistributedBatchSampler

SIZES = (1, 2, 3, 5, 7, 10, 11, 16, 31, 100)
WORLD_SIZES = (1, 2, 3, 4, 5, 8)
BATCH_SIZES = (1, 2, 3, 4, 7)
LAST_EPOCH = 2**32 - 1  # numpy takes no larger seed.
# The epoch (None for no set_epoch) and the number of iterations.
SHUFFLED = ((None, 3), (0, 1), (1, 2), (5, 1), (LAST_EPOCH, 1))

LISTED_SIZES = (1, 3, 7, 10, 11, 16)
LISTED_WORLD_SIZES = (1, 2, 3, 4)
LISTED_BATCH_SIZES = (1, 2, 3)


def hash_step(value, item):
    return (value * 6364136223846793005 + item) % 2**64


def hash_of(ranks):
    """Returns a polynomial hash modulo 2**64 over index + 1, with a 0 after each
    batch and after each rank. It depends on values, order and batch ends."""
    value = 0
    for batches in ranks:
        for batch in batches:
            for index in batch:
                value = hash_step(value, index + 1)
            value = hash_step(value, 0)
        value = hash_step(value, 0)
    return value


def create(size, world_size, batch_size, drop_last, shuffle, rank):
    return DistributedBatchSampler(
        range(size),
        batch_size,
        num_replicas=world_size,
        rank=rank,
        shuffle=shuffle,
        drop_last=drop_last,
    )


def check_batches(batches, batch_size, drop_last):
    """Checks that only the last batch is smaller, as the file's readers assume."""
    lengths = [len(batch) for batch in batches]
    assert all(length == batch_size for length in lengths[:-1])
    assert all(0 < length <= batch_size for length in lengths[-1:])
    assert not drop_last or all(length == batch_size for length in lengths)


def draw(options, epoch, iterations):
    """Returns every rank's batches, for each iteration."""
    drawn = [[] for _ in range(iterations)]
    for rank in range(options[1]):
        sampler = create(*options, rank)
        if epoch is not None:
            sampler.set_epoch(epoch)
        for iteration in range(iterations):
            batches = list(sampler)
            check_batches(batches, options[2], options[3])
            drawn[iteration].append(batches)
    return drawn


def key_of(options, epoch, iteration):
    size, world_size, batch_size, drop_last, shuffle = options
    flags = (int(drop_last), int(shuffle))
    start = "-" if epoch is None else epoch
    return (size, world_size, batch_size, *flags, start, iteration)


def emit(options, epoch, iterations, listed):
    for iteration, ranks in enumerate(draw(options, epoch, iterations)):
        key = key_of(options, epoch, iteration)
        if listed:
            for rank, batches in enumerate(ranks):
                joined = [",".join(map(str, batch)) for batch in batches]
                print("list", *key, rank, *joined)
        batches = list(itertools.chain(*ranks))
        count = sum(map(len, batches))
        print("hash", *key, len(batches), count, hash_of(ranks))


def emit_error(options, epoch, iteration):
    """Checks that this iteration raises and earlier ones do not; prints it."""
    for rank in range(options[1]):
        sampler = create(*options, rank)
        if epoch is not None:
            sampler.set_epoch(epoch)
        for _ in range(iteration):
            list(sampler)
        try:
            list(sampler)
        except (AssertionError, ValueError):
            continue
        raise RuntimeError(f"no exception: {options} {epoch} {iteration}")
    print("error", *key_of(options, epoch, iteration))


def emit_grid():
    for size, world_size, batch_size, drop_last in itertools.product(
        SIZES, WORLD_SIZES, BATCH_SIZES, (False, True)
    ):
        listed = (
            size in LISTED_SIZES
            and world_size in LISTED_WORLD_SIZES
            and batch_size in LISTED_BATCH_SIZES
        )
        options = (size, world_size, batch_size, drop_last)
        # Without shuffling, every iteration is the same for any epoch.
        emit((*options, False), None, 2 if size == 11 else 1, listed)
        for epoch, iterations in SHUFFLED:
            emit(
                (*options, True), epoch, iterations, listed and epoch is None
            )


def emit_edges():
    for options in ((0, 1, 2, False, False), (0, 2, 3, True, True)):
        emit(options, None, 1, True)
    emit((11, 2, 3, False, False), LAST_EPOCH + 1, 1, True)
    for options in ((11, 2, 3, False, True), (20, 8, 2, True, True)):
        emit_error(options, LAST_EPOCH, 1)
        emit_error(options, LAST_EPOCH + 1, 0)
        emit_error(options, -1, 0)


def emit_large():
    for world_size, batch_size, drop_last in itertools.product(
        (1, 8), (64, 1000), (False, True)
    ):
        emit((60000, world_size, batch_size, drop_last, True), 5, 2, False)
    emit((1281167, 1, 256, False, True), 89, 1, False)
    emit((1281167, 8, 256, True, True), None, 1, False)
    emit((1281167, 8, 256, False, False), None, 1, False)


def main():
    sys.stdout.reconfigure(newline="\n")
    print("# paddle", paddle.__version__, "written by make_paddle_golden.py")
    emit_grid()
    emit_edges()
    emit_large()


if __name__ == "__main__":
    main()
