"""Changes a reference run on purpose: its order of samples, its rounding, its files, its length.

Only runs that `lockstep run --reference` starts by itself are changed, and never the user's run.
"""

import functools
import os
import zlib

import numpy as np
import torch
from torch.utils.data import dataloader

from . import shards, tensors

UNIT = 2.0**-23  # The spacing of float32 numbers at 1.


def install(recorder):
    seed = recorder.options.get("perturb")
    if seed:
        reorder_batches(np.random.RandomState(seed))
        perturb_parameters(np.random.RandomState(seed))
    if recorder.options.get("reference"):
        divert_files(os.path.join(recorder.folder, "files"))
        end_after(recorder, recorder.options["reference"])


def reorder_batches(random):
    """Gives the samples of each batch in another order."""
    iterator = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def reordered(self):
        batch = original(self)
        leaves = tensors.leaves_of(batch)
        rows = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves}
        if len(rows) == 1 and 0 not in rows:
            order = torch.from_numpy(random.permutation(rows.pop()))
            for leaf in leaves:
                leaf.copy_(leaf[order])
        return batch

    iterator.__next__ = reordered


def perturb_parameters(random):
    """Moves the first parameters of each optimizer by at most a unit in the last place."""
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def perturbed(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for group in self.param_groups:
            for parameter in group["params"]:
                values = parameter.data
                values = values.to_local() if shards.is_sharded(values) else values
                signs = torch.from_numpy(random.choice([-1.0, 1.0], tuple(values.shape)))
                values += values * signs.to(values) * (UNIT / 2)

    torch.optim.Optimizer.__init__ = perturbed


def divert_files(folder):
    """Keeps the user's checkpoints: the reference saves into its own folder, and loads from it."""
    save, load = torch.save, torch.load

    def diverted(path):
        if not isinstance(path, (str, os.PathLike)):
            return path
        name = "%08x-%s" % (zlib.crc32(os.path.abspath(path).encode()), os.path.basename(path))
        return os.path.join(folder, name)

    @functools.wraps(save)
    def save_elsewhere(value, f, *args, **kwargs):
        os.makedirs(folder, exist_ok=True)
        return save(value, diverted(f), *args, **kwargs)

    @functools.wraps(load)
    def load_from_elsewhere(f, *args, **kwargs):
        path = diverted(f)
        return load(path if isinstance(path, str) and os.path.exists(path) else f, *args, **kwargs)

    torch.save, torch.load = save_elsewhere, load_from_elsewhere


def end_after(recorder, updates):
    """Ends the process after so many updates: nothing more is compared."""

    def check():
        if recorder.update >= updates:
            recorder.event("end", update=recorder.update, errors=recorder.errors)
            os._exit(0)

    recorder.after_update = check
