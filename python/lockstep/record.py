"""The record of a run: a folder with a file of JSON lines for each rank.

A line is one event. Its key "event" names the kind; README.md lists them. The file of a process
has the name process-PID.jsonl until the rank is known, then rankR.jsonl; a rank that starts again
writes rankR.1.jsonl. A file that has reached its limit ends with an event "bounded".
"""

import json
import os
import re

KEPT_AFTER_LIMIT = ("end", "exception", "error", "rank", "bounded")


class RecordFile:
    """Writes one process's events, each in one write, so that a killed process leaves them."""

    def __init__(self, folder, limit_bytes):
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.written = 0
        self.bounded = False
        self.path = os.path.join(folder, "process-%d.jsonl" % os.getpid())
        self.descriptor = None
        self.waiting = []

    def write(self, event):
        """Keeps the event, and writes it once the file is open."""
        if self.bounded and event["event"] not in KEPT_AFTER_LIMIT:
            return
        line = (json.dumps(event, separators=(",", ":")) + "\n").encode()
        if not self.bounded and self.written + len(line) > self.limit_bytes:
            self.bounded = True
            self.write({"event": "bounded", "limit_bytes": self.limit_bytes})
            return
        self.written += len(line)
        if self.descriptor is None:
            self.waiting.append(line)
        else:
            os.write(self.descriptor, line)

    def open(self):
        """Creates the file. Events that were kept until now are its first lines."""
        if self.descriptor is not None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o644)
        os.write(self.descriptor, b"".join(self.waiting))
        self.waiting = []

    def name_rank(self, rank):
        """Gives the open file the name of its rank."""
        attempt = 0
        while True:
            name = "rank%d%s.jsonl" % (rank, ".%d" % attempt if attempt else "")
            path = os.path.join(self.folder, name)
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                attempt += 1
        os.replace(self.path, path)
        self.path = path


def read_events(path):
    """Returns the events of a file. A last line that is not whole is left out."""
    events = []
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                events.append(json.loads(line))
            except ValueError:
                break
    return events


def tensors_path(folder, rank, update):
    """Returns the path of the whole tensors of an update."""
    return os.path.join(folder, "rank%d.step%d.npz" % (rank, update))


def rank_paths(folder):
    """Returns {rank: path} of the last start of each rank, and the paths without a rank."""
    last, unnamed = {}, []
    for name in sorted(os.listdir(folder)):
        match = re.fullmatch(r"rank(\d+)(?:\.(\d+))?\.jsonl", name)
        if match:
            rank, attempt = int(match[1]), int(match[2] or 0)
            last[rank] = max(last.get(rank, (-1, "")), (attempt, os.path.join(folder, name)))
        elif re.fullmatch(r"process-\d+\.jsonl", name):
            unnamed.append(os.path.join(folder, name))
    return {rank: path for rank, (_, path) in last.items()}, unnamed
