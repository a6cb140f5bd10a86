"""Records DistributedDataParallel: how it is made, and which forward passes go through it."""

import torch

from . import lines, tensors
from .recorder import MAKES_DDP

OPTIONS = (
    "broadcast_buffers",
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "bucket_bytes_cap",
)


class Ddp:
    """Counts forward passes that prepare a reduction, and those that do not (no_sync)."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.made = 0
        self.forwards = [0, 0]  # Without and with a reduction, since the last backward pass.

    def begin(self, args, kwargs):
        """Before DDP's constructor, which compares and broadcasts the parameters."""
        del args, kwargs
        self.recorder.open()
        self.recorder.enter_call(MAKES_DDP, lines.user_line(), "ddp")

    def construct(self, token, result, args, kwargs):
        del token, result, kwargs
        ddp, recorder = args[0], self.recorder
        recorder.open()
        recorder.event(
            "ddp",
            ddp=self.made,
            update=recorder.update,
            type=type(ddp.module).__name__,
            line=lines.user_line(),
            parameters=sum(p.requires_grad for p in ddp.module.parameters()),
            **{name: getattr(ddp, name, None) for name in OPTIONS},
        )
        self.made += 1

    def see_evaluation(self, token, result, args, kwargs):
        """After a forward pass in evaluation mode, which may have broadcast the buffers."""
        del token, result, kwargs
        if not args[0].training:
            self.recorder.optimizers.see_evaluation(args[0])

    def forward(self, args, kwargs):
        ddp = args[0]
        self.recorder.by_hand.settle()
        self.recorder.enter_call("DDP's forward pass", lines.user_line(), "ddp")
        if torch.is_grad_enabled() and ddp.training:
            self.forwards[bool(ddp.require_backward_grad_sync)] += 1
        self.recorder.loaders.see_input(tensors.leaves_of([args[1:], kwargs]))

    def take_forwards(self):
        """Returns [without, with reduction], or None if the script has made no DDP."""
        forwards, self.forwards = self.forwards, [0, 0]
        return forwards if self.made else None


def install(recorder):
    from torch.distributed.algorithms.join import Join  # Not in every build of PyTorch.

    hooks = recorder.ddp = Ddp(recorder)
    ddp = torch.nn.parallel.DistributedDataParallel

    def join(args, kwargs):
        del args, kwargs
        recorder.event("join", update=recorder.update, line=lines.user_line())

    recorder.wrap(Join, "__enter__", join)
    recorder.wrap(ddp, "__init__", hooks.begin, hooks.construct, recorder.leave_call)
    recorder.wrap(ddp, "forward", hooks.forward, hooks.see_evaluation, recorder.leave_call)
