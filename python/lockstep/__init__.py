"""Records and judges PyTorch data-parallel scripts as they are.

    python -m lockstep run -- torchrun --nproc_per_node=2 train.py

See `python -m lockstep --help`.
"""

import sys

__version__ = "0.1.0"


def watch(model, optimizer=None):
    """Names a model (a module, or a list of modules) and its optimizer to the recorder.

    Scripts need this only if the recorder does not find these by itself: an optimizer that is no
    torch.optim.Optimizer, but has step() and param_groups as these have. Outside of `lockstep run`
    it does nothing. Returns `model`.
    """
    package = sys.modules.get("_lockstep")
    recorder = package and sys.modules.get("_lockstep.hooks.recorder")
    if recorder is not None and recorder.active is not None:
        recorder.active.guard("watch", recorder.active.watch, model, optimizer)
    return model
