"""The ranks agree on parameters after each update: the first difference, and its cause."""

import math

from ..evidence import Run
from ..verdict import Claim, Finding, compares_ranks, few
from . import by_hand, linear, shards

NAME = "the ranks have the same parameters after each update"
DIFFER = "the ranks' parameters differ"
SUM_ROUNDINGS = 8  # A recorded sum of float32 numbers: each is rounded as often (digest.TERMS).


@compares_ranks(NAME)
def check(run):
    """Returns a Claim, findings and notes."""
    why_not = not_comparable(run)
    if why_not:
        return Claim(NAME, why_not=why_not), [], []
    findings, notes, count = [], [], 0
    for number in sorted(run.ranks[0].optimizers):
        optimizers = [rank.optimizers[number] for rank in run.ranks]
        steps = min(len(optimizer.steps) for optimizer in optimizers)
        if any(len(group) > 1 for groups in shards.replicas_of(optimizers) for group in groups):
            count += steps
        place = first_difference(optimizers, steps)
        if place is None:
            continue
        if periodic(optimizers, place[0], steps):
            notes.append(
                "the ranks' parameters differ after update %d and agree later: they are averaged"
                " now and then" % optimizers[0].steps[place[0]].update
            )
            continue
        findings.append(explain(*among_replicas(run, optimizers, *place)))
    why_not = "no optimizer took a step on all ranks"
    if all(rank.updates for rank in run.ranks):
        why_not = "each rank holds its own part of them"
    return Claim(NAME, count, "updates", why_not), findings, notes


def not_comparable(run):
    shapes = [
        {number: optimizer.shapes for number, optimizer in rank.optimizers.items()}
        for rank in run.ranks
    ]
    if not all(shapes):
        return "no optimizer took a step on all ranks"
    for rank in run.ranks:
        for optimizer in rank.optimizers.values():
            if optimizer.sharded:
                return optimizer.sharded
    if any(other != shapes[0] for other in shapes):
        return "the ranks' optimizers hold tensors of different shapes: this is not data parallel"
    for number in run.ranks[0].optimizers:
        if not shards.are_whole([rank.optimizers[number] for rank in run.ranks]):
            return "the ranks' parts do not make up the whole parameters"
    return ""


def first_difference(optimizers, steps):
    """Returns (step, whether it is before the step, indices) of the first lasting difference.

    Parameters that a script averages after its update differ after the step and agree before the
    next one.
    """
    replicas = shards.replicas_of(optimizers)
    first_before = [optimizer.steps[0].before for optimizer in optimizers] if steps else []
    if first_before and all(first_before):
        wrong = shards.differing(first_before, replicas)
        if wrong:
            return 0, True, wrong
    for index in range(steps):
        here = [optimizer.steps[index] for optimizer in optimizers]
        wrong = shards.differing([step.after for step in here], replicas)
        if not wrong:
            continue
        if index + 1 < steps:
            after = [optimizer.steps[index + 1].before for optimizer in optimizers]
            if all(after) and not shards.differing(after, replicas):
                continue
        return index, False, wrong
    return None


def periodic(optimizers, first, steps):
    """Whether the parameters agree at some later point, so that they do not drift."""
    replicas = shards.replicas_of(optimizers)
    for index in range(first + 1, steps):
        for rows in (
            [optimizer.steps[index].before for optimizer in optimizers],
            [optimizer.steps[index].after for optimizer in optimizers],
        ):
            if all(rows) and not shards.differing(rows, replicas):
                return True
    return False


def among_replicas(run, optimizers, index, before, wrong):
    """Returns the same for those ranks alone that hold one part of the first wrong parameter."""
    steps = [optimizer.steps[index] for optimizer in optimizers]
    rows = [step.before if before else step.after for step in steps]
    group = shards.differing_group(rows, shards.replicas_of(optimizers), wrong[0])
    run = Run([run.ranks[position] for position in group])
    optimizers = [optimizers[position] for position in group]
    rows = [rows[position] for position in group]
    wrong = shards.differing(rows, shards.replicas_of(optimizers))
    return run, optimizers, index, before, wrong


