"""Starts a command with the hooks in every Python process that it starts."""

import errno
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

from . import record
from .monitor import joining, watch

PRELOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preload")
OWN_FILES = ("rank*.jsonl", "rank*.place", "rank*.stack", "rank*.done", "process-*.*")
OWN_FILES += ("rank*.step*.npz", "error-*.txt", "waits.jsonl", "verdict.json")
GRACE_SECONDS = 10
POLL_SECONDS = 0.05


class Outcome:
    """How a command ended: its exit status, negative for a signal, and why it was ended."""

    def __init__(self, status, hung_seconds=None, stopped=None):
        self.status = status
        self.hung_seconds = hung_seconds
        self.stopped = stopped  # The finding for which --fail_fast ended it.


def prepare_folder(folder):
    """Makes the folder of the record. Files of an earlier record there are deleted."""
    os.makedirs(folder, exist_ok=True)
    for pattern in OWN_FILES:
        for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
            os.unlink(path)
    shutil.rmtree(os.path.join(folder, "reference"), ignore_errors=True)


def environment(folder, options, changed=()):
    variables = {**os.environ, **dict(changed)}
    path = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = PRELOAD + (os.pathsep + path if path else "")
    variables["LOCKSTEP_RECORD"] = os.path.abspath(folder)
    variables["LOCKSTEP_OPTIONS"] = json.dumps(options)
    return variables


def reserve_port():
    """Returns a socket that holds a free port of this host until it is closed.

    The socket does not listen, so rank 0 can listen there: PyTorch's store sets SO_REUSEADDR too.
    Linux gives the port to no process that asks for any free one, and to no connection.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # The host has no IPv6.
            continue
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.bind((address, 0))
            return held
        except OSError:
            held.close()
    raise OSError(errno.EADDRINUSE, "no port is free")


def start(command, variables, nproc, port):
    """Starts the command once, or as `nproc` ranks with the variables that torchrun sets."""
    if not nproc:
        return [subprocess.Popen(command, env=variables)]
    common = {
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": variables.get("OMP_NUM_THREADS", "1"),  # torchrun's default.
    }
    return [
        subprocess.Popen(
            command, env={**variables, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(nproc)
    ]


def run(command, folder, options, nproc=0, hang_seconds=0, fails_fast=None, changed=()):
    """Runs the command to its end, with changed variables, and returns an Outcome.

    If a rank of `nproc` fails, the others have GRACE_SECONDS to end. If hang_seconds is not 0, a
    command whose ranks record nothing for so long is ended. fails_fast: None, or a command that
    went wrong is ended, also one whose ranks are idle for so many seconds while others wait.
    Raises OSError if the command cannot be started.
    """
    prepare_folder(folder)
    with reserve_port() as held:  # For the ranks, as long as they run.
        variables = environment(folder, options, changed)
        children = start(command, variables, nproc, held.getsockname()[1])
        return follow(children, folder, hang_seconds, fails_fast, bool(nproc))


def follow(children, folder, hang_seconds, fails_fast, are_ranks):
    """Waits until all children have ended, or ends them; returns an Outcome.

    are_ranks: whether each child is a rank, and not a launcher of ranks.
    """
    interrupts, failed_at = 0, None
    silence = Silence(folder)
    watcher = Guarded(watch.Watch(folder, fails_fast is not None, say, fails_fast or 0), folder)
    while None in [child.poll() for child in children]:  # Learns the status of all that have ended.
        try:
            wait(children, POLL_SECONDS)
        except KeyboardInterrupt:  # The terminal has sent it to the children too.
            interrupts += 1
        if failed_at is None and any(child.returncode for child in children):
            failed_at = time.monotonic()
        late = failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS
        if interrupts > 2 or late:
            end(children, folder)
        elif hang_seconds and silence.seconds() > hang_seconds + joining.grace(folder):
            hung = silence.seconds()
            end(children, folder)
            return Outcome(worst_status(children), hung_seconds=hung)
        else:
            stopped = watcher.poll(statuses_of(children) if are_ranks else None)
            if stopped:
                end(children, folder)
                return Outcome(worst_status(children), stopped=stopped)
    return Outcome(worst_status(children))


class Guarded:
    """A Watch whose first error ends it, and neither the ranks nor the verdict."""

    def __init__(self, watcher, folder):
        self.watcher = watcher
        self.folder = folder

    def poll(self, statuses):
        if self.watcher is None:
            return None
        try:
            return self.watcher.poll(statuses)
        except Exception:
            self.watcher = None
            path = os.path.join(self.folder, "error-%d.txt" % os.getpid())
            with open(path, "w", encoding="utf-8") as file:  # The verdict reports it as ours.
                traceback.print_exc(file=file)
            return None


def statuses_of(children):
    """Returns {rank: exit status} of the ranks that have ended."""
    statuses = {rank: child.poll() for rank, child in enumerate(children)}
    return {rank: status for rank, status in statuses.items() if status is not None}


def say(text):
    """Prints a line at once, beside the output of the ranks."""
    print("lockstep: " + text, file=sys.stderr, flush=True)


def wait(children, seconds):
    for child in children:
        if child.poll() is None:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            return


def worst_status(children):
    """Returns the first child's status that is not 0; a status before a signal of our own."""
    failed = [child.returncode for child in children if child.returncode]
    return max(failed) if failed else 0


class Silence:
    """How long the ranks' files have not grown."""

    def __init__(self, folder):
        self.pattern = os.path.join(glob.escape(folder), "rank*.jsonl")
        self.sizes = {}
        self.changed = time.monotonic()

    def seconds(self):
        sizes = {}
        for path in glob.glob(self.pattern):
            try:
                sizes[path] = os.path.getsize(path)
            except OSError:
                pass
        if sizes != self.sizes or not sizes:
            self.sizes, self.changed = sizes, time.monotonic()
        return time.monotonic() - self.changed


def end(children, folder):
    """Ends the command, and the ranks that outlive it."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for path in record.rank_paths(folder)[0].values():
        for event in record.read_events(path)[:1]:
            end_rank(event.get("pid"), folder)


def end_rank(pid, folder):
    """Kills the process if it is still one that was started with this record's hooks."""
    ours = ("LOCKSTEP_RECORD=%s\0" % os.path.abspath(folder)).encode()
    try:
        # The file descriptor belongs to one process, not to a later one of the same number.
        process = os.pidfd_open(pid)
    except (OSError, TypeError):
        return
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            if ours in file.read():
                signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(process)
