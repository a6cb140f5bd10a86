"""Reads the events that running ranks append to their files."""

import json
import os

from .. import record


class RankFile:
    """The events of one file, from where the last read ended."""

    def __init__(self, path):
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.part = b""

    def read(self):
        """Returns the new whole events."""
        chunks = [self.part]
        while True:
            chunk = os.read(self.descriptor, 1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
        lines = b"".join(chunks).split(b"\n")
        self.part = lines.pop()
        return [json.loads(line) for line in lines]

    def close(self):
        os.close(self.descriptor)


class Follower:
    """Follows all ranks of a run. A rank that starts again ends that: `restarted` is then true."""

    def __init__(self, folder):
        self.folder = folder
        self.files = {}
        self.restarted = False

    def read(self):
        """Returns {rank: new events}, for ranks that have any."""
        for rank, path in record.rank_paths(self.folder)[0].items():
            if rank not in self.files:
                self.files[rank] = RankFile(path)
            elif self.files[rank].path != path:
                self.restarted = True
        found = {rank: file.read() for rank, file in sorted(self.files.items())}
        return {rank: events for rank, events in found.items() if events}

    def close(self):
        for file in self.files.values():
            file.close()
        self.files = {}
