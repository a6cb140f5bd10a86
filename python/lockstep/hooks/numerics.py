"""Records what a run's numbers depend on: seeds, draws of random numbers, kinds of arithmetic."""

import random
import sys
import zlib

import numpy as np
import torch

WIDER = (torch.float32, torch.float64)


class Draws:
    """Tells whether the script itself draws random numbers between two updates.

    A sampler's draws do not count: the indices that they decide are recorded. A GPU's generators
    count from the first look at them on: the script begins to use the GPU at some time.
    """

    def __init__(self):
        self.known = None  # The generators' state when a sampler had drawn, or after an update.
        self.seen = False

    def before_sampler(self):
        self.seen = self.seen or self.moved()

    def after_sampler(self):
        self.known = state_of_generators()

    def take(self):
        """Returns whether numbers were drawn since the last update, as far as it is known."""
        seen = self.seen or self.moved()
        self.known, self.seen = state_of_generators(), False
        return seen

    def give_back(self, drew):
        """After take(): the next update's draws count from the same look on."""
        self.seen = self.seen or drew

    def moved(self):
        if self.known is None:
            return False
        pairs = zip(self.known, state_of_generators())
        return any(before is not None and before != now for before, now in pairs)


def state_of_generators():
    """Returns numbers for the states of the global generators of the host and of all GPUs.

    The second is None until the script uses a GPU. To ask earlier whether one is there would start
    CUDA's driver, and a process that the script forks later could use no GPU.
    """
    _, keys, position, _, _ = np.random.get_state()
    value = hash((random.getstate(), position)) ^ zlib.crc32(keys)
    value ^= zlib.crc32(torch.get_rng_state().numpy()) << 32
    if not torch.cuda.is_initialized():
        return value, None
    states = [generator.get_state().numpy() for generator in torch.cuda.default_generators]
    return value, tuple(map(zlib.crc32, states))


def describe(parameters):
    """Returns the devices and the kinds of arithmetic with which these parameters are trained."""
    return {
        "devices": sorted({p.device.type for p in parameters}),
        "threads": torch.get_num_threads(),
        "compiled": is_compiled(),
        "tf32": any(p.is_cuda for p in parameters) and allows_tf32(),
        "narrow": sorted({str(p.dtype)[6:] for p in parameters if p.dtype not in WIDER}),
    }


def allows_tf32():
    """Whether matrix products or convolutions on a GPU may round their factors to TF32."""
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return True
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # Since 2.9: each kind of operation has a setting, and these differ.
        return True


def is_compiled():
    """Whether torch.compile has compiled a part of the script."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo and dynamo.counters["frames"].get("ok"))


def install(recorder):
    recorder.draws = Draws()
    types = set()

    def seeded(args, kwargs):
        recorder.event("seed", seed=int(args[0] if args else kwargs["seed"]))

    def entered(token, result, args, kwargs):
        del token, result, kwargs
        kind = str(getattr(args[0], "fast_dtype", ""))[6:]
        if getattr(args[0], "_enabled", False) and kind not in types:
            types.add(kind)
            recorder.event("autocast", dtype=kind)

    recorder.wrap(torch, "manual_seed", seeded)
    recorder.wrap(torch.autocast, "__enter__", after=entered)
