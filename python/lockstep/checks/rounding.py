"""What rounding can do to gradients, which a record holds as norms, sums and projections.

Repeated runs show it: their samples have another order, and their first parameters are moved by
half a unit in the last place. A tensor's deviation is the largest of those of its norm, its
projection and its sum (over the square root of its size), relative to its norm, or to a thousandth
of the largest tensor's norm if that is more.

    allowed = 8 * spread + 4 * ranks * 2^-24 * sqrt(size)

The spread is the largest deviation of the repeated runs, over all tensors and all updates so far.
The factor 8 is that of //conformance:check (judge/compare.h): N ranks round once more for each
rank. The second part bounds the rounding of N partial sums, by Cauchy and Schwarz. If 8 * spread
exceeds 1%, nothing more is compared.

Where numbers are rounded to a narrower type than float32 (autocast, TF32), the first parameters are
moved by half a unit of that type.
"""

import math

LIMIT = 0.01
FACTOR = 8
UNIT = 2.0**-24
RELATIVE_FLOOR = 1e-3
# The spacing of a type's numbers at 1.
SPACINGS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-10}


def scales_of(gradients):
    norms = [0.0 if g is None else math.sqrt(g[2]) for g in gradients]
    floor = RELATIVE_FLOOR * max(norms, default=0.0)
    return [max(norm, floor) for norm in norms]


def deviation(got, want, size, scale):
    """Returns how far a gradient is from the wanted one, relative to `scale`."""
    if got is None or want is None:
        other = got or want
        return math.sqrt(other[2]) / scale if other and other[2] and scale else 0.0
    if scale == 0:
        return 0.0 if got[2] == 0 else math.inf
    parts = (
        abs(math.sqrt(got[2]) - math.sqrt(want[2])),
        abs(got[3] - want[3]),
        abs(got[1] - want[1]) / math.sqrt(max(size, 1)),
    )
    return max(parts) / scale


def deviations(got, want, sizes):
    """Returns the deviation of each tensor of an update. Equal bits do not deviate."""
    scales = scales_of(want)
    return [
        0.0 if g and w and g[0] == w[0] else deviation(g, w, size, scale)
        for g, w, size, scale in zip(got, want, sizes, scales)
    ]


def allowed(spread, ranks, size):
    return FACTOR * spread + 4 * ranks * UNIT * math.sqrt(size)


def spacing_of(run):
    """Returns the spacing at 1 of the narrowest type that a run rounds to, or 0 for float32's."""
    kinds = [event["dtype"] for rank in run.ranks for event in rank.of("autocast")]
    for rank in run.ranks:
        for event in rank.of("numerics"):
            kinds += event["narrow"] + ["tf32"] * event["tf32"]
    return max((SPACINGS.get(kind, 0.0) for kind in kinds), default=0.0)


def first_draw(ranks):
    """Returns the first update before which a script drew random numbers by itself, or None."""
    drew = [
        step.update
        for rank in ranks
        for optimizer in rank.optimizers.values()
        for step in optimizer.steps
        if step.drew
    ]
    return min(drew, default=None)


def draws_in_layers(run):
    """Whether a layer of a model draws random numbers, as Dropout does."""
    optimizers = [o for rank in run.ranks for o in rank.optimizers.values()]
    return any(model.get("random") for o in optimizers for model in o.models)
