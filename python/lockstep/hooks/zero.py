"""DeepSpeed's ZeRO: each rank updates its part of the parameters, in flat tensors.

The optimizer holds one flat tensor for each group. With stages 1 and 2, a rank's flat tensor is a run
of the group's parameters, made flat. With stage 3 it holds a part of each parameter, which is padded
to as many numbers on each rank. A rank's parts of the model's parameters are recorded as FSDP2's are.
Their gradients exist only while the group is updated, and a call of ZeRO's step() updates all groups:
it is one update.
"""

import torch.distributed as dist

from . import kept, tensors


class Slices:
    """This rank's parts of the model's parameters: views of the flat tensors that ZeRO updates."""

    def __init__(self, groups):
        """groups: for each flat tensor, the tensor and its pieces.

        A piece is a parameter, its shape, the place of its first number in the parameter, how many
        numbers it has, and its place in the flat tensor.
        """
        self.wholes, self.views, self.parts, self.shapes = [], [], [], []
        self.groups = []  # By group: [(index, begin, end)] of its views in the flat tensor.
        self.flats = [flat for flat, _ in groups]
        self.gradients = []  # By index: sums, in an update.
        self.stepped = False
        for flat, pieces in groups:
            self.groups.append(list(self.add(flat, pieces)))

    def add(self, flat, pieces):
        for parameter, shape, first, number, place in pieces:
            yield len(self.views), place, place + number
            self.wholes.append(parameter)
            self.shapes.append(list(shape))
            self.views.append(flat.detach()[place : place + number])
            self.parts.append([first, number])

    def begin(self):
        self.gradients = [None] * len(self.views)
        self.stepped = False

    def see_step(self, optimizer, in_detail):
        """Before one group is updated: the optimizer holds this group alone, with its gradient."""
        self.stepped = True
        flat = next(p for group in optimizer.param_groups for p in group["params"])
        if not in_detail or flat.grad is None:
            return
        (number,) = [i for i, other in enumerate(self.flats) if other is flat]
        for index, start, end in self.groups[number]:
            gradient = flat.grad[start:end]
            self.gradients[index] = tensors.digest_and_sums(gradient, self.parts[index])


def groups_of(zero):
    """Returns the groups of stages 1 and 2, for Slices."""
    groups = []
    for number, flat in enumerate(zero.single_partition_of_fp32_groups):
        begin = dist.get_rank(group=zero.real_dp_process_group[number]) * flat.numel()
        pieces = []
        for parameter, offset in zip(zero.round_robin_bit16_groups[number], offsets(zero, number)):
            first, last = (
                min(max(place - offset, 0), parameter.numel())
                for place in (begin, begin + flat.numel())
            )
            place = offset + first - begin if last > first else 0
            pieces.append((parameter, parameter.shape, first, last - first, place))
        groups.append((flat, pieces))
    return groups


def groups_of_stage_3(zero):
    """Returns the groups of stage 3, for Slices."""
    groups = []
    for flat, parameters in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups):
        pieces, place = [], 0
        for parameter in parameters:
            share = parameter.partition_numel()
            first = min(dist.get_rank() * share, parameter.ds_numel)
            number = min(share, parameter.ds_numel - first)
            pieces.append((parameter, parameter.ds_shape, first, number, place))
            place += share
        groups.append((flat, pieces))
    return groups


def is_held(flat, pieces):
    """Whether the memory holds all pieces of a flat tensor: ZeRO can move it to a disk."""
    return all(place + number <= flat.numel() for *_, number, place in pieces)


def offsets(zero, number):
    """Returns the places of a group's parameters in its flat tensor."""
    known = getattr(zero, "round_robin_bit16_offsets", None)  # Since 0.19, which may pad.
    if known is not None:
        return known[number]
    places, place = [], 0
    for parameter in zero.round_robin_bit16_groups[number]:
        places.append(place)
        place += parameter.numel()
    return places


class Zero:
    def __init__(self, recorder):
        self.recorder = recorder

    def made(self, token, result, args, kwargs):
        """After the constructor of ZeRO's optimizer, which has wrapped one of PyTorch."""
        del token, result, kwargs
        zero = args[0]
        state = self.recorder.optimizers.known.get(zero.optimizer)
        groups = getattr(zero, "real_dp_process_group", None)
        if groups is None:
            groups = getattr(zero, "sub_group_process_groups", [zero.dp_process_group])
        if state and all(dist.get_world_size(group=g) == dist.get_world_size() for g in groups):
            stage_3 = hasattr(zero, "fp32_partitioned_groups_flat")
            found = groups_of_stage_3(zero) if stage_3 else groups_of(zero)
            if all(is_held(*group) for group in found):
                state.slices = Slices(found)
                state.hook_gradients()

    def before(self, args, kwargs):
        del kwargs
        optimizers = self.recorder.optimizers
        state = optimizers.known.get(args[0].optimizer)
        if state is None or state.slices is None:
            return None
        state.slices.begin()
        optimizers.begin_update(state)
        keeping = kept.begin(self.recorder, state.names, state.parameters())
        return state, optimizers.observe_gradients(state), keeping

    def after(self, token, result, args, kwargs):
        """Writes the update, unless ZeRO has skipped it because of an overflow."""
        del result, args, kwargs
        if token is None or not token[0].slices.stepped:
            return
        state, fields, _ = token
        if "gradients" in fields:
            fields["gradients"] = state.slices.gradients
            fields.pop("strangers", None)
        self.recorder.optimizers.after_step(token, None, None, None)


def install(recorder, module):
    """Installs the hooks in a module of deepspeed.runtime.zero."""
    hooks = Zero(recorder)
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"):
        zero = getattr(module, name, None)
        if zero is not None:
            recorder.wrap(zero, "__init__", after=hooks.made)
            recorder.wrap(zero, "step", hooks.before, hooks.after)
