"""Digests of bytes, and sums of tensors, in numpy at several gigabytes a second.

The digest is a multilinear hash: the sum over 32-bit words of word times a fixed 64-bit weight,
modulo 2^64 (Carter & Wegman 1979; Lemire & Kaser 2014). Two different contents of one length
collide with a probability of at most 2^-33 over the choice of the weights. Blocks are chained by a
multiplication with an odd constant. No random number generator of the script is touched.
"""

import threading

import numpy as np

BLOCK = 1 << 15  # Words: the block and its products stay in the second-level cache.
MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15


def _make_weights(seed):
    """Returns BLOCK 64-bit values of SplitMix64 (Steele et al. 2014)."""
    z = np.arange(1, BLOCK + 1, dtype=np.uint64) * np.uint64(ODD) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


WEIGHTS = _make_weights(0)
# In [-1, 1): the projection of a tensor on them is a sum that few other tensors have.
PROJECTION = (_make_weights(1) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


class _Buffers(threading.local):
    """One thread's memory for a block. numpy lets other threads run during its loops."""

    def __init__(self):
        self.words = np.empty(BLOCK, np.uint64)
        self.values = np.empty(BLOCK, np.float64)


_buffers = _Buffers()


def words_of(array):
    """Returns the bytes of a contiguous array as uint32, padded with zeros to whole words."""
    flat = array.reshape(-1).view(np.uint8)
    if flat.size % 4 or flat.ctypes.data % 4:
        padded = np.zeros((flat.size + 3) // 4 * 4, np.uint8)
        padded[: flat.size] = flat
        flat = padded
    return flat.view(np.uint32)


def digest(array):
    """Returns the digest of a contiguous array's bytes and of their number, as 16 hex digits."""
    words = words_of(array)
    value = array.nbytes
    products = _buffers.words
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        out = products[: block.size]
        np.multiply(block, WEIGHTS[: block.size], out=out)
        value = (value * ODD + int(np.add.reduce(out))) & MASK
    return "%016x" % value


def sums(array):
    """Returns the sum, the sum of squares and the projection of real numbers, in float64.

    The projection is the sum of value times PROJECTION, which repeats every BLOCK elements. It is
    linear, as the sum is.
    """
    flat = array.reshape(-1)
    total = squares = projection = 0.0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        values = _buffers.values[: block.size]
        values[...] = block
        total += float(np.add.reduce(values))
        squares += float(values.dot(values))
        projection += float(values.dot(PROJECTION[: block.size]))
    return [total, squares, projection]


def row_digests(arrays):
    """Returns the digests of the rows of several arrays that have the same number of rows.

    arrays: contiguous, of any types. Row i of the result depends on row i of every array.
    """
    rows = arrays[0].shape[0]
    values = np.zeros(rows, np.uint64)
    with np.errstate(over="ignore"):
        for array in arrays:
            matrix = array.reshape(rows, -1).view(np.uint8)
            if matrix.shape[1] % 4:
                matrix = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 4)))
            words = np.ascontiguousarray(matrix).view(np.uint32)
            for start in range(0, words.shape[1], BLOCK):
                block = words[:, start : start + BLOCK]
                products = block * WEIGHTS[None, : block.shape[1]]
                values = values * np.uint64(ODD) + products.sum(axis=1, dtype=np.uint64)
    return ["%016x" % value for value in values.tolist()]


def combine(digests):
    """Returns one digest of a sequence of digests and Nones, in order."""
    value = len(digests)
    for text in digests:
        value = (value * ODD + (int(text, 16) if text else 1)) & MASK
        value ^= value >> 29
    return "%016x" % value
