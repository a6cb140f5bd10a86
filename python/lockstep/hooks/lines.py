"""The line of the user's script that a call of PyTorch came from."""

import os
import sys
import sysconfig

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARIES = tuple(
    form(path) + os.sep
    for path in [*_FOLDERS, _OWN]
    if path
    for form in (os.path.abspath, os.path.realpath)
)
_known = {}
# The file name of the frames that hooks add to the stack. Python's warnings pass over frames of
# importlib's bootstrap, so a warning for the caller of a hooked function names the user's line.
HOOK_FILE = "<lockstep: importlib _bootstrap>"


def is_own(filename):
    """Whether a file belongs to this package."""
    return filename == HOOK_FILE or filename.startswith(_OWN + os.sep)


def is_library(filename):
    """Whether a file belongs to Python, to an installed package or to this one."""
    found = _known.get(filename)
    if found is None:
        path = os.path.realpath(filename)
        found = (
            filename.startswith(("<", *_LIBRARIES))
            or path.startswith(_LIBRARIES)
            or "/site-packages/" in path
            or "/dist-packages/" in path
        )
        _known[filename] = found
    return found


def user_line():
    """Returns "FILE:LINE" of the innermost frame that is not a library's, or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not is_library(filename):
            return "%s:%d" % (filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def line_of_traceback(traceback):
    """Returns "FILE:LINE" of the innermost user's frame of a traceback, or ""."""
    found = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not is_library(filename):
            found = "%s:%d" % (filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
