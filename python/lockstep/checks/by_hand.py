"""Updates by hand: by which multiple of its gradients a script moves its parameters.

A script may divide by the number of ranks where it updates: `p -= lr / ranks * p.grad`. Its gradients
are then right, although they are sums.
"""

from . import linear

ROUNDED = 0.01  # Of an update, which is known by what it moves: rounding moves less.


def movement(step):
    return [value for move in step.moved for value in move]


def factor_between(first, second):
    """Returns k if the second numbers are k times the first, except for rounding, else None."""
    weights = linear.fit([first], second)
    if not weights or not linear.rest([first], weights, second) <= ROUNDED:
        return None
    return weights[0]


def multiple(step, gradients):
    """Returns k if the update moves the parameters by k times these gradients, else None.

    None may mean that the update has a momentum.
    """
    used = linear.used(gradients)
    if step.moved is None or used is None:
        return None
    return factor_between(used, movement(step))


def factors_of_ranks(steps):
    """Returns by rank how far an update moves, if that is all that differs; else None."""
    if not all(step.moved for step in steps):
        return None
    moves = [movement(step) for step in steps]
    factors = [factor_between(moves[0], move) for move in moves]
    if None in factors:
        return None
    return factors if any(abs(factor - 1) > ROUNDED for factor in factors) else None


class Use:
    """How ranks use their gradients, in comparison with one rank. The first update tells."""

    def __init__(self):
        self.factor = 1.0  # By which the ranks multiply a gradient more than one rank; or None.

    def learn(self, step, gradients, one, ranks):
        """Returns why the updates cannot be compared, or ""."""
        if step.moved is None:
            return ""
        multiples = multiple(step, gradients), multiple(one, one.gradients)
        self.factor = None
        if None in multiples or not multiples[1]:
            return ""
        ratio = multiples[0] / multiples[1]
        for factor in (1.0, 1 / ranks):
            if abs(ratio / factor - 1) <= ROUNDED:
                self.factor = factor
                return ""
        return (
            "the update by hand moves parameters %.4g times as far as at one rank: it seems scaled"
            " on purpose, and updates are not compared" % ratio
        )
