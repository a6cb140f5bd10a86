"""Automatic mixed precision: what torch.amp.GradScaler does to losses, gradients and updates.

It multiplies a loss by a number, so gradients are too large by that number until its step(). It
skips the update if a gradient is infinite or NaN: this is no fault of the script.
"""

import torch


class Scalers:
    def __init__(self, recorder):
        self.recorder = recorder
        self.losses = []  # The numbers by which losses were multiplied that await backward().
        self.scale = 1.0  # During step(): by how much the gradients of backward passes are too large.

    def scaled(self, token, result, args, kwargs):
        """After GradScaler.scale()."""
        del token, result, kwargs
        if args[0].is_enabled():
            self.losses.append(args[0].get_scale())

    def take(self):
        """Returns the number by which the loss of the next backward pass was multiplied, or None."""
        return self.losses.pop(0) if self.losses else None

    def before(self, args, kwargs):
        """Before GradScaler.step(optimizer)."""
        self.losses = []  # Such a loss had no backward pass.
        optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        state = self.recorder.optimizers.known.get(optimizer)
        if state is None or not args[0].is_enabled():
            return None
        self.scale = args[0].get_scale()
        return state, state.steps

    def after(self, token, result, args, kwargs):
        del result, args, kwargs
        self.scale = 1.0
        if token is not None and token[0].steps == token[1]:
            token[0].forget_gradients()
            self.recorder.event("skip", update=self.recorder.update, optimizer=token[0].number)


def is_skipped(optimizer):
    """Whether a GradScaler has told an optimizer, before its step(), to skip the update."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(float(found))


def scale_of(optimizer):
    """Returns the number by which a GradScaler has told an optimizer to divide the gradients."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def unscaled(sums, scale):
    """Returns a gradient's [digest, sum, sum of squares, projection] without its scale."""
    if sums is None or scale == 1:
        return sums
    text, total, squares, projection = sums
    return [text, total / scale, squares / scale**2, projection / scale]


def install(recorder):
    hooks = recorder.scalers = Scalers(recorder)
    kind = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # Since 2.3.
    recorder.wrap(kind, "scale", after=hooks.scaled)
    recorder.wrap(kind, "step", hooks.before, hooks.after)
