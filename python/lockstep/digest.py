"""Digests of bytes, and sums of tensors, in numpy at several gigabytes a second.

The digest is a multilinear hash in two levels, modulo 2^64 (Carter & Wegman 1979; Lemire & Kaser
2014). The bytes are a matrix of 64-bit words with COLUMNS columns. Each column is summed with an
odd random weight for each row, so that a change of one word always shows. The sums, and the rest of
the bytes, are folded, which loses no bit, and summed with random weights. If the words that differ
in a column differ by multiples of 2^t, they cancel with a probability of at most 2^-(63-t). The
matrix therefore begins a byte or two after the tensor's begin: the highest bits of each word are
then low bits of a number, and neither its sign nor its exponent. No random number generator of the
script is touched.

Sums of float32 numbers begin with partial sums of a few terms in float32, which take the time that
reading takes. The partial sums are added in float64.
"""

import threading

import numpy as np

COLUMNS = 1 << 12  # A row of words or values, and what is computed from it, stay in the cache.
WORD = 8  # Bytes.
SHORT_ROW = 256  # Bytes: the digests of shorter rows are computed together.
TERMS = 8  # A partial sum in float32 adds as many rows, and rounds by 2^-24 of each at most.
GROUPS = 64  # Partial sums in float32 that are computed at once: 1 MiB for each column's.
RUN = 64  # A partial sum of squares in float32 adds as many: within 64 * 2^-24 of its value.
# Above, float32 loses less of a mean square to underflow than to rounding.
LEAST_MEAN_SQUARE = 1e-30
FOLD = np.uint64(29)
MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15


def _make_weights(seed, count):
    """Returns 64-bit values of SplitMix64 (Steele et al. 2014)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(ODD) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


WEIGHTS = _make_weights(0, COLUMNS + 1)
# In [-1, 1): the projection of a tensor on them is a sum that few other tensors have.
PROJECTION = (_make_weights(1, COLUMNS) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


class _Memory(threading.local):
    """One thread's memory for a row, and the rows' weights. numpy's loops let threads run."""

    def __init__(self):
        self.rest = np.empty(COLUMNS + 1, np.uint64)
        self.folded = np.empty(COLUMNS + 1, np.uint64)
        self.columns = np.empty(COLUMNS, np.uint64)
        self.partial = np.empty((GROUPS, COLUMNS), np.float32)
        self.values, self.squares = np.empty((2, COLUMNS), np.float64)
        self.row_weights = np.empty(0, np.uint64)

    def weights_of(self, rows):
        if rows > self.row_weights.size:
            self.row_weights = _make_weights(2, 2 * rows) | np.uint64(1)
        return self.row_weights[:rows]


_memory = _Memory()


def _hash(words):
    """Returns the sum of the folded words times WEIGHTS."""
    folded = _memory.folded[: words.size]
    np.right_shift(words, FOLD, out=folded)
    np.bitwise_xor(folded, words, out=folded)
    return int(folded.dot(WEIGHTS[: words.size]))


