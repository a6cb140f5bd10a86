"""An update of fewer micro-batches divides their losses by their number, as a full one does."""

import collections

from ..verdict import LIKELY, Claim, Finding

NAME = "an update weighs its micro-batches by their number"


def check(run):
    """Fails if full windows of n passes scale losses by 1/n, and a shorter window does too."""
    for rank in run.ranks[:1]:
        windows = windows_of(rank)
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
