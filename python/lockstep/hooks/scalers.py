"""Automatic mixed precision: what torch.amp.GradScaler does to losses, gradients and updates.

It multiplies a loss by a number, so gradients are too large by that number until its step(). It
skips the update if a gradient is infinite or NaN: this is no fault of the script.

The scale and found_inf are tensors on the device. A hook keeps them, and reads each after other
tensors that the same event holds: to read one earlier would make the host wait for the device.
An update waits all the same, for the probes and digests of its parameters.
"""

import torch


class Scalers:
    def __init__(self, recorder):
        self.recorder = recorder
        self.losses = []  # The numbers by which losses were multiplied that await backward().
        self.scale = None  # During step(): the factor of the gradients of backward passes.

    def scaled(self, token, result, args, kwargs):
        """After GradScaler.scale()."""
        del token, result, kwargs
        if args[0].is_enabled():
            self.losses.append(scale_tensor(args[0]).clone())  # update() changes it in place.

    def take(self):
        """Returns the factor of the loss of the next backward pass, as a tensor, or None."""
        return self.losses.pop(0) if self.losses else None

    def before(self, args, kwargs):
        """Before GradScaler.step(optimizer)."""
        self.losses = []  # Such a loss had no backward pass.
        optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        state = self.recorder.optimizers.known.get(optimizer)
        if state is None or not args[0].is_enabled():
            return None
        self.scale = scale_tensor(args[0])
        return state, state.steps

    def after(self, token, result, args, kwargs):
        del result, args, kwargs
        self.scale = None
        if token is not None and token[0].steps == token[1]:
            token[0].forget_gradients()
            self.recorder.event("skip", update=self.recorder.update, optimizer=token[0].number)


    def scale_of_passes(self):
        """Returns, during step(), by how much the gradients of backward passes are too large."""
        return 1.0


def scale_tensor(scaler):
    """Returns the number by which a GradScaler multiplies losses, which is on the device."""
    scale = scaler._get_scale_async()
    return torch.tensor(scaler.get_scale()) if scale is None else scale


def found_inf(optimizer):
    """Returns what tells an optimizer, in a step() of a GradScaler, to skip the update, or None.

    It is a tensor, and not 0 if the update is to be skipped. A fused optimizer alone has it: a
    GradScaler does not call the step() of others to skip it.
    """
    return getattr(optimizer, "found_inf", None)


def is_skipped(found):
    """Whether an update was skipped, from found_inf(). Waits for the device."""
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
