"""Gradients are clipped after their reduction: all ranks clip the same norm."""

from ..verdict import Claim, Finding, compares_ranks, few

NAME = "the ranks clip the same gradients"


@compares_ranks(NAME)
def check(run):
    clips = [rank.of("clip") for rank in run.ranks]
    if not all(clips):
        return Claim(NAME, why_not="the ranks do not call clip_grad_norm_"), [], []
    count = 0
    for events in zip(*clips):
        count += 1
        if len({event["update"] for event in events}) > 1:
            break
        norms = [event["norm"] for event in events]
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
        return Claim(NAME, count, "calls"), [finding], []
    return Claim(NAME, count, "calls"), [], []


def agrees(run, update):
    """Whether the optimizers of all ranks use the same gradients in an update."""
    found = []
    for rank in run.ranks:
        for optimizer in rank.optimizers.values():
            for step in optimizer.steps:
                if step.update == update and step.gradients is not None:
                    found.append([g and g[0] for g in step.gradients])
    return len(found) == len(run.ranks) and all(other == found[0] for other in found)
