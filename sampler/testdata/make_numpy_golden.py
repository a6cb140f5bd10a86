#!/usr/bin/env python3
"""Writes numpy's legacy shuffles of 0, 1, ..., N - 1, for the test.

    python3 sampler/testdata/make_numpy_golden.py \\
        > sampler/testdata/numpy_golden.txt

needs numpy (Debian: python3-numpy). The build and the tests do not need it: the
output is in the repository. Each line is one record, with fields separated by
one space:

    list SEED N VALUE...
    hash SEED N COUNT HASH VALUE...

`list` has all values; `hash` has their number, a hash, and the first and the
last three. Lines that start with # are comments. numpy 1.24, 1.26 and 2.4 write
the same records.
"""

import sys

import numpy

SEEDS = (0, 1, 5, 42, 2**31 - 1, 2**31, 2**32 - 1)
LISTED_SIZES = tuple(range(1, 21))
HASHED_SIZES = (
    tuple(2**bits + delta for bits in range(5, 13) for delta in (-1, 0, 1))
    # One block of the generator is 624 draws, and some of them are rejected.
    + (400, 500, 623, 624, 625, 1000, 60000, 65536, 65537)
)
LARGE = ((1281167, 0), (1281167, 2**32 - 1), (2**21 + 1, 3))


def hash_of(values):
    """Returns a polynomial hash modulo 2**64 of the values in their order."""
    value = 0
    for item in values:
        value = (value * 6364136223846793005 + item + 1) % 2**64
    return value


def draw(size, seed):
    values = list(range(size))
    numpy.random.RandomState(seed).shuffle(values)
    array = numpy.arange(size)
    numpy.random.RandomState(seed).shuffle(array)
    assert array.tolist() == values  # numpy has a separate loop for arrays.
    return values


def emit_hash(size, seed):
    values = draw(size, seed)
    ends = values[:3] + values[-3:]
    print("hash", seed, size, len(values), hash_of(values), *ends)


def main():
    sys.stdout.reconfigure(newline="\n")
    print("# numpy", numpy.__version__, "written by make_numpy_golden.py")
    for seed in SEEDS:
        for size in LISTED_SIZES:
            print("list", seed, size, *draw(size, seed))
        for size in HASHED_SIZES:
            emit_hash(size, seed)
    for size, seed in LARGE:
        emit_hash(size, seed)


if __name__ == "__main__":
    main()
