"""Ranks that have not called init_process_group, while another rank waits for them there."""

import glob
import os

from ..hooks import recorder
from . import place

CALL = recorder.JOINS
HAS_NOT_JOINED = " and has not joined"


class Unjoined:
    """A rank that has no place yet. pid: its process, or None if none is known on this host."""

    state, inside, kind, line, since, seconds = place.OUTSIDE, False, "", "", 0, 0.0
    signal = recorder.STACK_SIGNAL

    def __init__(self, rank, pid, stack_path):
        self.rank = rank
        self.pid = pid
        self.stack_path = stack_path
        self.issued = {}


def complete(folder, places):
    """Returns all ranks' places, with an Unjoined for each without one, or None.

    None: a rank without a place is writing it, or no rank waits in init_process_group.
    """
    waiting = [p for p in places.values() if p and p.inside and p.kind == CALL]
    without = [rank for rank, known in places.items() if known is None]
    if not waiting or any(os.path.exists(place.path_of(folder, rank)) for rank in without):
        return None
    processes = processes_by_rank(folder)
    unjoined = {rank: Unjoined(rank, *processes.get(rank, (None, ""))) for rank in without}
    return {**places, **unjoined}


def grace(folder):
    """Returns for how many seconds more than usual the ranks may record nothing.

    Ranks that wait in init_process_group record nothing while others still import PyTorch.
    """
    ranks = glob.glob(os.path.join(glob.escape(folder), "rank*.place"))
    places = [place.read_path(path) for path in ranks]
    waits = any(p and p.inside and p.kind == CALL for p in places)
    return recorder.JOIN_SECONDS if waits else 0


def processes_by_rank(folder):
    """Returns {rank: (pid, path of its stacks)} of processes whose variables name their rank."""
    found = {}
    for path in glob.glob(os.path.join(glob.escape(folder), "process-*.stack")):
        pid = int(os.path.basename(path)[len("process-") : -len(".stack")])
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        known = recorder.rank_in(dict(word.split("=", 1) for word in words if "=" in word))
        if known:
            found[known[0]] = pid, path
    return found
