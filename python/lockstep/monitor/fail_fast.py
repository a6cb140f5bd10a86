"""Ends a run as soon as an invariant is violated that no later event can mend."""

from .. import evidence
from ..checks import clipping, ends, evaluation, parameters, settings

# Their findings stand, whatever the ranks do later, except that parameters may be averaged.
CHECKS = (
    ends.check_finite,
    parameters.check,
    settings.check_rates,
    clipping.check,
    evaluation.check_buffers,
)
# Ranks that each train alone may average their parameters now and then, within so many updates.
PATIENCE = 32
KEPT_ALWAYS = ("process", "rank", "optimizer", "ddp", "restore")


class FailFast:
    """Judges the ranks' last updates. Memory and time do not grow with the length of a run."""

    def __init__(self):
        self.windows = {}
        self.judged = 0  # Updates that all ranks had made at the last judgement.

    def see(self, events, world_size):
        """Adds {rank: events}. Returns the finding that ends the run, or None."""
        for rank, of_rank in events.items():
            self.windows.setdefault(rank, Window()).add(of_rank)
        if not 2 <= world_size == len(self.windows):
            return None
        return self.judge()

    def judge(self):
        updates = min(window.updates for window in self.windows.values())
        news = updates > self.judged or any(window.urgent for window in self.windows.values())
        if not news:
            return None
        self.judged = updates
        run = evidence.Run([evidence.Rank(r, w.events) for r, w in sorted(self.windows.items())])
        findings = [finding for check in CHECKS for finding in check(run)[1]]
        for finding in findings:
            if is_sure(run, finding, updates):
                return finding
        if not findings:
            for window in self.windows.values():
                window.forget(updates - 1)
        return None


class Window:
    """The events of one rank that are not judged yet, and those that describe the rank."""

    def __init__(self):
        self.events = []
        self.last = {}  # By optimizer: its last step.
        self.updates = 0
        self.urgent = False  # Whether an event outside of a step may be wrong by itself.

    def add(self, events):
        for event in events:
            kind = event["event"]
            if kind == "step":
                self.updates = event["update"] + 1
                self.complete(event)
            elif kind in ("backward", "evaluate"):
                self.urgent = True
            if kind != "call":
                self.events.append(event)

    def complete(self, step):
        """Adds the fields that are left out because they have not changed since the last step."""
        last = self.last.get(step["optimizer"])
        if last:
            step.setdefault("groups", last.get("groups"))
            step.setdefault("before", last["after"])
        self.last[step["optimizer"]] = step

    def forget(self, update):
        """Drops events of the updates before this one."""
        self.events = [
            event
            for event in self.events
            if event["event"] in KEPT_ALWAYS or event.get("update", -1) >= update
        ]
        self.urgent = False


def is_sure(run, finding, updates):
    """Whether no later event can make the finding wrong."""
    if finding.claim != parameters.NAME:
        return True
    of_ranks = [steps_at(rank, finding.update) for rank in run.ranks]
    if not all(of_ranks) or not all(later for _, later in of_ranks):
        return False  # The ranks may still average what they have after this update.
    return reduces([step for step, _ in of_ranks]) or updates - finding.update > PATIENCE


def steps_at(rank, update):
    """Returns (step, whether its optimizer has made a later one), or None."""
    for optimizer in rank.optimizers.values():
        for step in optimizer.steps:
            if step.update == update:
                return step, optimizer.steps[-1] is not step
    return None


def reduces(steps):
    """Whether the ranks use one gradient in an update, so that no averaging is to come."""
    return all(step.gradients for step in steps) and any(
        all(gradients) and gradients[0][2] > 0 and len({g[0] for g in gradients}) == 1
        for gradients in zip(*(step.gradients for step in steps))
    )
