"""Runs the command `lockstep` and the ranks that it starts as forks of a process with PyTorch.

Most of a short script's time is the import of PyTorch: 1.5 s of a processor for each rank. The
server imports PyTorch once. For each request it forks a process, which is the command. Where the
command starts a script, it forks a process, which gets the variables, the arguments and the hooks
that a started Python would get, and runs the script. Pids, signals and exit statuses are those of
started processes, and so is what /proc/PID/environ shows. The hooks are installed when the script
starts, not when it imports torch. JOIN_SECONDS in the variables replaces the time in which ranks
usually join, because forks need not wait for imports.

Tests of how processes start do not use forks. With LOCKSTEP_EXHAUSTIVE=1 no test does.

usage: forks.py. Reads requests from its standard input, and writes exit statuses, one a line.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
POLL_SECONDS = 0.005
ROOM_BYTES = 1 << 12  # For what the variables of a rank have beyond those of the server.


class Server:
    """The server, for the process that runs the tests. The first request starts it."""

    def __init__(self):
        self.process = None

    def run(self, arguments, env, timeout, cwd=None):
        """Runs the command `lockstep`. Returns what subprocess.run returns."""
        if self.process is None:
            self.start(env)
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
            request = json.dumps([arguments, env, timeout, cwd or os.getcwd(), paths])
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            said = [read(path) for path in paths]
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(arguments, timeout, *said)
        return subprocess.CompletedProcess(arguments, status, *said)

    def start(self, env):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            env={**env, "ROOM": "." * ROOM_BYTES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.process.communicate)  # The end of its input ends it.


server = Server()


def set_join_seconds(recorder, variables):
    recorder.JOIN_SECONDS = int(variables.get("JOIN_SECONDS", recorder.JOIN_SECONDS))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def finish(function, *arguments):
    """Calls the function, which returns an exit status, and ends this process as Python would."""
    try:
        status = function(*arguments)
    except SystemExit as left:
        status = left.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def set_environment(variables):
    """Gives this process its variables, also where /proc/PID/environ shows those of its start."""
    os.environ.clear()
    os.environ.update(variables)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end: man 5 proc.
    text = b"".join(os.fsencode("%s=%s\0" % pair) for pair in variables.items())
    assert len(text) <= end - start, "ROOM_BYTES is too small"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


class Fork:
    """A process that runs a script: what launch.py uses of subprocess.Popen."""

    def __init__(self, command, env):
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            finish(run_script, command[1:], env)
        # Signals go to this process alone, whatever becomes of its number.
        self.descriptor = os.pidfd_open(self.pid)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self.descriptor)
        return self.returncode

    def wait(self, timeout=float("inf")):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_SECONDS)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            signal.pidfd_send_signal(self.descriptor, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start(command, env):
    """Stands in for subprocess.Popen in launch.py."""
    is_script = command[0] == sys.executable and command[1].endswith(".py")
    return (Fork if is_script else subprocess.Popen)(command, env=env)


def run_script(arguments, variables):
    set_environment(variables)
    for name in list(sys.modules):
        if name.partition(".")[0] == "lockstep":  # A script's process has not imported it.
            del sys.modules[name]
    seed()
    sys.argv = list(arguments)
    path = os.path.abspath(arguments[0])
    sys.path[0] = os.path.dirname(path)
    preload = variables["PYTHONPATH"].split(os.pathsep)[0]
    runpy.run_path(os.path.join(preload, "sitecustomize.py"), run_name="sitecustomize")
    set_join_seconds(sys.modules["_lockstep.hooks.recorder"], variables)
    imports = sys.modules["_lockstep.hooks.imports"]
    imports.install_hooks(sys.modules["torch"])
    for name in set(imports.LATER) & set(sys.modules):
        imports.see_module(sys.modules[name])
    main = types.ModuleType("__main__")
    main.__file__ = arguments[0]
    sys.modules["__main__"] = main
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), arguments[0], "exec"), main.__dict__)
    return 0


def seed():
    """Gives this process random numbers of its own, as a started one has. `random` has them."""
    import numpy as np
    import torch

    np.random.seed()
    torch.default_generator.seed()


def run_command(arguments, variables, deadline_seconds, folder, paths):
    from lockstep import __main__, launch
    from lockstep.hooks import recorder

    signal.alarm(deadline_seconds)  # A fork does not inherit it.
    os.chdir(folder)
    for number, path in enumerate(paths, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    set_environment(variables)
    set_join_seconds(recorder, variables)
    launch.subprocess = types.SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
    return __main__.main(arguments)


def serve():
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    import lockstep.__main__  # noqa: F401  The forks share it, too.
    import torch

    # A new PyTorch loads hundreds of modules when it makes its first optimizer.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    gc.freeze()  # A garbage collection would copy the pages that the forks share.
    for line in requests:
        pid = os.fork()
        if not pid:
            os.close(requests.fileno())
            finish(run_command, *json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, file=replies, flush=True)


if __name__ == "__main__":
    serve()
