"""A resumed run goes on where its checkpoint stopped."""

from ..verdict import LIKELY, Claim, Finding

NAME = "a resumed run goes on with the epoch of its checkpoint"


def check(run):
    """Fails if the first epoch after a resume has the order of the run's first epoch.

    A checkpoint that counts epochs stores the last one that ended or the next one. The number 0 can
    be either, so the check needs a higher one.
    """
    for rank in run.ranks[:1]:
        saved = epoch_of_checkpoint(rank)
        first = first_pass_after_set_epoch(rank)
        if not saved or first is None:
            continue
        claim = Claim(NAME, 1, "resumes")
        called, event = first
        if called["epoch"] != 0:
            return claim, [], []
        evidence = [
            "the checkpoint's %s is %d, and set_epoch(0) precedes the first training epoch" % saved,
            "the optimizer's state is restored, so this is no new training",
        ]
        finding = Finding(
            NAME,
            "resume_repeats_epochs",
            evidence,
            LIKELY,
            update=event["update"],
            ranks=[rank.rank],
            line=called["line"],
        )
        return claim, [finding], []
    return Claim(NAME, why_not="no checkpoint that counts epochs was resumed"), [], []


def epoch_of_checkpoint(rank):
    """Returns (name, number of epochs) of the file from which the optimizer was restored, or ()."""
    epochs = {}
    for event in rank.events:
        if event["event"] == "load" and event.get("epochs"):
            epochs = {name: number for name, number in event["epochs"].items() if number > 0}
        elif event["event"] == "restore" and event["what"] == "optimizer" and not event["update"]:
            return max(epochs.items(), key=lambda item: item[1], default=())
    return ()


def first_pass_after_set_epoch(rank):
    """Returns the call of set_epoch and the pass of a training loader that follows it, or None."""
    called, restored = None, False
    for event in rank.events:
        if event["event"] == "restore":
            restored = True
        elif event["event"] == "set_epoch":
            called = event
        elif event["event"] == "pass" and restored and event["loader"] in rank.training_loaders:
            shuffles = event["sampler"].get("shuffle") and called is not None
            return (called, event) if shuffles else None
    return None
