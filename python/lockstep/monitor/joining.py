"""Ranks that have not called init_process_group, while another rank waits for them there."""

import glob
import os
import time

from ..hooks import recorder
from . import place

CALL = recorder.JOINS
HAS_NOT_JOINED = " and has not joined"
SEARCH_SECONDS = 1.0  # Between two searches of all processes.
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class Unjoined:
    """A rank that has no place yet. pid: its process, or None if none is known on this host.

    never: whether it will never join, because the launcher starts all ranks on this host.
    """

    state, inside, kind, line, since, seconds, usual = place.OUTSIDE, False, "", "", 0, 0.0, 0.0
    signal = recorder.STACK_SIGNAL

    def __init__(self, rank, pid, stack_path, never):
        self.rank = rank
        self.never = never
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
    if any(rank not in processes for rank in without):
        processes = {**Search.of(folder).processes(), **processes}
    here = all(is_alone(p.pid) for p in waiting)
    unjoined = {}
    for rank in without:
        pid, path = processes.get(rank, (None, ""))
        unjoined[rank] = Unjoined(rank, pid, path, here and pid is None)
    return {**places, **unjoined}


def grace(folder):
    """Returns for how many seconds more than usual the ranks may record nothing.

    Ranks that wait in init_process_group record nothing while others still import PyTorch. The
    first DDP of a process imports the parts that compile, since PyTorch 2.
    """
    ranks = glob.glob(os.path.join(glob.escape(folder), "rank*.place"))
    places = [place.read_path(path) for path in ranks]
    imports = any(p and p.inside and p.kind in (CALL, recorder.MAKES_DDP) for p in places)
    return recorder.JOIN_SECONDS if imports else 0


def processes_by_rank(folder):
    """Returns {rank: (pid, path of its stacks)} of processes whose variables name their rank."""
    found = {}
    for path in glob.glob(os.path.join(glob.escape(folder), "process-*.stack")):
        pid = int(os.path.basename(path)[len("process-") : -len(".stack")])
        known = recorder.rank_in(variables_of(pid))
        if known:
            found[known[0]] = pid, path
    return found


def variables_of(pid):
    """Returns the variables with which a process was started, or none if it is gone."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def is_alone(pid):
    """Whether a launcher's variables name the rank of a process, and all ranks are on this host."""
    variables = variables_of(pid)
    known = recorder.rank_in(variables)
    sizes = [variables[name] for name in LOCAL_SIZES if name in variables]
    return known is not None and sizes[:1] == [str(known[1])]


class Search:
    """Finds processes of the run that have not imported PyTorch yet, among all of this host."""

    last = None

    def __init__(self, folder):
        self.folder = folder
        self.time = -SEARCH_SECONDS
        self.found = {}

    @classmethod
    def of(cls, folder):
        if cls.last is None or cls.last.folder != folder:
            cls.last = cls(folder)
        return cls.last

    def processes(self):
        """Returns {rank: (pid, "")}, which is up to date to a second."""
        if time.monotonic() - self.time >= SEARCH_SECONDS:
            self.time = time.monotonic()
            self.found = {}
            for name in filter(str.isdigit, os.listdir("/proc")):
                variables = variables_of(int(name))
                known = recorder.rank_in(variables)
                if known and variables.get("LOCKSTEP_RECORD") == os.path.abspath(self.folder):
                    self.found.setdefault(known[0], (int(name), ""))
        return self.found
