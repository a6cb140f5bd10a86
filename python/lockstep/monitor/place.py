"""Where a rank is: whether it is in a call that waits for other ranks, and since when.

A rank maps a file of SIZE bytes and writes it at each such call, which costs some microseconds.
`lockstep run` reads the files. The time is the host's monotonic clock, which its processes share.
"""

import json
import mmap
import os
import struct
import threading
import time

SIZE = 1024
# The number of changes (odd while one is made), the process, the state, the time at which it
# began, the usual time in the call, the signal that asks for a stack, the length of the text.
HEADER = struct.Struct("<7q")
OUTSIDE, INSIDE, ENDED = 0, 1, 2


class Writer:
    """A rank's own place. Calls of its main thread count; a call inside another is part of it."""

    def __init__(self, path, signal):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.ftruncate(descriptor, SIZE)
        self.memory = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)
        self.signal = signal
        self.changes = 0
        self.depth = 0
        self.since = self.left = 0
        self.key = None
        self.counts = True
        self.call = {"kind": "wait", "group": "all"}
        self.longest = {}  # By kind and line: the longest time in the call.
        self.longest_between = 0  # The longest time between two calls.
        self.issued = {}  # By group: the number of calls.
        self.write(OUTSIDE, 0)

    def enter(self, kind, line, group, least=0):
        """Begins a call. With the group None it waits for the last call that was begun.

        least: the usual time is so many seconds at least. The time between such a call and the
        next one says nothing of later ones.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self.depth += 1
        if self.depth > 1:
            return
        self.since = time.monotonic_ns()
        if self.left:
            self.longest_between = max(self.longest_between, self.since - self.left)
        self.key = kind, line
        if group is not None:
            self.call = {"kind": kind, "group": group}
            self.issued[group] = self.issued.get(group, 0) + 1
        self.counts = not least
        usual = max(self.longest.get(self.key, 0), self.longest_between, int(least * 1e9))
        text = {**self.call, "line": line, "issued": self.issued}
        self.write(INSIDE, usual, json.dumps(text).encode())

    def leave(self):
        if threading.current_thread() is not threading.main_thread() or not self.depth:
            return
        self.depth -= 1
        if self.depth:
            return
        now = time.monotonic_ns()
        self.longest[self.key] = max(self.longest.get(self.key, 0), now - self.since)
        self.since = now
        self.left = now if self.counts else 0
        self.write(OUTSIDE, 0)

    def end(self):
        self.write(ENDED, 0)

    def write(self, state, usual, text=None):
        """Writes the state. Without a text, that of the last call stays."""
        kept = HEADER.unpack_from(self.memory, 0)[-1] if text is None else len(text)
        fits = text is not None and len(text) <= SIZE - HEADER.size
        self.changes += 2
        fields = os.getpid(), state, self.since, usual, self.signal
        HEADER.pack_into(self.memory, 0, self.changes - 1, *fields, 0)
        if fits:
            self.memory[HEADER.size : HEADER.size + len(text)] = text
        HEADER.pack_into(self.memory, 0, self.changes, *fields, kept if fits or text is None else 0)


class Place:
    """What a reader found."""

    def __init__(self, rank, fields, text):
        self.rank = rank
        _, self.pid, self.state, self.since, usual, self.signal, _ = fields
        self.usual = usual / 1e9
        self.seconds = (time.monotonic_ns() - self.since) / 1e9 if self.since else 0.0
        values = json.loads(text) if text else {}
        self.kind = values.get("kind", "")
        self.line = values.get("line", "")
        self.group = values.get("group", "all")
        self.issued = values.get("issued", {})

    @property
    def inside(self):
        return self.state == INSIDE

    def same_call(self, other):
        return (self.kind, self.group) == (other.kind, other.group)


def path_of(folder, rank):
    return os.path.join(folder, "rank%d.place" % rank)


def stack_path_of(folder, rank):
    return os.path.join(folder, "rank%d.stack" % rank)


def read(folder, rank):
    """Returns the Place of a rank, or None if it has none or is writing it."""
    return read_path(path_of(folder, rank), rank)


def read_path(path, rank=None):
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE)
            file.seek(0)
            again = file.read(HEADER.size)
    except OSError:
        return None
    if len(data) < SIZE or data[: HEADER.size] != again:
        return None
    fields = HEADER.unpack_from(data)
    if fields[0] % 2 or not fields[1]:
        return None
    return Place(rank, fields, data[HEADER.size : HEADER.size + fields[-1]])
