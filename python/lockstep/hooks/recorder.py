"""The recorder of one process: its rank, its events, and the guard that every hook runs under."""

import atexit
import faulthandler
import functools
import json
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
import weakref

from .. import record
from ..monitor import place
from . import lines

active = None

ERRORS_KEPT = 20
# Names of the variables by which launchers tell a rank, and the world size.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
STACK_SIGNAL = signal.SIGRTMAX - 5  # Asks for the rank's stack. Few programs use it.
JOINS = "init_process_group"
MAKES_DDP = "DDP's constructor"
JOIN_SECONDS = 10  # Ranks of one command start and import PyTorch within such a time, usually.
DEFAULTS = {"first": 10, "every": 10, "limit_mb": 256, "keep": None}


class Recorder:
    """Writes the events of this process. One object a process; a fork starts with a new file."""

    @staticmethod
    def start():
        global active
        active = Recorder(
            os.environ["LOCKSTEP_RECORD"], json.loads(os.environ.get("LOCKSTEP_OPTIONS", "{}"))
        )
        return active

    def __init__(self, folder, options):
        self.folder = folder
        self.options = {**DEFAULTS, **options}
        self.quiet = threading.local()  # .depth > 0 inside of a hook.
        self.on_fork = []
        self.after_update = None  # Of a reference run.
        self.perturb = lambda parameter: None  # A reference run moves parameters by a rounding.
        self.by_hand = None
        self._begin()
        atexit.register(self.guard, "end", self._end)
        os.register_at_fork(after_in_child=lambda: self.guard("fork", self._after_fork))
        self._hook_exceptions()

    def _begin(self):
        self.file = record.RecordFile(self.folder, int(self.options["limit_mb"] * (1 << 20)))
        self.rank = None
        self.world_size = 1
        self.errors = 0
        self.captures = False
        self.ended = False
        self.update = 0  # The number of optimizer steps that have ended.
        self.watched = []
        self.place = None
        self.stacks = None
        torch = sys.modules.get("torch")
        self.event(
            "process",
            pid=os.getpid(),
            argv=list(getattr(sys, "argv", [])),
            torch=str(getattr(torch, "__version__", "")),
            python=sys.version.split()[0],
            time=time.time(),
            options=self.options,
        )
        if rank_in(os.environ):
            self._catch_stack_signal(os.path.join(self.folder, "process-%d.stack" % os.getpid()))

    def _after_fork(self):
        """A fork may be a loader's worker, which stays silent, or a rank, which opens a file."""
        self._begin()
        for function in self.on_fork:
            function()

    def event(self, kind, /, **fields):
        self.file.write({"event": kind, **fields})

    def open(self, found=None):
        """Says that this process trains: its record is a file from now on.

        found: the rank, the world size, and where they are from, if the caller knows them.
        """
        if self.rank is not None:
            return
        self.file.open()
        self._take_rank(found or find_rank())
        # A child of multiprocessing runs these finalizers and no atexit.
        multiprocessing.util.Finalize(None, self.guard, ("end", self._end), exitpriority=0)

    def _take_rank(self, found):
        self.found = found
        self.rank, self.world_size, source = found
        self.event("rank", rank=self.rank, world_size=self.world_size, source=source)
        self.file.name_rank(self.rank)
        self._show_place()

    def _show_place(self):
        """Lets `lockstep run` see in which call this rank waits, and ask for its stack."""
        path = place.stack_path_of(self.folder, self.rank)
        if self.stacks:
            os.replace(self.stacks.name, path)
        else:
            self._catch_stack_signal(path)
        number = STACK_SIGNAL if self.stacks else 0
        self.place = place.Writer(place.path_of(self.folder, self.rank), number)

    def _catch_stack_signal(self, path):
        if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:
            self.stacks = open(path, "w", encoding="utf-8")  # Open as long as the process runs.
            faulthandler.register(STACK_SIGNAL, file=self.stacks, all_threads=True)

    def join(self, rank, world_size):
        """Before init_process_group, with its arguments: the rank may wait there for others."""
        known = (rank, world_size, JOINS) if rank >= 0 and world_size >= 0 else None
        known = known or rank_in(os.environ)
        if known:
            self.open(known)
        self.enter_call(JOINS, lines.user_line(), "joining", JOIN_SECONDS)

    def joined(self):
        """After init_process_group, which may know the rank better than variables do."""
        self.open()
        found = find_rank()
        if found[:2] != self.found[:2]:
            self._take_rank(found)

    def enter_call(self, kind, line, group, usual=0):
        """Says that a call begins that may wait for other ranks, for `usual` seconds at least."""
        if self.place:
            self.place.enter(kind, line, group and str(group), usual)

    def leave_call(self):
        if self.place:
            self.place.leave()

    def guard(self, what, function, *arguments):
        """Runs a hook. Its errors are recorded as ours and do not reach the script."""
        if getattr(self.quiet, "depth", 0):
            return None
        self.quiet.depth = 1
        try:
            if what != "exception" and captures_graph():
                self.see_capture()
                return None
            return function(*arguments)
        except Exception:
            self._report(what)
            return None
        finally:
            self.quiet.depth = 0

    def see_capture(self):
        """Says once that the script captures a CUDA graph."""
        if not self.captures:
            self.captures = True
            self.event("capture", update=self.update, line=lines.user_line())

    def _report(self, what):
        self.errors += 1
        if self.errors > ERRORS_KEPT:
            return
        try:
            self.event("error", hook=what, traceback=traceback.format_exc(limit=-6))
        except Exception:
            self.errors = ERRORS_KEPT + 1  # The record cannot be written: no more is tried.

    def wrap(self, owner, name, before=None, after=None, last=None):
        """Replaces owner.name by a function that observes each call of it.

        before(args, kwargs) runs first; its result goes to after(token, result, args, kwargs). A
        call that raises skips `after`. last() ends every call. No hook observes another hook.
        """
        original = getattr(owner, name, None)
        if original is None or getattr(original, "_lockstep_hook", False):
            return
        what = "%s.%s" % (getattr(owner, "__name__", owner), name)

        @functools.wraps(original)
        def hooked(*args, **kwargs):
            token = before and self.guard(what, before, args, kwargs)
            try:
                result = original(*args, **kwargs)
                if after:
                    self.guard(what, after, token, result, args, kwargs)
                return result
            finally:
                if last:
                    self.guard(what, last)

        hooked.__code__ = hooked.__code__.replace(co_filename=lines.HOOK_FILE)
        hooked._lockstep_hook = True
        setattr(owner, name, hooked)

    def watch(self, model, optimizer):
        if optimizer is not None:
            self.optimizers.add(optimizer)  # One that is no torch.optim.Optimizer, in particular.
        models = model if isinstance(model, (list, tuple)) else [model]
        self.watched.extend(weakref.ref(each) for each in models)

    def _hook_exceptions(self):
        previous = sys.excepthook

        def hook(kind, value, trace):
            self.guard("exception", self.see_exception, kind, value, trace)
            previous(kind, value, trace)

        sys.excepthook = hook

    def see_exception(self, kind, value, trace):
        self.event(
            "exception",
            type=kind.__name__,
            text=str(value)[:500],
            line=lines.line_of_traceback(trace),
            update=self.update,
        )

    def _end(self):
        if self.ended:
            return
        self.ended = True
        if self.by_hand:
            self.by_hand.settle()
        if self.place:
            self.place.end()
        elif self.stacks:
            os.unlink(self.stacks.name)
        self.event("end", update=self.update, errors=self.errors, time=time.time())


def captures_graph():
    """Whether the script captures a CUDA graph. No hook may read a tensor then: that would fail."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())


def find_rank():
    """Returns the rank, the world size, and where they are from."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), "init_process_group"
    return rank_in(os.environ) or (0, 1, "none")


def rank_in(variables):
    """Returns the same from a launcher's variables, or None."""
    for rank, size in RANK_VARIABLES:
        if variables.get(rank, "").isdigit() and variables.get(size, "").isdigit():
            return int(variables[rank]), int(variables[size]), rank
    return None


def report_failed_start():
    """Leaves the error that kept the recorder from starting, for `lockstep run` to report."""
    try:
        path = os.path.join(os.environ["LOCKSTEP_RECORD"], "error-%d.txt" % os.getpid())
        with open(path, "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except (OSError, KeyError):
        pass
