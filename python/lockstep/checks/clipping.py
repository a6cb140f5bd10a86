"""Gradients are clipped after their reduction: all ranks clip the same norm."""

import math

from ..verdict import Claim, Finding, compares_ranks, few

NAME = "the ranks clip the same gradients, and scale their parts alike"
SAME_FACTOR = 1e-4  # Sums of float32 numbers that one factor has scaled differ by less.


@compares_ranks(NAME)
def check(run):
    claim, findings = check_norms(run)
    parts, scaled = check_parts(run)
    return claim if claim.count and not scaled else parts, findings + scaled, []


def check_norms(run):
    """Fails if the ranks clip other norms and use the same gradients: each has clipped its own."""
    clips = [rank.of("clip") for rank in run.ranks]
    count = 0
    for events in zip(*clips):
        count += 1
        if len({event["update"] for event in events}) > 1:
            break
        norms = [event["norm"] for event in events]
        if None in norms:
            continue
        if len(set(norms)) == 1 or not any(n > e["largest"] for n, e in zip(norms, events)):
            continue
        if not agrees(run, events[0]["update"]):
            break  # The parameters' own claim has the cause.
        finding = Finding(
            NAME,
            "clipped_before_reduction",
            [
                "norms by rank: %s; the largest allowed: %g"
                % (few(["%.6g" % norm for norm in norms], 8), events[0]["largest"]),
                "the ranks' gradients are the same when the optimizer uses them",
            ],
            update=events[0]["update"],
            ranks=[rank.rank for rank in run.ranks],
            line=events[0]["line"],
        )
        return Claim(NAME, count, "calls"), [finding]
    return Claim(NAME, count, "calls"), []


def agrees(run, update):
    """Whether the optimizers of all ranks use the same gradients in an update."""
    found = []
    for rank in run.ranks:
        for optimizer in rank.optimizers.values():
            for step in optimizer.steps:
                if step.update == update and step.gradients is not None:
                    found.append([g and g[0] for g in step.gradients])
    return len(found) == len(run.ranks) and all(other == found[0] for other in found)


def check_parts(run):
    """Fails if each rank scales its part of a gradient, after the reduction, by its own factor."""
    count = 0
    for number in sorted(run.ranks[0].optimizers):
        optimizers = [rank.optimizers.get(number) for rank in run.ranks]
        if not all(optimizers) or any(optimizer.sharded for optimizer in optimizers):
            continue
        for steps in zip(*(optimizer.steps for optimizer in optimizers)):
            if any(step.gradients is None or step.reduced is None for step in steps):
                continue
            count += 1
            for index, name in enumerate(optimizers[0].names):
                factors = [factor_of(step.reduced[index], step.gradients[index]) for step in steps]
                known = [factor for factor in factors if factor]
                if len(known) == len(factors) and max(known) > (1 + 10 * SAME_FACTOR) * min(known):
                    finding = scaled_apart(run, steps, name, factors)
                    return Claim(NAME, count, "updates"), [finding]
    why_not = "the ranks do not call clip_grad_norm_, and hold no parts of parameters"
    return Claim(NAME, count, "updates", why_not), []


def factor_of(before, after):
    """Returns the factor between two gradients, or None if one is no multiple of the other."""
    if not before or not after or not before[2] > 0:
        return None
    factor = math.sqrt(after[2] / before[2])
    size = math.sqrt(after[2])
    alike = all(abs(after[k] - factor * before[k]) <= SAME_FACTOR * size for k in (1, 3))
    return factor if alike and 0 < size < math.inf else None


def scaled_apart(run, steps, name, factors):
    update = steps[0].update
    clips = [event for event in run.ranks[0].of("clip") if event["update"] == update]
    return Finding(
        NAME,
        "scaled_by_part",
        ["factors by rank: %s, after the reduction" % few(["%.6g" % f for f in factors], 8)],
        update=update,
        tensors=[name],
        ranks=[rank.rank for rank in run.ranks],
        line=clips[-1]["line"] if clips else steps[0].line,
    )
