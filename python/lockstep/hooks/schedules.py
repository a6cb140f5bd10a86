"""Records steps of learning rate schedules, and clipping of gradients."""

import torch
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler

from . import lines, shards


class Schedules:
    """Numbers the schedules. A schedule that another one steps belongs to that one."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.depth = 0
        self.inner = 0  # Steps of schedules that a wrapper or another schedule has stepped.
        self.numbers = {}

    def enter(self, args, kwargs):
        """A schedule steps once while it is made, which is no step of the script's."""
        del args, kwargs
        self.depth += 1

    def before(self, args, kwargs):
        del kwargs
        self.depth += 1
        if self.depth == 1:
            self.see(args[0], 1)
        elif self.depth == 2:
            self.inner += 1

    def enter_wrapper(self):
        """A wrapper steps a schedule as often as it wants: this is one step of the script's."""
        self.depth += 1
        return self.inner

    def see_wrapper(self, inner, schedule):
        if self.depth == 1 and self.inner > inner:
            self.see(schedule, self.inner - inner)

    def see(self, schedule, steps):
        number = self.numbers.setdefault(id(schedule), len(self.numbers))
        self.recorder.event(
            "schedule",
            schedule=number,
            type=type(schedule).__name__,
            steps=steps,
            update=self.recorder.update,
            line=lines.user_line(),
        )

    def leave(self):
        self.depth -= 1


def norm_of(result):
    """Returns the norm, or None if the rank knows only its own part of it."""
    if not shards.is_sharded(result):
        return float(result)
    whole = all(type(placement).__name__ == "Replicate" for placement in result.placements)
    return float(result.to_local()) if whole else None


def install(recorder):
    hooks = recorder.schedules = Schedules(recorder)
    for kind in list(vars(lr_scheduler).values()):
        if not isinstance(kind, type) or kind is torch.optim.Optimizer:
            continue
        if "step" in kind.__dict__:
            recorder.wrap(kind, "step", hooks.before, last=hooks.leave)
        if "_initial_step" in kind.__dict__:
            recorder.wrap(kind, "_initial_step", hooks.enter, last=hooks.leave)

    def clipped(token, result, args, kwargs):
        del token
        recorder.event(
            "clip",
            update=recorder.update,
            norm=norm_of(result),
            largest=float(args[1] if len(args) > 1 else kwargs["max_norm"]),
            line=lines.user_line(),
        )

    recorder.wrap(clip_grad, "clip_grad_norm_", after=clipped)
    torch.nn.utils.clip_grad_norm_ = clip_grad.clip_grad_norm_