def digest(array):
    """Returns the digest of a contiguous array's bytes and of their number, as 16 hex digits.

    The size of an element decides where the matrix begins: use one type for what is compared.
    """
    flat = array.reshape(-1).view(np.uint8)
    value = flat.size
    shift = 2 if array.itemsize >= 4 else 1
    rows = max(0, flat.size - shift) // (COLUMNS * WORD)
    end = 0
    if rows:
        end = shift + rows * COLUMNS * WORD
        matrix = flat[shift:end].view(np.uint64).reshape(rows, COLUMNS)
        weights = _memory.weights_of(rows)
        value = value * ODD + _hash(np.einsum("ij,i->j", matrix, weights, out=_memory.columns))
    rest = _memory.rest[: (flat.size - end + (shift if rows else 0) + WORD - 1) // WORD]
    if rest.size:
        rest[-1] = 0
        bytes_of_rest = rest.view(np.uint8)
        bytes_of_rest[: flat.size - end] = flat[end:]
        if rows:
            bytes_of_rest[flat.size - end : flat.size - end + shift] = flat[:shift]
        value = value * ODD + _hash(rest)
    return "%016x" % (value & MASK)


def _values_of_columns(flat):
    """Returns the sums of columns of COLUMNS or fewer numbers, in float64."""
    if flat.size < COLUMNS:
        return flat.astype(np.float64)
    columns = _memory.values
    columns.fill(0)
    done = 0
    if flat.dtype == np.float32 and flat.size >= TERMS * COLUMNS:
        with np.errstate(over="ignore", invalid="ignore"):
            done = _add_partial_sums(flat, columns)
        if not np.isfinite(columns).all():  # A sum in float64 may be finite.
            columns.fill(0)
            done = 0
    rows = (flat.size - done) // COLUMNS
    if rows:
        matrix = flat[done : done + rows * COLUMNS].reshape(rows, COLUMNS)
        columns += np.add.reduce(matrix, axis=0, dtype=np.float64)
    rest = flat[done + rows * COLUMNS :]
    columns[: rest.size] += rest
    return columns


def _add_partial_sums(flat, columns):
    """Adds the sums of TERMS rows each to the columns. Returns the number of values added."""
    groups = flat.size // (TERMS * COLUMNS)
    matrix = flat[: groups * TERMS * COLUMNS].reshape(groups, TERMS, COLUMNS)
    for first in range(0, groups, GROUPS):
        some = matrix[first : first + GROUPS]
        partial = np.add.reduce(some, axis=1, out=_memory.partial[: len(some)])
        columns += np.add.reduce(partial, axis=0, dtype=np.float64)
    return groups * TERMS * COLUMNS


def linear_sums(array, first=0):
    """Returns the sum and the projection of real numbers, in float64.

    The projection is the sum of value times PROJECTION, which repeats every COLUMNS elements. Both
    are linear: those of a sum of arrays are the sums of theirs. If the array is a run of a larger
    one that begins at its element `first`, the runs' values add up to those of the larger array.
    Error: at most TERMS * 2^-24 times the sum of the absolute values of float32 numbers.
    """
    columns = _values_of_columns(array.reshape(-1))
    total = float(np.add.reduce(columns))
    weights = np.roll(PROJECTION, -(first % COLUMNS)) if first else PROJECTION
    columns *= weights[: columns.size]
    return [total, float(np.add.reduce(columns))]


def sum_of_squares(flat):
    """Returns the sum of squares in float64. Error: at most RUN * 2^-24 of it for float32."""
    if flat.size < COLUMNS:
        values = flat.astype(np.float64)
        return float(values.dot(values))
    if flat.dtype == np.float32:
        runs = flat.size // RUN
        matrix = flat[: runs * RUN].reshape(runs, RUN)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            squares = float(np.einsum("ij,ij->i", matrix, matrix).sum(dtype=np.float64))
        if LEAST_MEAN_SQUARE * flat.size < squares < np.inf:
            rest = flat[runs * RUN :].astype(np.float64)
            return squares + float(rest.dot(rest))
    rows = flat.size // COLUMNS
    rest = flat[rows * COLUMNS :].astype(np.float64)
    squares = float(rest.dot(rest))
    if rows:
        matrix = flat[: rows * COLUMNS].reshape(rows, COLUMNS)
        columns = np.einsum("ij,ij->j", matrix, matrix, dtype=np.float64, out=_memory.squares)
        squares += float(np.add.reduce(columns))
    return squares


def sums(array, first=0):
    """Returns the sum, the sum of squares and the projection of real numbers, in float64."""
    flat = array.reshape(-1)
    total, projection = linear_sums(flat, first)
    return [total, sum_of_squares(flat), projection]


def row_digests(arrays):
    """Returns the digests of the rows of several arrays that have the same number of rows.

    arrays: contiguous, of any types. Row i of the result depends on row i of every array.
    """
    columns = [digests_of_rows(array.reshape(array.shape[0], -1)) for array in arrays]
    if len(columns) == 1:
        return columns[0]
    return [combine(row) for row in zip(*columns)]


def digests_of_rows(matrix):
    """Returns digest(row) for each row."""
    size = matrix.shape[1] * matrix.itemsize
    if size > SHORT_ROW:
        return [digest(row) for row in matrix]
    padded = np.zeros((matrix.shape[0], (size + WORD - 1) // WORD * WORD), np.uint8)
    padded[:, :size] = matrix.view(np.uint8)
    words = padded.view(np.uint64)
    words ^= words >> FOLD
    values = np.zeros(len(words), np.uint64)
    if size:
        values = words @ WEIGHTS[: words.shape[1]] + np.uint64(size * ODD & MASK)
    return ["%016x" % value for value in values.tolist()]


def combine(digests):
    """Returns one digest of a sequence of digests and Nones, in order."""
    value = len(digests)
    for text in digests:
        value = (value * ODD + (int(text, 16) if text else 1)) & MASK
        value ^= value >> 29
    return "%016x" % value
