"""Compares whole tensors that ranks or runs have kept, for the update of a finding."""

import os

import numpy as np

from . import record
from .checks import earlier_run, parameters

STAGES = ("before", "gradient", "after")
WORDS = {"before": "before update %d", "gradient": "the gradient of update %d"}
WORDS["after"] = "after update %d"


class Pair:
    """Two files of one update, and names for them."""

    def __init__(self, paths, names, update):
        self.paths = paths
        self.names = names
        self.update = update

    def compare(self, wanted):
        """Returns words on the largest difference in the first stage that differs, or ""."""
        files = [np.load(path, allow_pickle=False) for path in self.paths]
        try:
            for stage in STAGES:
                found = [difference(files, "%s/%s" % (stage, name)) for name in wanted]
                size, name, place, values = max(found, key=lambda each: each[0], default=NONE)
                if size > 0:
                    return self.words(stage, name.partition("/")[2], place, values)
        finally:
            for file in files:
                file.close()
        return ""

    def words(self, stage, name, place, values):
        where = "%s[%s], %s" % (name, ", ".join(map(str, place)), WORDS[stage] % self.update)
        shown = ", ".join("%.9g %s" % pair for pair in zip(values, self.names))
        files = " and ".join(dict.fromkeys(map(os.path.basename, self.paths)))
        return "the largest difference is in %s: %s (%s)" % (where, shown, files)


NONE = (0.0, "", (), ())


def difference(files, name):
    """Returns (size, name, index, values) of the largest difference. One that is NaN is largest."""
    if any(name not in file for file in files):
        return NONE
    one, other = (file[name].astype(np.float64) for file in files)
    if one.shape != other.shape or not one.size:
        return NONE
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    apart[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
    apart[np.isnan(apart)] = np.inf
    place = np.unravel_index(np.argmax(apart), apart.shape)
    values = one[place], other[place]
    return float(apart[place]), name, tuple(int(i) for i in place), values


def pair_of(finding, run, earlier):
    """Returns the Pair whose tensors show a finding, or None if it is about no tensors."""
    if finding.update is None or not finding.tensors:
        return None
    first = run.ranks[0].rank
    if finding.claim == earlier_run.NAME:
        folders, ranks, names = (run.folder, earlier.run.folder), (first, first), ("now", "then")
    elif finding.claim == parameters.NAME:
        ranks = first, differing_rank(run, finding)
        folders, names = (run.folder, run.folder), ["on rank %d" % rank for rank in ranks]
    else:
        return None
    paths = [record.tensors_path(f, r, finding.update) for f, r in zip(folders, ranks)]
    return Pair(paths, names, finding.update)


def differing_rank(run, finding):
    """Returns the first rank whose parameters differ from those of the first one."""
    for rank in run.ranks[1:]:
        for number, optimizer in rank.optimizers.items():
            for one, other in zip(run.ranks[0].optimizers[number].steps, optimizer.steps):
                if one.update == finding.update and (one.before, one.after) != (
                    other.before,
                    other.after,
                ):
                    return rank.rank
    return run.ranks[-1].rank


def add_evidence(findings, run, earlier):
    """Adds the largest difference to each finding; returns notes on how to keep what is missing."""
    notes = []
    for finding in findings:
        pair = run.folder and pair_of(finding, run, earlier)
        if not pair:
            continue
        missing = [path for path in pair.paths if not os.path.exists(path)]
        if missing:
            notes.append(
                "to see the tensors, repeat the run%s with --keep=%d"
                % ("" if missing[0] == pair.paths[0] else " of the reference", pair.update)
            )
            continue
        words = pair.compare(finding.tensors)
        finding.evidence += [words] if words else []
    return notes
