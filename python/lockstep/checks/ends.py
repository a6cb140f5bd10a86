"""How ranks end: all of them, regularly, after the same number of updates, with finite numbers."""

import math
import re

from .. import waits
from ..verdict import CERTAIN, LIKELY, Claim, Finding, few, short_line

ENDS = "every rank ends regularly"
UPDATES = "the ranks make the same number of updates"
FINITE = "losses and gradients are finite"
HALVINGS = 32  # After so many, a GradScaler's factor explains no infinite loss.
# Of an exception about a connection to another rank, which has ended or failed before.
CONNECTION = re.compile("onnect|roken pipe|imed out|imeout|ocket|NCCL|peer")


def check_ends(run):
    if not run.ranks:
        return Claim(ENDS, why_not="no rank left a record"), [], []
    if run.stopped:
        return Claim(ENDS, why_not="--fail_fast ended the run"), [], []
    claim = Claim(ENDS, len(run.ranks), "ranks")
    if run.hung_seconds is not None:
        return claim, [hangs(run)], []
    failed = [(rank, rank.of("exception")) for rank in run.ranks if rank.of("exception")]
    own = [item for item in failed if not CONNECTION.search(item[1][0]["text"])]
    if own:
        return claim, [crashes(own[0])], []
    first = gone_by_themselves(run)
    if first and (run.status or any(each["status"] for each in first)):
        return claim, [gone(run, first)], []
    if failed:
        return claim, [left_alone(run, failed) or crashes(failed[0])], []
    # A rank whose record ends without "end" was killed, or left by os._exit.
    cut = [rank for rank in run.ranks if not rank.ended]
    if cut and run.status != 0:
        finding = Finding(
            ENDS,
            "ends_early",
            ["the last event of rank %d: %s" % (rank.rank, last_words(rank)) for rank in cut[:4]],
            update=min(rank.updates for rank in cut),
            ranks=[rank.rank for rank in cut],
            line=last_line(cut[0]),
        )
        return claim, [finding], []
    return claim, [], []


def bad_status(run):
    """Returns the finding on a command that fails although its ranks' records show nothing."""
    evidence = ["the records of its ranks show no exception"]
    text = "the command ends with status %d" % run.status
    return Finding(ENDS, "unknown", evidence, text=text)


def hangs(run):
    text = "the ranks record nothing more for %.0f s" % run.hung_seconds
    if run.waits:
        return waits_in_vain(run.waits[-1], text)
    waiting = [rank for rank in run.ranks if not rank.ended]
    return Finding(
        ENDS,
        "hangs",
        ["rank %d: %s" % (rank.rank, last_words(rank)) for rank in run.ranks[:8]],
        update=min((rank.updates for rank in waiting), default=None),
        ranks=[rank.rank for rank in waiting],
        line=last_line(waiting[0]) if waiting else "",
        text=text,
    )


def waits_in_vain(event, text="no rank goes on"):
    """Returns the finding on a wait that `run` saw. An idle rank may go on later."""
    late = event["late"][0]
    if event.get("idle"):
        text = "ranks wait, and for %.0f s none has computed" % event["idle"]
    line = late["line"] or (late["stack"][0][0] if late["stack"] else event["line"])
    ranks = [other["rank"] for other in event["late"]]
    sure = LIKELY if event.get("idle") else CERTAIN
    return Finding(ENDS, "hangs", waits.words(event), sure, text, ranks=ranks, line=line)


def gone_by_themselves(run):
    """Returns the ranks whose processes were gone first, without those whose exception says why."""
    failed = {rank.rank for rank in run.ranks if rank.of("exception")}
    return [each for each in run.gone if each["rank"] not in failed]


def gone(run, first):
    """Names the ranks whose processes were gone first: others that fail later follow from that."""
    numbers = sorted(each["rank"] for each in first)
    ranks = [rank for rank in run.ranks if rank.rank in numbers]
    evidence = [waits.words_of_gone(each) for each in first[:4]]
    evidence += ["the last event of rank %d: %s" % (r.rank, last_words(r)) for r in ranks[:4]]
    # Without a record, the process has ended before it trained, as by an import that fails.
    chosen = all((each["status"] or 0) > 0 for each in first)
    chosen = chosen and all(rank.ended for rank in ranks)
    return Finding(
        ENDS,
        "unknown" if chosen else "ends_early",
        evidence,
        text="a rank ends with a status that is not 0" if chosen else "",
        update=min((rank.updates for rank in ranks), default=None),
        ranks=numbers,
        line=last_line(ranks[0]) if ranks else "",
    )


def begins_update(rank):
    """Whether a rank's last events belong to an update that it has not made."""
    kinds = ("input", "backward")
    begun = any(rank.at(kind, rank.updates) for kind in kinds)
    return begun or bool(rank.training_batches(rank.updates))


