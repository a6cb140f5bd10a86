"""Records exceptions of processes that torch.multiprocessing.spawn starts.

These reach their parent in a file or a queue, and never sys.excepthook.
"""

import functools
import sys


def install(recorder):
    # The function of the same name hides the module.
    module = sys.modules.get("torch.multiprocessing.spawn")
    original = getattr(module, "_wrap", None)
    if original is None:
        return

    @functools.wraps(original)
    def observed(function, *arguments):
        def watched(*values):
            try:
                return function(*values)
            except Exception:
                recorder.guard("exception", recorder.see_exception, *sys.exc_info())
                raise

        return original(watched, *arguments)

    module._wrap = observed
