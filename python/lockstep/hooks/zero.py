"""DeepSpeed's ZeRO, stages 1 and 2: each rank updates its part of a group's parameters, made flat.

The optimizer holds one flat tensor for each group. This rank's parts of the model's parameters in it
are recorded as FSDP2's are. Their gradients exist only while the group is updated, and a call of
ZeRO's step() updates all groups: it is one update.
"""

import torch.distributed as dist

from . import kept, tensors


class Slices:
    """This rank's parts of the model's parameters: views of the flat tensors that ZeRO updates."""

    def __init__(self, zero):
        self.wholes, self.views, self.parts = [], [], []
        self.groups = []  # By group: [(index, begin, end)] of its views in the flat tensor.
        self.flats = list(zero.single_partition_of_fp32_groups)
        self.gradients = []  # By index: sums, in an update.
        self.stepped = False
        for number, flat in enumerate(self.flats):
            begin = dist.get_rank(group=zero.real_dp_process_group[number]) * flat.numel()
            self.groups.append(list(self.add(zero, number, flat, begin)))

    def add(self, zero, number, flat, begin):
        """Adds the parts of one group. begin: the place of this rank's part in the whole group."""
        for parameter, offset in zip(zero.round_robin_bit16_groups[number], offsets(zero, number)):
            size = parameter.numel()
            first, last = (
                min(max(place - offset, 0), size) for place in (begin, begin + flat.numel())
            )
            start = offset + first - begin if last > first else 0
            yield len(self.views), start, start + last - first
            self.wholes.append(parameter)
            self.views.append(flat.detach()[start : start + last - first])
            self.parts.append([first, last - first])

    def begin(self):
        self.gradients = [None] * len(self.views)
        self.stepped = False

    def see_step(self, optimizer, in_detail):
        """Before one group is updated: the optimizer holds this group alone, with its gradient."""
        self.stepped = True
        flat = optimizer.param_groups[0]["params"][0]
        if not in_detail or flat.grad is None:
            return
        (number,) = [i for i, other in enumerate(self.flats) if other is flat]
        for index, start, end in self.groups[number]:
            gradient = flat.grad[start:end]
            self.gradients[index] = tensors.digest_and_sums(gradient, self.parts[index])


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
        groups = zero.real_dp_process_group
        if state and all(dist.get_world_size(group=g) == dist.get_world_size() for g in groups):
            state.slices = Slices(zero)
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
    """Installs the hooks in deepspeed.runtime.zero.stage_1_and_2."""
    hooks = Zero(recorder)
    zero = module.DeepSpeedZeroOptimizer
    recorder.wrap(zero, "__init__", after=hooks.made)
    recorder.wrap(zero, "step", hooks.before, hooks.after)
