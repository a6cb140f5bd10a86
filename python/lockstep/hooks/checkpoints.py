"""Records which files the script saves and loads, and restored models and optimizers."""

import os

import torch

from . import lines


def epochs_in(checkpoint):
    """Returns the numbers of epochs that a checkpoint holds beside its states, by name."""
    if not isinstance(checkpoint, dict):
        return {}
    return {
        name: value
        for name, value in checkpoint.items()
        if isinstance(name, str) and "epoch" in name.lower() and type(value) is int
    }


def install(recorder):
    def saved(args, kwargs):
        recorder.by_hand.settle()
        path = args[1] if len(args) > 1 else kwargs.get("f")
        recorder.event(
            "save",
            update=recorder.update,
            path=str(path) if isinstance(path, (str, os.PathLike)) else "",
            line=lines.user_line(),
        )

    def loaded(token, result, args, kwargs):
        del token
        path = args[0] if args else kwargs.get("f")
        recorder.event(
            "load",
            update=recorder.update,
            path=str(path) if isinstance(path, (str, os.PathLike)) else "",
            epochs=epochs_in(result),
            line=lines.user_line(),
        )

    def restored(what):
        def before(args, kwargs):
            del kwargs
            recorder.by_hand.settle()
            recorder.event(
                "restore",
                what=what,
                type=type(args[0]).__name__,
                update=recorder.update,
                line=lines.user_line(),
            )

        return before

    recorder.wrap(torch, "save", saved)
    recorder.wrap(torch, "load", after=loaded)
    recorder.wrap(torch.nn.Module, "load_state_dict", restored("model"))
    recorder.wrap(torch.optim.Optimizer, "load_state_dict", restored("optimizer"))
