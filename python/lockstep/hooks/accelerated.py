"""Hugging Face Accelerate: what its wrappers do on purpose, which is no fault of the script.

Its optimizers and loaders wrap PyTorch's, which are hooked by themselves. Its backward() divides
the loss by the number of micro-batches, and its schedules step once per rank by default.
"""


def install(recorder, module):
    """Installs the hooks in accelerate.accelerator."""

    def begin_backward(args, kwargs):
        del kwargs
        recorder.backward.accelerate = args[0].gradient_accumulation_steps

    def end_backward():
        recorder.backward.accelerate = None

    def begin_step(args, kwargs):
        del args, kwargs
        return recorder.schedules.enter_wrapper()

    def end_step(token, result, args, kwargs):
        del result, kwargs
        recorder.schedules.see_wrapper(token, args[0].scheduler)

    recorder.wrap(module.Accelerator, "backward", begin_backward, last=end_backward)
    schedules = recorder.schedules
    recorder.wrap(
        module.AcceleratedScheduler, "step", begin_step, end_step, schedules.leave
    )
