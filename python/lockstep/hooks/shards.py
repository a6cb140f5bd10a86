"""This rank's part of a sharded tensor, and the gradients that FSDP2 reduces.

FSDP2 (torch.distributed.fsdp.fully_shard, PyTorch 2.6 and newer) replaces each parameter by a
DTensor of which a rank holds some rows. The forward and the backward pass use a whole copy, whose
gradient is reduced and scattered to the DTensors.
"""

import math
import weakref

UNKNOWN_PART = "the parameters are sharded in other ways than by rows over all ranks"


def is_sharded(tensor):
    return hasattr(tensor, "to_local")


def part_of(tensor, world_size):
    """Returns [first element, number] of a DTensor's run of elements on this rank, or None.

    None stands for parts that are no run, and for tensors that only some of the ranks hold.
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None or mesh.size() != world_size:
        return None
    rows = [0, tensor.shape[0] if tensor.dim() else 1]
    shards = 0
    for axis, placement in enumerate(tensor.placements):
        if type(placement).__name__ == "Replicate":
            continue
        if type(placement).__name__ != "Shard" or placement.dim != 0 or shards:
            return None
        shards += 1
        share = -(-rows[1] // mesh.size(axis))  # As torch.chunk divides.
        first = min(rows[1], coordinate[axis] * share)
        rows = [first, min(share, rows[1] - first)]
    row = math.prod(tensor.shape[1:])
    found = [rows[0] * row, rows[1] * row]
    return found if found[1] == tensor.to_local().numel() else None


def parts_of(parameters, world_size):
    """Returns this rank's part of each parameter, and None for one that the rank holds whole."""
    return [part_of(p, world_size) if is_sharded(p) else None for p in parameters]


def why_unknown(parameters, parts):
    """Returns why the ranks' parts cannot be put together, or ""."""
    known = all(part or not is_sharded(p) for p, part in zip(parameters, parts))
    return "" if known else UNKNOWN_PART


def is_scattered_as(gradient, parameter):
    """Whether a rank holds the same part of a gradient as of its parameter."""
    if not is_sharded(parameter):
        return not is_sharded(gradient)
    return is_sharded(gradient) and gradient.placements == parameter.placements


class WholeGradients:
    """Observes the gradients of FSDP2's whole copies, before they are reduced."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.hooked = weakref.WeakSet()

    def unsharded(self, token, result, args, kwargs):
        """After FSDPParam.to_unsharded(): its whole copy exists."""
        del token, result, kwargs
        owner = args[0]
        whole = owner.unsharded_param
        if owner in self.hooked or not whole.requires_grad or is_sharded(whole):
            return
        self.hooked.add(owner)
        whole.register_hook(self.gradient_hook(weakref.ref(owner)))  # The copy's owner holds it.

    def gradient_hook(self, reference):
        def hook(gradient):
            owner = reference()
            if owner is not None:
                self.recorder.guard("gradient", self.see, owner.sharded_param, gradient)

        return hook

    def see(self, parameter, gradient):
        for state in self.recorder.optimizers.known.values():
            index = state.index_of(parameter)
            if index is not None:
                state.see_gradient(index, gradient)


def install(recorder, module):
    """Installs the hooks in PyTorch's module of FSDP2's parameters."""
    if hasattr(module.FSDPParam, "unsharded_param"):
        hooks = WholeGradients(recorder)
        recorder.wrap(module.FSDPParam, "to_unsharded", after=hooks.unsharded)
