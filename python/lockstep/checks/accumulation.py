"""An update divides the losses of its micro-batches by their number, once."""

import collections

from ..verdict import LIKELY, Claim, Finding

NAME = "an update weighs its micro-batches by their number, once"


def check(run):
    """Fails if full windows of n passes scale losses by 1/n, and a shorter window does too.

    Accelerate's backward() scales all losses by 1/n on purpose, and then the script must not.
    """
    for rank in run.ranks[:1]:
        windows = windows_of(rank)
        if any(event.get("accelerate", 1) > 1 for event in rank.of("backward")):
            return check_accelerate(rank, windows)
        full = max((len(passes) for passes in windows.values()), default=0)
        scales = {event.get("scale") for passes in windows.values() for event in passes}
        if full < 2 or len(rank.optimizers) != 1 or not is_inverse(scales, full):
            continue
        claim = Claim(NAME, len(windows), "updates")
        short = [update for update, passes in sorted(windows.items()) if len(passes) < full]
        if not short or 2 * len(short) > len(windows):
            return claim, [], []
        update = short[0]
        passes = windows[update]
        evidence = [
            "%d of %d updates have fewer than %d backward passes: update %d has %d"
            % (len(short), len(windows), full, update, len(passes)),
            "each pass scales its loss by 1/%d, so this update is %d/%d of a mean"
            % (full, len(passes), full),
        ]
        finding = Finding(
            NAME,
            "short_window_scaled",
            evidence,
            LIKELY,
            update=update,
            ranks=[rank.rank],
            line=passes[-1]["line"],
        )
        return claim, [finding], []
    why_not = "no update accumulates losses that are divided by the number of its passes"
    return Claim(NAME, why_not=why_not), [], []


def check_accelerate(rank, windows):
    """Returns a Claim, findings and notes on losses that Accelerate's backward() divides."""
    claim = Claim(NAME, len(windows), "updates", "no update was made")
    passes = [event for of_update in windows.values() for event in of_update]
    number = max(event.get("accelerate", 1) for event in rank.of("backward"))
    if passes and all(event.get("divided_twice") for event in passes):
        finding = Finding(
            NAME,
            "divided_by_micro_batches_again",
            [
                "the script divides each loss by %d before it calls Accelerate's backward(), which"
                " divides it by gradient_accumulation_steps, %d" % (number, number)
            ],
            LIKELY,
            update=min(windows),
            ranks=[rank.rank],
            line=passes[0]["line"],
        )
        return claim, [finding], []
    short = [update for update, of_update in sorted(windows.items()) if len(of_update) < number]
    notes = []
    if short:
        notes.append(
            "%d of %d updates have fewer than %d backward passes, and Accelerate divides each loss"
            " by %d: the samples of update %d count less"
            % (len(short), len(windows), number, number, short[0])
        )
    return claim, [], notes


def windows_of(rank):
    """Returns {update: its backward passes}, for the updates that were made."""
    windows = collections.defaultdict(list)
    for event in rank.of("backward"):
        if event["update"] < rank.updates:
            windows[event["update"]].append(event)
    return windows


def is_inverse(scales, full):
    """Whether all losses are scaled by 1/full. float32 scales have a unit of rounding."""
    return len(scales) == 1 and None not in scales and abs(full * scales.pop() - 1) <= 2.0**-20
