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
    "backward",
    "collectives",
    "parallel",
    "loaders",
    "checkpoints",
    "schedules",
    "arguments",
    "processes",
)


class TorchFinder:
    """Finds torch as usual, once, and has the hooks installed after its module has run."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run_after(spec.loader, install_hooks)
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
        function()

    loader.exec_module = exec_module


def install():
    sys.meta_path.insert(0, TorchFinder())
    sys.meta_path.append(PackageFinder())


def install_hooks():
    """Starts the recorder of this process and installs every family of hooks."""
    try:
        started = recorder.Recorder.start()
    except Exception:
        recorder.report_failed_start()
        return
    for family in FAMILIES:
        started.guard("install " + family, install_family, started, family)


def install_family(started, name):
    try:
        importlib.import_module("." + name, __package__).install(started)
    except Exception:
        recorder.report_failed_start()  # The process may never open its record.
        raise
