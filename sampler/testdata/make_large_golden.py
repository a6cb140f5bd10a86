#!/usr/bin/env python3
"""Writes draws of torch.randperm for very many elements, for the tests.

    python3 sampler/testdata/make_large_golden.py \\
        > sampler/testdata/torch_large_golden.txt

needs PyTorch 2.6 or later, numpy, 4 GiB and a few minutes. The build and the
tests do not need it: the output is in the repository. Each line is one record,
with fields separated by one space:

    hash N SEED HASH INDEX...

HASH covers all N elements; the indices are the first and the last three. Lines
that start with # are comments. PyTorch 2.6 and 2.15 write the same records.

Up to 2.5, PyTorch drew 32 bits an element for every N. Since 2.6,
aten/src/ATen/native/TensorFactories.cpp does so for N < 4294967295 / 20, an
integer division, and draws 64 bits from there on. SIZES are therefore the last
size below the bound, and the bound. The draw does not depend on the dtype.
"""

import sys

import numpy
import torch

BOUND = (2**32 - 1) // 20
SIZES = (BOUND - 1, BOUND)
SEED = 42
CHUNK = 2**22
MULTIPLIER = numpy.uint64(6364136223846793005)


def hash_of(indices):
    """Returns the sum of (index + 1) * weight(position) modulo 2**64.

    The weights are odd and look random, so that exchanged elements change the
    hash. Unlike the powers of a polynomial hash, the weights of many positions
    can be computed at once.
    """
    total = 0
    for first in range(0, len(indices), CHUNK):
        chunk = indices[first : first + CHUNK].numpy().astype(numpy.uint64)
        position = numpy.arange(first, first + len(chunk), dtype=numpy.uint64)
        weight = position * MULTIPLIER
        weight ^= weight >> numpy.uint64(29)
        weight |= numpy.uint64(1)
        total += int(((chunk + numpy.uint64(1)) * weight).sum())
    return total % 2**64


def emit(size, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    indices = torch.randperm(size, generator=generator)
    ends = indices[:3].tolist() + indices[-3:].tolist()
    print("hash", size, seed, hash_of(indices), *ends, flush=True)


def main():
    sys.stdout.reconfigure(newline="\n")
    print("# torch", torch.__version__, "written by make_large_golden.py")
    for size in SIZES:
        emit(size, SEED)


if __name__ == "__main__":
    main()
