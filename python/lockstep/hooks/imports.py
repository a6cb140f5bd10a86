"""Installs the hooks when the process imports torch, and not before: most processes never do."""

import importlib
import importlib.util
import sys

from . import recorder

# A reference's changes come first: the other hooks observe them.
FAMILIES = (
    "reference",
    "numerics",
    "optimizers",
    "scalers",
    "by_hand",
    "backward",
    "collectives",
    "parallel",
    "loaders",
    "checkpoints",
    "schedules",
    "arguments",
    "processes",
)


# Modules that PyTorch or a script may import later, and the hooks for each.
LATER = {
    "torch.distributed.fsdp._fully_shard._fsdp_param": "shards",
    "accelerate.accelerator": "accelerated",
    "deepspeed.runtime.zero.stage_1_and_2": "zero",
    "deepspeed.runtime.zero.stage3": "zero",
}


early = []  # Modules of LATER that have run before torch.


class ModuleFinder:
    """Finds a module as usual, once, and calls a function of it after it has run."""

    def __init__(self, name, function):
        self.name = name
        self.function = function

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run_after(spec.loader, self.function)
        return spec


class PackageFinder:
    """Finds this package as `lockstep` if the process has no other package of that name."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "lockstep":
            return None
        package = sys.modules["_lockstep"]
        return importlib.util.spec_from_file_location(
            name, package.__file__, submodule_search_locations=list(package.__path__)
        )


def run_after(loader, function):
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        function(module)

    loader.exec_module = exec_module


def install():
    for name in LATER:
        sys.meta_path.insert(0, ModuleFinder(name, see_module))
    sys.meta_path.insert(0, ModuleFinder("torch", install_hooks))
    sys.meta_path.append(PackageFinder())


def see_module(module):
    """After a module of LATER has run. It may have imported torch, or torch may come later."""
    if recorder.active is None:
        early.append(module)
    else:
        install_later(recorder.active, module)


def install_hooks(torch):
    """Starts the recorder of this process and installs every family of hooks."""
    del torch
    try:
        started = recorder.Recorder.start()
    except Exception:
        recorder.report_failed_start()
        return
    for family in FAMILIES:
        started.guard("install " + family, install_family, started, family)
    while early:
        install_later(started, early.pop())


def install_later(started, module):
    family = LATER[module.__name__]
    started.guard("install " + family, install_family, started, family, module)


def install_family(started, name, *modules):
    try:
        importlib.import_module("." + name, __package__).install(started, *modules)
    except Exception:
        recorder.report_failed_start()  # The process may never open its record.
        raise