def left_alone(run, failed):
    """Returns the finding if a rank begins an update that others no longer make, or None."""
    needs = [rank for rank, _ in failed if begins_update(rank)]
    ended = [rank for rank in run.ranks if rank.ended and not rank.of("exception")]
    ended = [rank for rank in ended if needs and rank.updates <= needs[0].updates]
    if not ended:
        return None
    first = needs[0]
    return Finding(
        ENDS,
        "uneven_updates",
        [
            "rank %d ends regularly after %d updates" % (ended[0].rank, ended[0].updates),
            "rank %d begins update %d, and its connection fails" % (first.rank, first.updates),
        ],
        LIKELY,
        update=ended[0].updates,
        ranks=[rank.rank for rank in ended],
        line=first.of("exception")[0]["line"],
    )


def crashes(item):
    """Names a rank with its first exception."""
    rank, events = item
    event = events[0]
    return Finding(
        ENDS,
        "crashes",
        ["%s: %s" % (event["type"], event["text"].splitlines()[0][:200] if event["text"] else "")],
        update=event["update"],
        ranks=[rank.rank],
        line=event["line"],
    )


def last_words(rank):
    """Returns the last event that says what a rank did."""
    for event in reversed(rank.events):
        if event["event"] == "call":
            return "calls %s at %s" % (event["kind"], short_line(event["line"]))
        if event["event"] == "end":
            return "ended"
        if event["event"] in ("step", "backward", "batch", "pass", "ddp"):
            where = event.get("line")
            return event["event"] + (" at %s" % short_line(where) if where else "")
    return "started"


def last_line(rank):
    return next((e["line"] for e in reversed(rank.events) if e.get("line")), "")


def check_updates(run):
    if len(run.ranks) < 2 or any(rank.bounded for rank in run.ranks):
        return Claim(UPDATES, why_not="not all ranks left a whole record"), [], []
    if run.stopped:
        return Claim(UPDATES, why_not="--fail_fast ended the run"), [], []
    if any(rank.of("join") for rank in run.ranks):
        return Claim(UPDATES, why_not="the script lets ranks end early, with join()"), [], []
    updates = [rank.updates for rank in run.ranks]
    claim = Claim(UPDATES, max(updates), "updates", "no optimizer took a step")
    if len(set(updates)) == 1 or not all(rank.ended for rank in run.ranks):
        return claim, [], []
    if any(rank.of("exception") for rank in run.ranks):
        return claim, [], []
    finding = Finding(
        UPDATES,
        "uneven_updates",
        ["updates by rank: " + few(updates, 8)],
        update=min(updates),
        ranks=[rank.rank for rank in run.ranks],
        line=next((s.line for o in run.ranks[0].optimizers.values() for s in o.steps[-1:]), ""),
    )
    return claim, [finding], []


def check_finite(run):
    count = 0
    first = None
    for rank in run.ranks:
        passes = rank.of("backward")
        count += sum(len(event["loss"]) for event in passes)
        bad = first_bad_loss(passes)
        if bad:
            here = (bad["update"], rank.rank, [], bad["line"])
            first = min(first or here, here, key=lambda place: place[0])
        for optimizer in rank.optimizers.values():
            bad = first_not_finite(optimizer)
            if bad:
                step, names = bad
                here = (step.update, rank.rank, names, step.line)
                first = min(first or here, here, key=lambda place: place[0])
    claim = Claim(FINITE, count, "losses", "no loss was recorded")
    if first is None:
        return claim, [], []
    update, rank, names, line = first
    what = "gradients of %s" % few(names) if names else "the loss"
    evidence = ["%s: NaN or infinite on rank %d" % (what, rank)]
    finding = Finding(
        FINITE, "not_finite", evidence, update=update, tensors=names, ranks=[rank], line=line
    )
    return claim, [finding], []


def first_bad_loss(passes):
    """Returns the first backward pass whose loss is not finite, or None.

    A GradScaler's factor may make a loss infinite. Then it skips the update, and halves its factor.
    """
    infinite = []  # Such passes in a row.
    for event in passes:
        if any(math.isnan(loss) for loss in event["loss"]):
            return event
        if not any(math.isinf(loss) for loss in event["loss"]):
            infinite = []
            continue
        infinite.append(event)
        if "scaler" not in event or len(infinite) > HALVINGS:
            return infinite[0]
    return None


def first_not_finite(optimizer):
    for step in optimizer.steps:
        names = [
            name
            for name, gradient in zip(optimizer.names, step.gradients or [])
            if gradient is not None and not math.isfinite(gradient[2])
        ]
        if names:
            return step, names
    return None
