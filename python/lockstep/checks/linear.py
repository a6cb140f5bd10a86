"""Sums of vectors that are known only by linear functions of them, such as recorded gradients."""

import math

# Two features of gradients are equal if they differ by less: float32 sums of up to a million terms
# whose roundings are independent, with a margin of a hundred.
EQUAL = 2e-5


def used(gradients):
    """Returns the sums and projections of the gradients that an update used, or None."""
    if gradients is None or any(g is None for g in gradients):
        return None
    return [value for g in gradients for value in (g[1], g[3])]


def own(step):
    """Returns the same of the gradients that a rank's backward passes made, or None."""
    if step.local is None or any(part is None for part in step.local):
        return None
    return [value for part in step.local for value in (part[1], part[2])]


def mean(vectors):
    return [sum(values) / len(vectors) for values in zip(*vectors)]


def dot(one, other):
    return sum(a * b for a, b in zip(one, other))


def norm(values):
    return math.sqrt(dot(values, values))


def rest(columns, weights, want):
    """Returns the part of `want` that the weighted columns leave, relative to `want`."""
    left = [w - sum(k * c[i] for k, c in zip(weights, columns)) for i, w in enumerate(want)]
    size = norm(want)
    return norm(left) / size if size else math.inf


def fit(columns, want):
    """Returns the weights of the columns whose sum is nearest to `want`, or None if not unique.

    Solves the normal equations by Gauss and Jordan, with unit columns and pivots.
    """
    lengths = [norm(column) for column in columns]
    if not all(0 < length < math.inf for length in lengths):
        return None
    units = [[v / length for v in column] for column, length in zip(columns, lengths)]
    rows = [[dot(one, other) for other in units] + [dot(one, want)] for one in units]
    for k in range(len(rows)):
        pivot = max(range(k, len(rows)), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        if abs(rows[k][k]) < 1e-6:  # The columns depend on each other.
            return None
        rows[k] = [v / rows[k][k] for v in rows[k]]
        for i, row in enumerate(rows):
            if i != k:
                rows[i] = [v - row[k] * p for v, p in zip(row, rows[k])]
    return [row[-1] / length for row, length in zip(rows, lengths)]
