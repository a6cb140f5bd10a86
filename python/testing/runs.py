"""Runs scripts under `lockstep run`, for tests of the package."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.dirname(HERE)
DEADLINE_SECONDS = 400  # The ranks may share the cores with a build.

sys.dont_write_bytecode = True
sys.path[:0] = [PYTHON, HERE]

import forks  # noqa: E402

from lockstep import record  # noqa: E402

EXHAUSTIVE = "LOCKSTEP_EXHAUSTIVE" in os.environ


def environment(**variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTHONPATH"))}
    path = variables.pop("PYTHONPATH", None)
    kept["PYTHONPATH"] = PYTHON + (os.pathsep + path if path else "")
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **variables}


def lockstep(*arguments, forked=False, **variables):
    """Runs the command `lockstep`. Returns what subprocess.run returns.

    forked: whether the command and its ranks may be forks (forks.py). An exhaustive run starts all.
    """
    if forked and not EXHAUSTIVE:
        return forks.server.run(arguments, environment(**variables), DEADLINE_SECONDS)
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def record_script(folder, script, *arguments, nproc=2, flags=(), **options):
    """Records ranks of a script. Returns the finished process and the events of each rank."""
    done = lockstep(
        "run",
        "--output_dir=" + folder,
        "--nproc=%d" % nproc,
        *flags,
        "--",
        sys.executable,
        script,
        *arguments,
        **options,
    )
    return done, events_of(folder)


def events_of(folder):
    paths, _ = record.rank_paths(folder)
    return {rank: record.read_events(path) for rank, path in sorted(paths.items())}


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]
