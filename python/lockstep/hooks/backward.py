"""Records each backward pass: the loss, and whether DDP reduces the gradients."""

import torch

from . import lines, tensors


MEAN = 1  # PyTorch's number of reduction="mean".


class Backward:
    def __init__(self, recorder):
        self.recorder = recorder
        self.depth = 0
        self.accelerate = None  # The number by which Accelerate's backward() divides the loss.

    def before(self, args, kwargs):
        """Tensor.backward calls autograd.backward: the outermost call is recorded."""
        self.depth += 1
        if self.depth > 1:
            return
        losses = tensors.leaves_of([args[:1], kwargs.get("tensors", ())])
        self.recorder.by_hand.before_backward(losses)
        line, forwards = self.record(losses)
        if forwards is not None:
            self.recorder.enter_call("backward", line, "ddp")

    def before_grad(self, args, kwargs):
        """Before autograd.grad: a backward pass if the script updates by the gradients.

        Returns whether it is one.
        """
        losses = tensors.leaves_of([args[:1], kwargs.get("outputs", ())])
        inputs = inputs_of(args, kwargs)
        if self.depth or kwargs.get("create_graph") or not all(leaf.is_leaf for leaf in inputs):
            return False
        if not self.recorder.by_hand.before_grad(losses, inputs):
            return False
        self.record(losses)
        return True

    def after_grad(self, token, result, args, kwargs):
        if token:
            result = list(result.values()) if isinstance(result, dict) else result
            self.recorder.by_hand.after_grad(inputs_of(args, kwargs), result)

    def record(self, losses):
        """Writes the event of a pass. Returns its line and its forward passes through DDP."""
        recorder = self.recorder
        recorder.loaders.mark_training()
        line, forwards = lines.user_line(), recorder.ddp.take_forwards()
        values = [loss.item() for loss in losses if loss.numel() == 1]
        scaler = recorder.scalers.take()
        scaler = None if scaler is None else float(scaler)
        recorder.event(
            "backward",
            update=recorder.update,
            loss=[value / (scaler or 1) for value in values],
            scale=scale_of(losses[0]) / (scaler or 1) if len(losses) == 1 else None,
            line=line,
            ddp=forwards,
            **({"scaler": scaler} if scaler else {}),
            **self.describe_accelerate(losses),
        )
        return line, forwards

    def describe_accelerate(self, losses):
        """Returns fields for a pass of Accelerate, and whether the script divides the loss too."""
        number = self.accelerate
        if number is None:
            return {}
        return {
            "accelerate": number,
            "divided_twice": len(losses) == 1 and is_divided_twice(losses[0], number),
        }

    def leave(self):
        self.depth -= 1
        if self.depth:
            return
        if self.recorder.ddp.made:
            self.recorder.leave_call()
        self.recorder.optimizers.see_backward()
        self.recorder.by_hand.after_backward()


def inputs_of(args, kwargs):
    """Returns the inputs of autograd.grad, or [] if these are a generator, which cannot be read."""
    inputs = args[1] if len(args) > 1 else kwargs.get("inputs", ())
    return tensors.leaves_of([inputs])


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


def is_divided_twice(loss, number):
    """Whether the loss is a mean of the samples, divided by the number twice in a row.

    A loss that is no mean, such as a sum, may be divided by its own count, which is the same number
    by chance.
    """
    node = loss.grad_fn
    for _ in range(2):
        if node is None or node.name() != "DivBackward0" or node.next_functions[1][0] is not None:
            return False
        if node._saved_other is None or node._saved_other.item() != number:
            return False
        node = node.next_functions[0][0]
    if node is None:
        return False
    return node.name().startswith("MeanBackward") or getattr(node, "_saved_reduction", 0) == MEAN


def install(recorder):
    hooks = recorder.backward = Backward(recorder)
    recorder.wrap(torch.Tensor, "backward", hooks.before, last=hooks.leave)
    recorder.wrap(torch.autograd, "backward", hooks.before, last=hooks.leave)
    recorder.wrap(torch.autograd, "grad", hooks.before_grad, hooks.after_grad)
