"""A loss that is divided by the ranks' total of a count is not averaged over the ranks again.

With ranks' counts n_r and N their total, sum_r / N and mean_r * n_r / N are parts of one mean over
all N. The ranks' gradients must be added then; their mean is too small by the number of ranks. The
claim is checked where a script reduces one whole number in an update and scales its loss last by
1 / N or n_r / N, with several values of N. Scripts that undo the mean use a multiple of it.
"""

from ..verdict import Claim, Finding, compares_ranks
from . import linear

NAME = "a loss that is divided by a total of all ranks is not averaged again"
ROUNDING = 2.0**-20  # Scales are products of a few float32 numbers.
FEW = 1e-3


class Update:
    """An update whose losses are scaled by the total of a count."""

    def __init__(self, steps, counts, scales):
        self.steps = steps
        self.counts = counts  # By rank.
        self.scales = scales  # By rank: that of all backward passes.
        self.total = sum(counts)

    def parts(self, ranks):
        """Whether the losses are the ranks' parts of one mean, times `ranks`."""
        products = [scale * self.total / ranks for scale in self.scales]
        return any(
            all(abs(product / want - 1) <= ROUNDING for product, want in zip(products, wanted))
            for wanted in ([1] * len(products), self.counts)
        )

    def is_mean(self):
        """Whether the update uses the mean of the ranks' own gradients."""
        got, owns = linear.used(self.steps[0].gradients), [linear.own(step) for step in self.steps]
        if got is None or None in owns:
            return False
        own = linear.mean(owns)
        weights = linear.fit([own], got)
        return (
            bool(weights)
            and abs(weights[0] - 1) <= FEW
            and linear.rest([own], weights, got) <= linear.EQUAL
        )


def counts_of(run, update):
    """Returns the ranks' values of the only sum of one whole number in an update, or None."""
    values = []
    for rank in run.ranks:
        calls = [e for e in rank.at("call", update) if e["op"] == "sum" and e.get("values")]
        single = [e["values"][0] for e in calls if len(e["values"]) == 1]
        if len(single) != 1 or single[0] < 1 or single[0] % 1:
            return None
        values += single
    return values


def scale_of(rank, update):
    """Returns the scale that all backward passes of an update have, or None."""
    scales = {event.get("scale") for event in rank.at("backward", update)}
    return scales.pop() if len(scales) == 1 else None


def updates_of(run):
    """Returns the updates with a count and a scale, if each rank has one optimizer."""
    optimizers = [list(rank.optimizers.values()) for rank in run.ranks]
    if any(len(own) != 1 or own[0].sharded for own in optimizers):
        return []
    found = []
    for steps in zip(*(own[0].steps for own in optimizers)):
        counts = counts_of(run, steps[0].update)
        scales = [scale_of(rank, steps[0].update) for rank in run.ranks]
        if counts and all(scales):
            found.append(Update(steps, counts, scales))
    return found


@compares_ranks(NAME)
def check(run):
    updates = updates_of(run)
    right = [update for update in updates if update.parts(run.world_size)]
    again = [update for update in updates if update.parts(1)]
    several = len({update.total for update in again or right}) > 1
    claim = Claim(NAME, len(again or right) if several else 0, "updates")
    claim.why_not = "no loss is divided by a total of the ranks' counts"
    averaged = [update for update in again if update.is_mean()]
    if not several or len(again) < len(updates) or len(averaged) < 2:
        return claim, [], []
    first = averaged[0]
    update = first.steps[0].update
    finding = Finding(
        NAME,
        "divided_by_ranks_again",
        [
            "the loss is scaled by %s: the ranks' counts are %s, and their total is %g"
            % (
                ", ".join("%.4g" % scale for scale in first.scales),
                ", ".join("%g" % count for count in first.counts),
                first.total,
            ),
            "this is so in all %d updates, and the updates use the mean of the ranks' gradients"
            % len(again),
        ],
        update=update,
        ranks=[rank.rank for rank in run.ranks],
        line=run.ranks[0].loss_line(update),
    )
    return claim, [finding], []
