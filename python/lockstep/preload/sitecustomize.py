"""Installs the hooks in a Python process that `lockstep run` started, then runs the user's own.

Python imports the first `sitecustomize` on its path when it starts. This file is the first there,
so it runs the one that it hides. No error leaves this file, except errors of the hidden one.
"""

import importlib.machinery
import importlib.util
import os
import sys
import traceback


def load_package(folder):
    """Loads the package under the name _lockstep, whatever the path of this process holds."""
    spec = importlib.util.spec_from_file_location(
        "_lockstep", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["_lockstep"] = package
    spec.loader.exec_module(package)


def install(preload):
    try:
        load_package(os.path.dirname(preload))
        from _lockstep.hooks import imports

        imports.install()
    except Exception:
        name = "error-%d.txt" % os.getpid()
        with open(os.path.join(os.environ["LOCKSTEP_RECORD"], name), "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)


def run_hidden():
    """Runs the sitecustomize that Python would have run without this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def main():
    preload = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != preload]
    if os.environ.get("LOCKSTEP_RECORD"):
        try:
            install(preload)
        except OSError:
            pass  # The folder of the record is gone: the run that asked for it is over.
    run_hidden()


main()
