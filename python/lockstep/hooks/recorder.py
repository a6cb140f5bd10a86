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
DEFAULTS = {"first": 10, "every": 10, "limit_mb": 256, "tensors": False}


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
        self._begin()
        atexit.register(self.guard, "end", self._end)
        os.register_at_fork(after_in_child=lambda: self.guard("fork", self._after_fork))
        self._hook_exceptions()

    def _begin(self):
        self.file = record.RecordFile(self.folder, int(self.options["limit_mb"] * (1 << 20)))
        self.rank = None
        self.world_size = 1
        self.errors = 0
        self.ended = False
        self.update = 0  # The number of optimizer steps that have ended.
        self.watched = []
        self.place = None
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

    def _after_fork(self):
        """A fork may be a loader's worker, which stays silent, or a rank, which opens a file."""
        self._begin()
        for function in self.on_fork:
            function()

    def event(self, kind, /, **fields):
        self.file.write({"event": kind, **fields})

    def open(self):
        """Says that this process trains: its record is a file from now on."""
        if self.rank is not None:
            return
        self.file.open()
        self.found = find_rank()
        self.rank, self.world_size, source = self.found
        self.event("rank", rank=self.rank, world_size=self.world_size, source=source)
        self.file.name_rank(self.rank)
        self._show_place()
        # A child of multiprocessing runs these finalizers and no atexit.
        multiprocessing.util.Finalize(None, self.guard, ("end", self._end), exitpriority=0)

    def _show_place(self):
        """Lets `lockstep run` see in which call this rank waits, and ask for its stack."""
        number = 0
        if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:
            number = STACK_SIGNAL
            path = place.stack_path_of(self.folder, self.rank)
            self.stacks = open(path, "w", encoding="utf-8")  # Open as long as the process runs.
            faulthandler.register(number, file=self.stacks, all_threads=True)
        self.place = place.Writer(place.path_of(self.folder, self.rank), number)

    def enter_call(self, kind, line, group):
        """Says that a call begins that may wait for other ranks."""
        if self.place:
            self.place.enter(kind, line, group and str(group))

    def leave_call(self):
        if self.place:
            self.place.leave()

    def guard(self, what, function, *arguments):
        """Runs a hook. Its errors are recorded as ours and do not reach the script."""
        if getattr(self.quiet, "depth", 0):
            return None
        self.quiet.depth = 1
        try:
            return function(*arguments)
        except Exception:
            self._report(what)
            return None
        finally:
            self.quiet.depth = 0

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
        if self.place:
            self.place.end()
        self.event("end", update=self.update, errors=self.errors, time=time.time())


def find_rank():
    """Returns the rank, the world size, and where they are from."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), "init_process_group"
    for rank, size in RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size]), rank
    return 0, 1, "none"


def report_failed_start():
    """Leaves the error that kept the recorder from starting, for `lockstep run` to report."""
    try:
        path = os.path.join(os.environ["LOCKSTEP_RECORD"], "error-%d.txt" % os.getpid())
        with open(path, "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except (OSError, KeyError):
        pass
