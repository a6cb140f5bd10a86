"""Optimizers and schedules: equal settings, no parameter left out, one schedule step an update."""

import collections

from ..verdict import LIKELY, Claim, Finding, compares_ranks, few

RATES = "the learning rate does not depend on the rank"
HELD = "an optimizer holds every parameter that has a gradient"
SCHEDULES = "a schedule does not step once per rank"


@compares_ranks(RATES)
def check_rates(run):
    count = 0
    for number in sorted(run.ranks[0].optimizers):
        optimizers = [rank.optimizers.get(number) for rank in run.ranks]
        if not all(optimizers):
            continue
        for steps in zip(*(optimizer.steps for optimizer in optimizers)):
            rates = [[group.get("lr") for group in step.groups or []] for step in steps]
            count += any(rate is not None for of_rank in rates for rate in of_rank)
            if any(other != rates[0] for other in rates):
                by_rank = few([r[0] if r else None for r in rates], 8)
                finding = Finding(
                    RATES,
                    "learning_rate_differs",
                    ["learning rates by rank: " + by_rank],
                    update=steps[0].update,
                    ranks=[rank.rank for rank in run.ranks],
                    line=optimizers[0].line,
                )
                return Claim(RATES, count, "updates"), [finding], []
    return Claim(RATES, count, "updates", "no optimizer with a rate took a step"), [], []


def check_held(run):
    """Fails if an optimizer misses trained parameters and holds others without gradients.

    Parameters that are only left out may be meant to stay as they are: these give a note.
    """
    findings, notes, count = [], [], 0
    for rank in run.ranks[:1]:
        for optimizer in rank.optimizers.values():
            steps = [step for step in optimizer.steps if step.gradients is not None]
            count += len(steps)
            unused = never_used(optimizer, steps)
            left_out = steps[-1].left_out if steps else []
            strangers = min((step.strangers for step in steps), default=0)
            if steps and unused and (left_out or len(unused) == len(optimizer.names) and strangers):
                findings.append(misses(rank, optimizer, steps[0], unused, left_out, strangers))
            elif left_out:
                notes.append(
                    "%s have gradients and are in no optimizer: they stay as they are"
                    % few(left_out)
                )
    return Claim(HELD, count, "updates", "no optimizer took a step"), findings, notes


def never_used(optimizer, steps):
    """Returns the names of parameters that no model holds and that never have a gradient."""
    return [
        name
        for i, name in enumerate(optimizer.names)
        if name.startswith("parameter ") and all(step.gradients[i] is None for step in steps)
    ]


def misses(rank, optimizer, step, unused, left_out, strangers):
    held = "%d tensors of the optimizer never have a gradient and are in no model"
    evidence = [held % len(unused)]
    if left_out:
        evidence.append("%s have gradients and are in no optimizer" % few(left_out))
    else:
        evidence.append("%d tensors with gradients are in no optimizer" % strangers)
    return Finding(
        HELD,
        "optimizer_misses_parameters",
        evidence,
        update=step.update,
        tensors=left_out,
        ranks=[rank.rank],
        line=optimizer.line,
    )


def check_schedules(run):
    """Fails if a schedule steps world_size times between any two updates."""
    count, findings = 0, []
    for rank in run.ranks[:1]:
        if sum(not optimizer.by_hand for optimizer in rank.optimizers.values()) != 1:
            continue
        steps = collections.defaultdict(collections.Counter)
        lines = {}
        for event in rank.of("schedule"):
            steps[event["schedule"]][event["update"]] += 1
            lines.setdefault(event["schedule"], event["line"])
        for schedule, by_update in steps.items():
            # An update may be the last of an epoch, so most updates may have no step.
            counts = [number for update, number in by_update.items() if 0 < update < rank.updates]
            count += len(counts)
            if run.world_size > 1 and len(counts) > 1 and set(counts) == {run.world_size}:
                findings.append(
                    Finding(
                        SCHEDULES,
                        "schedule_steps_by_rank",
                        [
                            "%d steps of the schedule after each of %d updates, with %d ranks"
                            % (run.world_size, len(counts), run.world_size)
                        ],
                        LIKELY,
                        update=min(update for update in by_update if update),
                        ranks=[rank.rank],
                        line=lines[schedule],
                    )
                )
    return Claim(SCHEDULES, count, "updates", "the script has no schedule"), findings, []
