"""The conditions under which two runs computed: versions, arguments, seeds, kinds of arithmetic."""

import collections

from ..verdict import few

ARITHMETIC = (("devices", "devices"), ("compiled", "torch.compile"), ("tf32", "TF32"))


def first_of(run, kind):
    return next((event for rank in run.ranks[:1] for event in rank.of(kind)), {})


def version(run):
    return first_of(run, "process").get("torch", "")


def seeds(run):
    """Returns the seeds that the script gave to torch.manual_seed before its first update."""
    return [event["seed"] for rank in run.ranks[:1] for event in rank.before_training("seed")]


def devices(run):
    """Returns the kinds of devices that hold the parameters of the first rank's first update."""
    return first_of(run, "numerics").get("devices", [])


def restores(run):
    return [event["what"] for rank in run.ranks[:1] for event in rank.before_training("restore")]


def types(run):
    return sorted({d for rank in run.ranks[:1] for o in rank.optimizers.values() for d in o.dtypes})


def narrow_types(run):
    return sorted({event["dtype"] for rank in run.ranks for event in rank.of("autocast")})


def arithmetic(run, then):
    """Returns words for each kind of arithmetic that differs."""
    found = []
    if version(run) != version(then):
        found.append("PyTorch %s now, %s then" % (version(run), version(then)))
    now, before = first_of(run, "numerics"), first_of(then, "numerics")
    for name, words in ARITHMETIC:
        if now.get(name) != before.get(name):
            found.append("%s: %s now, %s then" % (words, now.get(name), before.get(name)))
    if narrow_types(run) != narrow_types(then):
        shown = [few(narrow_types(r)) or "none" for r in (run, then)]
        found.append("autocast to %s now, to %s then" % tuple(shown))
    return found


def differences(run, then):
    """Returns words for all conditions that differ, for a finding's evidence."""
    found = arithmetic(run, then)
    if run.world_size != then.world_size:
        found.append("%d ranks now, %d then" % (run.world_size, then.world_size))
    words = [first_of(r, "process").get("argv", [])[1:] for r in (run, then)]
    now, before = map(collections.Counter, words)
    if now != before:
        shown = [" ".join(left.elements()) or "none" for left in (now - before, before - now)]
        found.append("arguments that differ: %s now, %s then" % tuple(shown))
    if seeds(run) != seeds(then):
        shown = [few(seeds(r)) or "none" for r in (run, then)]
        found.append("seeds: %s now, %s then" % tuple(shown))
    return found
