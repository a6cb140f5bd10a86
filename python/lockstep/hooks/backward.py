"""Records each backward pass: the loss, and whether DDP reduces the gradients."""

import torch

from . import lines, tensors


class Backward:
    def __init__(self, recorder):
        self.recorder = recorder
        self.depth = 0

    def before(self, args, kwargs):
        """Tensor.backward calls autograd.backward: the outermost call is recorded."""
        self.depth += 1
        if self.depth > 1:
            return
        recorder = self.recorder
        losses = tensors.leaves_of([args[:1], kwargs.get("tensors", ())])
        recorder.loaders.mark_training()
        line, forwards = lines.user_line(), recorder.ddp.take_forwards()
        recorder.event(
            "backward",
            update=recorder.update,
            loss=[loss.item() for loss in losses if loss.numel() == 1],
            line=line,
            ddp=forwards,
        )
        if forwards is not None:
            recorder.enter_call("backward", line, "ddp")

    def leave(self):
        self.depth -= 1
        if not self.depth and self.recorder.ddp.made:
            self.recorder.leave_call()


def install(recorder):
    hooks = Backward(recorder)
    recorder.wrap(torch.Tensor, "backward", hooks.before, last=hooks.leave)
    recorder.wrap(torch.autograd, "backward", hooks.before, last=hooks.leave)
