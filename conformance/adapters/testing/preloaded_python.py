#!/usr/bin/python3
"""Starts Python programs with preloaded modules: loading PyTorch takes a second each time.

    preloaded_python.py serve NAME MODULE...    loads the modules and serves until it is killed
    preloaded_python.py run NAME PROGRAM ...    does what `python3 PROGRAM ...` does, in a fork of
                                                the server with its modules

NAME names a socket in Linux's abstract namespace. `run` waits until the server is ready. When `run`
ends in any way, its program ends too. A program that a signal ends has exit status 1.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback

READY_SECONDS = 120
REQUEST_BYTES = 1 << 20


def serve(name, modules):
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for the forks.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen(64)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os._exit(start(client))
        client.close()


def start(client):
    """Runs the client's program in this process. Returns the exit status that the client gets."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(client, REQUEST_BYTES, 3)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    threading.Thread(target=end_with, args=(client,), daemon=True).start()
    request = json.loads(request)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    status = run_program(sys.argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    client.send(bytes([status]))
    return status


def end_with(client):
    """Ends this process when the client, which sends nothing more, has ended."""
    client.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def run_program(program):
    """Returns the exit status. Prints an exception as Python does."""
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(name, arguments):
    """Lets a server run a program and returns its exit status."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + READY_SECONDS
    while server.connect_ex("\0" + name) != 0:
        if time.monotonic() > deadline:
            sys.exit(f"preloaded_python: no server at {name}")
        time.sleep(0.05)
    request = {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "arguments": arguments,
    }
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    status = b""
    with contextlib.suppress(ConnectionError):
        status = server.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(run(sys.argv[2], sys.argv[3:]))
