"""Parameters of which each rank holds a part: which ranks hold the same, and sums over the parts.

The hooks record sums of a rank's part that are linear, and begin at its place in the tensor. Their
sums over the parts are those of the whole tensor.
"""

import collections
import math


def replicas_of(optimizers):
    """Returns for each parameter the groups of ranks (positions) that hold the same part of it."""
    found = []
    for parts in zip(*(optimizer.parts for optimizer in optimizers)):
        groups = collections.defaultdict(list)
        for position, part in enumerate(parts):
            groups[None if part is None else tuple(part)].append(position)
        found.append(list(groups.values()))
    return found


def are_whole(optimizers):
    """Whether the ranks' parts make up each parameter, without gaps and overlaps."""
    for shape, *parts in zip(optimizers[0].shapes, *(o.parts for o in optimizers)):
        if None in parts:
            if any(parts):
                return False
            continue
        end = 0
        for first, number in sorted({tuple(part) for part in parts if part[1]}):
            if first != end:
                return False
            end += number
        if end != math.prod(shape):
            return False
    return True


def differing(rows, replicas):
    """Returns the indices at which ranks that hold the same part have different values."""
    return [
        index
        for index, (values, groups) in enumerate(zip(zip(*rows), replicas))
        if any(len({values[position] for position in group}) > 1 for group in groups)
    ]


def differing_group(rows, replicas, index):
    """Returns the first group of ranks whose values of one parameter differ."""
    return next(
        group for group in replicas[index] if len({rows[position][index] for position in group}) > 1
    )


def whole(optimizers, rows):
    """Returns [digests, sum, sum of squares, projection] of each whole tensor, or None.

    rows: by rank, such values of the rank's part of each parameter, or None.
    """
    if any(row is None for row in rows):
        return None
    found = []
    for groups, *values in zip(replicas_of(optimizers), *rows):
        parts = [values[group[0]] for group in groups]
        if None in parts:
            found.append(parts[0] if len(parts) == 1 else None)
            continue
        sums = [sum(part[k] for part in parts) for k in (1, 2, 3)]
        found.append([" ".join(part[0] for part in parts), *sums])
    return found


def whole_gradients(optimizers, steps):
    return whole(optimizers, [step.gradients for step in steps])