def explain(run, optimizers, index, before, wrong):
    """Returns the finding for the first difference."""
    steps = [optimizer.steps[index] for optimizer in optimizers]
    names = [optimizers[0].names[i] for i in wrong]
    place = {
        "update": steps[0].update,
        "tensors": names,
        "ranks": [rank.rank for rank in run.ranks],
        "line": steps[0].line,
    }
    of_all = "%d of %d tensors" % (len(wrong), len(optimizers[0].names))
    if before:
        place["line"] = optimizers[0].line
        evidence = ["%s differ before the first update" % of_all]
        return Finding(NAME, "first_weights_differ", evidence, **place)
    rows = [step.before for step in steps]
    if all(rows) and set(shards.differing(rows, shards.replicas_of(optimizers))) & set(wrong):
        evidence = [
            "%s differ after the update" % of_all,
            "they agree after the update before, and differ before this one: the script changes"
            " them in between",
        ]
        return Finding(NAME, "unknown", evidence, text=DIFFER, **place)
    evidence = ["%s differ after the update and agree before it" % of_all]
    cause, more = cause_of_step(run, optimizers, steps, wrong)
    line = more.pop("line", "")
    if line:
        place["line"] = line
    text = DIFFER if cause == "unknown" else ""
    evidence += more.pop("evidence", [])
    return Finding(NAME, cause, evidence, text=text, **more, **place)


def cause_of_step(run, optimizers, steps, wrong):
    """Returns a cause and {"evidence", "line", "sure"}."""
    if any(step.gradients is None for step in steps):
        return "unknown", {"evidence": ["the gradients of this update were not recorded"]}
    gradients = [[step.gradients[i] for step in steps] for i in wrong]
    if any(None in row and any(row) for row in gradients):
        names = [optimizers[0].names[i] for i, row in zip(wrong, gradients) if None in row]
        return "gradient_missing", {"evidence": ["%s: None on a rank" % few(names)]}
    if all(row[0] is not None and len({g[0] for g in row}) == 1 for row in gradients):
        return cause_of_update(run, optimizers, steps)
    if not finite(gradients):
        return "not_finite", {"evidence": ["a gradient is not finite"]}
    return cause_of_gradients(run, optimizers, steps, wrong)


def finite(gradients):
    return all(math.isfinite(g[2]) for row in gradients for g in row if g is not None)


def cause_of_update(run, optimizers, steps):
    """Explains different parameters after an update with the same gradients."""
    evidence = ["the ranks' gradients are the same"]
    groups = [step.groups for step in steps]
    if any(other != groups[0] for other in groups):
        rates = [[group.get("lr") for group in of_rank] for of_rank in groups]
        if any(other != rates[0] for other in rates):
            evidence.append("learning rates by rank: " + few([r[0] for r in rates], 8))
            return "learning_rate_differs", {"evidence": evidence}
        return "settings_differ", {"evidence": evidence}
    factors = by_hand.factors_of_ranks(steps)
    if factors:
        shown = ", ".join("%.4g" % factor for factor in factors)
        evidence.append("the ranks move the parameters by %s times the same update" % shown)
        return "learning_rate_differs", {"evidence": evidence}
    restored = [
        sum(event["what"] == "optimizer" for event in rank.of("restore")) for rank in run.ranks
    ]
    if len(set(restored)) > 1 and min(restored) == 0:
        evidence.append("calls of load_state_dict by rank: " + few(restored, 8))
        return "optimizer_state_differs", {"evidence": evidence}
    return "unknown", {"evidence": evidence}


def is_own(gradient, local, size):
    """Whether a rank's gradient is that of its own samples, by its sum and its projection."""
    if gradient is None or local is None:
        return False
    count, total, projection = local
    if count == 1:
        return [total, projection] == [gradient[1], gradient[3]]
    # Each of `count` additions rounds an element x by 2^-24 |x| at most, and the two sums that are
    # compared round by SUM_ROUNDINGS of these each. The sum of |x| is at most sqrt(size) times the
    # norm. Twice that, as the parts can be larger than their sum.
    bound = 2 * (count + 2 * SUM_ROUNDINGS) * 2.0**-24 * math.sqrt(size * gradient[2])
    return abs(total - gradient[1]) <= bound and abs(projection - gradient[3]) <= bound


