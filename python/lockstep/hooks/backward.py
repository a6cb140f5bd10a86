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
            scale=scale_of(losses[0]) if len(losses) == 1 else None,
            line=line,
            ddp=forwards,
        )
        if forwards is not None:
            recorder.enter_call("backward", line, "ddp")

    def leave(self):
        self.depth -= 1
        if self.depth:
            return
        if self.recorder.ddp.made:
            self.recorder.leave_call()
        self.recorder.optimizers.see_backward()


def scale_of(loss):
    """Returns the product of the numbers by which a script multiplies or divides its loss last."""
    scale, node = 1.0, loss.grad_fn
    while node is not None and node.name() in ("MulBackward0", "DivBackward0"):
        inputs = [function for function, _ in node.next_functions]
        if None not in inputs or (inputs[0] is None and node.name() == "DivBackward0"):
            break
        factor = node._saved_self if inputs[0] is None else node._saved_other
        if factor is None or factor.numel() != 1:
            break
        scale *= factor.item() if node.name() == "MulBackward0" else 1 / factor.item()
        node = inputs[0] or inputs[1]
    return scale


def install(recorder):
    hooks = Backward(recorder)
    recorder.wrap(torch.Tensor, "backward", hooks.before, last=hooks.leave)
    recorder.wrap(torch.autograd, "backward", hooks.before, last=hooks.leave)
