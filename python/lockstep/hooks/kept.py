"""Keeps the tensors of one update whole, as rankR.stepS.npz, for `run --keep=S`."""

import os
import zipfile

import numpy as np

from .. import record
from . import tensors


class Kept:
    """Writes the tensors of an update one by one, up to a number of bytes."""

    def __init__(self, folder, rank, update, limit_bytes):
        self.path = record.tensors_path(folder, rank, update)
        self.left = limit_bytes
        self.left_out = 0
        self.file = zipfile.ZipFile(self.path, "w")

    def add(self, stage, names, values):
        """Adds a tensor for each name, except for those that are None or too large."""
        for name, value in zip(names, values):
            if value is None:
                continue
            array = tensors.numbers(tensors.plain(value))
            if array.nbytes > self.left:
                self.left_out += 1
                continue
            self.left -= array.nbytes
            with self.file.open("%s/%s.npy" % (stage, name), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)

    def close(self):
        self.file.close()


def begin(recorder, names, parameters, before=True):
    """Returns the Kept of this update, or None if another one is to be kept.

    before: whether the parameters are still those before the update.
    """
    if recorder.options.get("keep") != recorder.update:
        return None
    limit = int(recorder.options["limit_mb"] * (1 << 20))
    kept = Kept(recorder.folder, recorder.rank, recorder.update, limit)
    if before:
        kept.add("before", names, parameters)
    kept.add("gradient", names, [p.grad for p in parameters])
    return kept


def drop(kept):
    """Instead of end(), if the update was skipped."""
    kept.close()
    os.unlink(kept.path)


def end(recorder, kept, names, parameters):
    """After the update."""
    kept.add("after", names, parameters)
    kept.close()
    recorder.event("kept", update=recorder.update, left_out=kept.left_out)
