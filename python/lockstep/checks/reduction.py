"""Each update uses a multiple of the mean of the ranks' own gradients of that update.

The hooks record the sum and the projection of every gradient that a backward pass makes, and of
every gradient that an update uses. Both are linear, so the check needs no gradient itself. If an
update's gradients are another function of the ranks' own (clipped, noisy), it is not checked.
"""

import math

from ..verdict import LIKELY, Claim, Finding, compares_ranks
from . import linear, shards

NAME = "an update uses the gradients of its own backward passes"
NARROW = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # Units of rounding.


class Update:
    """What the ranks' own gradients explain of one update's gradients."""

    def __init__(self, optimizers, index):
        steps = steps_at(optimizers, index)
        self.step = steps[0]
        self.got = linear.used(shards.whole_gradients(optimizers, steps))
        owns = [linear.own(step) for step in steps]
        self.own = None if None in owns else linear.mean(owns)
        before = steps_at(optimizers, index - 1) if index else []
        self.before = linear.used(shards.whole_gradients(optimizers, before)) if index else None
        self.known = self.got is not None and self.own is not None

    def is_own(self):
        """Whether the gradients are a multiple of the mean of the ranks' own."""
        weights = linear.fit([self.own], self.got)
        return bool(weights) and linear.rest([self.own], weights, self.got) <= linear.EQUAL

    def adds_to_the_one_before(self):
        """Whether they are that, plus the whole gradient of the update before."""
        if self.before is None:
            return False
        columns = [self.own, self.before]
        weights = linear.fit(columns, self.got)
        if not weights or linear.rest(columns, weights, self.got) > linear.EQUAL:
            return False
        return abs(weights[1] - 1) <= 1e-3 and abs(weights[0]) > 1e-3

    def rounding(self):
        """Returns the part that the ranks' own gradients leave, in relation to all."""
        weights = linear.fit([self.own], self.got)
        return linear.rest([self.own], weights, self.got) if weights else math.inf


def steps_at(optimizers, index):
    return [optimizer.steps[index] for optimizer in optimizers]


def updates_of(optimizers):
    """Returns the updates whose gradients were recorded, of one optimizer on all ranks."""
    count = min(len(optimizer.steps) for optimizer in optimizers)
    updates = [Update(optimizers, index) for index in range(count)]
    return [update for update in updates if update.known]


@compares_ranks(NAME)
def check(run):
    count, findings = 0, []
    for number in sorted(run.ranks[0].optimizers):
        optimizers = [rank.optimizers.get(number) for rank in run.ranks]
        if not all(optimizers) or any(optimizer.sharded for optimizer in optimizers):
            continue
        updates = updates_of(optimizers)
        own = [update for update in updates if update.is_own()]
        added = [u for u in updates if u not in own and u.adds_to_the_one_before()]
        count += len(own) + len(added)
        if added:
            findings.append(not_cleared(run, updates, added))
            continue
        narrow = narrow_calls(run, optimizers[0])
        rounded = [u for u in updates if u not in own and narrow and is_rounded(u, narrow)]
        count += len(rounded)
        if rounded:
            findings.append(narrowed(run, rounded[0], narrow))
    why_not = "gradients are no multiple of the ranks' own, or were not recorded"
    return Claim(NAME, count, "updates", why_not), findings, []


def not_cleared(run, updates, added):
    """Names a missing zero_grad, or updates between the micro-batches of one window."""
    later = [update for update in updates if update.before is not None]
    evidence = [
        "in %d of %d updates, the gradient is the ranks' own plus that of the update before"
        % (len(added), len(later))
    ]
    cause = "not_cleared" if len(added) == len(later) else "update_per_micro_batch"
    return Finding(
        NAME,
        cause,
        evidence,
        update=added[0].step.update,
        ranks=[rank.rank for rank in run.ranks],
        line=added[0].step.line,
    )


def narrow_calls(run, optimizer):
    """Returns the reductions in a 16-bit type of as many numbers as the parameters have."""
    sizes = {math.prod(shape) for shape in optimizer.shapes}
    sizes.add(sum(math.prod(shape) for shape in optimizer.shapes))
    if "float32" not in optimizer.dtypes or len(set(optimizer.dtypes)) > 1:
        return []
    return [
        event
        for event in run.ranks[0].of("call")
        if event["dtype"] in NARROW
        and event["op"]
        and event["sizes"]
        and all(isinstance(n, int) for n in event["sizes"][0])
        and math.prod(event["sizes"][0]) in sizes
    ]


def is_rounded(update, narrow):
    """Whether what is left is no more than a few units of the narrow type."""
    return update.rounding() <= 8 * NARROW[narrow[0]["dtype"]]


def narrowed(run, update, narrow):
    call = narrow[0]
    return Finding(
        NAME,
        "reduced_in_narrow_type",
        [
            "%s of %d numbers in %s; the parameters are float32"
            % (call["kind"], math.prod(call["sizes"][0]), call["dtype"]),
            "the gradients are off by %.1g from the mean of the ranks' own" % update.rounding(),
        ],
        LIKELY,
        update=update.step.update,
        ranks=[rank.rank for rank in run.ranks],
        line=call["line"],
    )
