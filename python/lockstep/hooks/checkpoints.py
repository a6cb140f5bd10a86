"""Records which files the script saves and loads, and restored models and optimizers."""

import os

import torch

from . import lines


def install(recorder):
    def observer(event, position):
        def before(args, kwargs):
            path = args[position] if len(args) > position else kwargs.get("f")
            recorder.event(
                event,
                update=recorder.update,
                path=str(path) if isinstance(path, (str, os.PathLike)) else "",
                line=lines.user_line(),
            )

        return before

    def restored(what):
        def before(args, kwargs):
            del kwargs
            recorder.event(
                "restore",
                what=what,
                type=type(args[0]).__name__,
                update=recorder.update,
                line=lines.user_line(),
            )

        return before

    recorder.wrap(torch, "save", observer("save", 1))
    recorder.wrap(torch, "load", observer("load", 0))
    recorder.wrap(torch.nn.Module, "load_state_dict", restored("model"))
    recorder.wrap(torch.optim.Optimizer, "load_state_dict", restored("optimizer"))