def cause_of_gradients(run, optimizers, steps, wrong):
    """Explains different gradients."""
    sizes = [math.prod(shape) for shape in optimizers[0].shapes]
    if not all(is_own(s.gradients[i], s.local[i], sizes[i]) for i in wrong for s in steps):
        evidence = ["the ranks' gradients differ, and are not those of their own samples"]
        return "unknown", {"evidence": evidence}
    evidence = ["each rank's gradient is the one that its own backward passes made"]
    others = set(range(len(sizes))) - set(wrong)
    reduced = sum(is_reduced(optimizers, steps, i) for i in others)
    if optimizers[0].by_hand:
        reduced += reduced_by_optimizers(run, steps[0].update)
    if reduced:
        evidence.append("the gradients of %d other tensors are reduced" % reduced)
        line = steps[0].line if optimizers[0].by_hand else optimizers[0].line
        return "partly_not_reduced", {"evidence": evidence, "line": line}
    return cause_of_no_reduction(run, steps, evidence)


def reduced_by_optimizers(run, update):
    """Returns how many tensors have reduced gradients in the optimizers' updates next to one."""
    count = 0
    for number in run.ranks[0].optimizers:
        optimizers = [rank.optimizers[number] for rank in run.ranks]
        if optimizers[0].by_hand or not all(optimizer.steps for optimizer in optimizers):
            continue
        earlier = sum(step.update < update for step in optimizers[0].steps)
        index = min(max(earlier - 1, 0), *(len(optimizer.steps) - 1 for optimizer in optimizers))
        steps = [optimizer.steps[index] for optimizer in optimizers]
        if all(step.gradients and step.local for step in steps):
            indices = range(len(optimizers[0].names))
            count += sum(is_reduced(optimizers, steps, i) for i in indices)
    return count


def is_reduced(optimizers, steps, index):
    """Whether the ranks use one gradient, or parts of one, and made different ones.

    An update of less than a rounding leaves parameters alike although gradients differ.
    """
    gradients = [step.gradients[index] for step in steps]
    owns = [step.local[index] for step in steps]
    if not all(gradients) or not all(owns) or len({tuple(own) for own in owns}) == 1:
        return False
    if not optimizers[0].parts[index]:
        return len({gradient[0] for gradient in gradients}) == 1
    _, total, _, projection = shards.whole_gradients(optimizers, steps)[index]
    mean = linear.mean([[own[1], own[2]] for own in owns])
    weights = linear.fit([mean], [total, projection])
    return bool(weights) and linear.rest([mean], weights, [total, projection]) <= linear.EQUAL


def passes_of(rank, update):
    """Returns the backward passes of an update, or those that it shares with an earlier one."""
    while update > 0 and not rank.at("backward", update):
        update -= 1
    return rank.at("backward", update)


def cause_of_no_reduction(run, steps, evidence):
    """Tells why no gradient was reduced, from the forward passes through DDP."""
    rank, update = run.ranks[0], steps[0].update
    passes = passes_of(rank, update)
    forwards = [event["ddp"] for event in passes if event.get("ddp")]
    if not forwards or len(forwards) != len(passes):
        evidence.append("the script makes no DDP")
        return "not_reduced", {"evidence": evidence}
    made = rank.of("ddp")[0]["line"]
    without, within = (sum(counts[i] for counts in forwards) for i in (0, 1))
    counted = "%d backward passes of this update, DDP is made at %s" % (len(passes), made)
    if not within and not without:
        evidence.append("DDP saw no forward pass before the " + counted)
        return "ddp_bypassed", {"evidence": evidence, "line": passes[-1]["line"]}
    if not within:
        evidence.append("DDP was under no_sync in all forward passes before the " + counted)
        return "never_synchronised", {"evidence": evidence, "line": passes[-1]["line"]}
    return "unknown", {"evidence": evidence + ["DDP saw %d forward passes" % within]}
