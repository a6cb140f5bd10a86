"""Asks a rank's process for its Python stack, and whether it computes."""

import os
import re
import signal
import time

from ..hooks import lines
from .place import stack_path_of

DEADLINE_SECONDS = 0.3
POLL_SECONDS = 0.01
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def catches(pid, number):
    """Whether the process has a handler for the signal, which would end it otherwise."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except OSError:
        pass
    return False


def alive(pid):
    """Whether the process runs. One that has ended and waits for its parent does not."""
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processor_seconds(pid):
    """Returns the processor time of all threads of a process, 0 if there is none."""
    try:
        with open("/proc/%s/stat" % pid, encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stack_of(folder, place):
    """Returns [(file, line number, function)] of the main thread, innermost first, or []."""
    path = getattr(place, "stack_path", "") or stack_path_of(folder, place.rank)
    try:
        size = os.path.getsize(path)
        process = os.pidfd_open(place.pid)
    except OSError:
        return []
    try:
        if not place.signal or not catches(place.pid, place.signal):
            return []
        signal.pidfd_send_signal(process, place.signal)
    except OSError:
        return []
    finally:
        os.close(process)
    return frames(read_dump(path, size))


def read_dump(path, start):
    """Returns what is written behind `start`, once nothing is added any more."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    text = ""
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(start)
            now = file.read()
        if now and now == text:
            break
        text = now
    return text


def frames(dump):
    """Returns the frames of the last thread of a dump, which is the main one, without our own."""
    found = []
    for line in dump.splitlines():
        match = FRAME.fullmatch(line)
        if match is None:
            found = [] if line.endswith("(most recent call first):") else found
        elif not lines.is_own(match[1]):
            found.append((match[1], int(match[2]), match[3]))
    return found
