"""Changes a reference run on purpose: its order of samples, its rounding, its files, its length.

Only runs that `lockstep run --reference` starts by itself are changed, and never the user's run.
"""

import functools
import os
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from . import shards, tensors

SPACING = 2.0**-23  # Of float32 numbers at 1.
PATIENCE_SECONDS = 10
POLL_SECONDS = 0.01


def install(recorder):
    seed, options = recorder.options.get("perturb"), recorder.options
    if seed:
        if options.get("reorder", True):
            reorder_batches(np.random.RandomState(seed))
        random = np.random.RandomState(seed)
        scale = Scale(1 + (2 * random.randint(64) + 1) / 128)  # No power of two; exact in bfloat16.
        spacing = options.get("spacing") or SPACING
        recorder.perturb = functools.partial(perturb, random, spacing, scale)
        perturb_parameters(recorder.perturb)
    if options.get("no_gpu"):
        replace_nccl()
    if options.get("reference"):
        divert_files(os.path.join(recorder.folder, "files"))
        end_after(recorder, options["reference"])


def replace_nccl():
    """Makes groups of gloo where the script asks for NCCL, which needs a GPU."""
    if dist.is_available():
        for name, place in (("init_process_group", 0), ("new_group", 2)):
            replaced = with_gloo(getattr(dist.distributed_c10d, name), place)
            setattr(dist.distributed_c10d, name, replaced)
            setattr(dist, name, replaced)


def with_gloo(original, place):
    """place: that of the backend among the arguments."""

    @functools.wraps(original)
    def replaced(*args, **kwargs):
        args = [*args[:place], *map(instead_of_nccl, args[place : place + 1]), *args[place + 1 :]]
        if "backend" in kwargs:
            kwargs["backend"] = instead_of_nccl(kwargs["backend"])
        return original(*args, **kwargs)

    return replaced


def instead_of_nccl(backend):
    """Returns gloo for NCCL, also for words such as "cpu:gloo,cuda:nccl"."""
    return "gloo" if "nccl" in str(backend).lower() else backend


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


class Scale:
    """Scales each backward pass at its root, and its gradients back where parameters get them.

    All roundings in between change, also those of sums that no order of samples changes, such as
    the sums of a bias whose terms are all 1 or -1.
    """

    def __init__(self, factor):
        self.factor = factor
        self.possible = True
        self.scales = False  # In a backward pass that is scaled.
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(roots, grad_tensors=None, *args, **kwargs):
            if self.scales:  # A pass inside of another one gets gradients that are scaled.
                return original(roots, grad_tensors, *args, **kwargs)
            gradients = self.scaled(roots, grad_tensors)
            try:
                return original(roots, gradients, *args, **kwargs)
            finally:
                self.scales = False

        torch.autograd.backward = backward

    def scaled(self, roots, gradients):
        """Returns the roots' gradients times the factor."""
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if isinstance(gradients, torch.Tensor) or gradients is None:
            gradients = [gradients] * len(roots)
        if not self.possible or any(r.numel() > 1 and g is None for r, g in zip(roots, gradients)):
            return gradients
        self.scales = True
        return [
            (torch.ones_like(r) if g is None else g) * self.factor
            for r, g in zip(roots, gradients)
        ]

    def add(self, parameter):
        if shards.is_sharded(parameter) or type(parameter).__name__ == "FlatParameter":
            self.possible = False  # Hooks of sharded parameters do not see their gradients.
        elif parameter.requires_grad and parameter.is_leaf:
            parameter.register_hook(self.scale_back)

    def scale_back(self, gradient):
        """Changes a gradient of backward(), and none of autograd.grad, which is not scaled."""
        return gradient / self.factor if self.scales else gradient


def perturb(random, spacing, scale, parameter):
    """Moves a parameter by half a unit in the last place."""
    scale.add(parameter)
    values = parameter.data
    values = values.to_local() if shards.is_sharded(values) else values
    signs = torch.from_numpy(random.choice([-1.0, 1.0], tuple(values.shape)))
    values += values * signs.to(values) * (spacing / 2)


def perturb_parameters(perturb_one):
    """Moves the first parameters of each optimizer."""
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def perturbed(self, *args, **kwargs):
        original(self, *args, **kwargs)
        for group in self.param_groups:
            for parameter in group["params"]:
                perturb_one(parameter)

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
            wait_for_ranks(recorder)
            os._exit(0)

    recorder.after_update = check


def wait_for_ranks(recorder):
    """Waits until all ranks have made their last update: some may still need this one's data."""
    rank, world_size, _ = recorder.found
    done = os.path.join(recorder.folder, "rank%d.done")
    with open(done % rank, "w", encoding="utf-8"):
        pass
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if all(os.path.exists(done % other) for other in range(world_size)):
            return
        time.sleep(POLL_SECONDS)
