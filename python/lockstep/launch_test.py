"""Tests of how a command's ranks are started."""

import os
import socket
import struct
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

from lockstep import __main__ as main
from lockstep import evidence, launch

IP_LOCAL_PORT_RANGE = 51  # Of Linux 6.3 and newer: the ports that a socket may get by chance.


class PortTest(unittest.TestCase):
    def given_by_chance(self, port):
        """Whether the kernel gives this port to a socket that asks for any of a range of one."""
        with socket.socket() as asked:
            try:
                range_of_one = struct.pack("I", port << 16 | port)
                asked.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, range_of_one)
            except OSError:
                self.skipTest("this kernel has no IP_LOCAL_PORT_RANGE")
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asked.bind(("127.0.0.1", 0))
            except OSError:
                return False
            return True

    def test_no_process_gets_a_held_port_by_chance(self):
        with launch.reserve_port() as held:
            port = held.getsockname()[1]
            self.assertFalse(self.given_by_chance(port))
        self.assertTrue(self.given_by_chance(port))

    def test_rank_0_listens_at_a_held_port_again_and_again(self):
        with launch.reserve_port() as held:
            address = ("127.0.0.1", held.getsockname()[1])
            for _ in range(2):
                with socket.socket() as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind(("0.0.0.0", address[1]))
                    listener.listen()
                    with socket.create_connection(address), listener.accept()[0]:
                        pass

    def test_the_ranks_port_is_held_as_long_as_they_run(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "port.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(ASKS_FOR_ITS_PORT)
            done, _ = runs.record_script(folder + "/record", script)
        self.assertEqual(done.stdout.splitlines()[:2], ["EADDRINUSE"] * 2, done.stderr)


class FlagsTest(unittest.TestCase):
    def test_a_run_that_fails_fast_does_not_wait_for_idle_ranks_for_ever(self):
        flags, _ = main.parse(["run", "--fail_fast", "--", "true"])
        self.assertTrue(0 < flags.idle_seconds <= 300)


class GuardTest(unittest.TestCase):
    def test_an_error_of_the_watch_ends_neither_the_run_nor_the_verdict(self):
        class Broken:
            def __init__(self, *_):
                pass

            def poll(self, _):
                raise ValueError("planted")

        original, launch.watch.Watch = launch.watch.Watch, Broken
        self.addCleanup(setattr, launch.watch, "Watch", original)
        with tempfile.TemporaryDirectory() as folder:
            outcome = launch.run(["sh", "-c", "sleep 0.3; exit 4"], folder, {})
            found = evidence.read_run(folder)
        self.assertEqual(outcome.status, 4)
        self.assertEqual(found.errors, ["ValueError: planted"])


# Without SO_REUSEADDR, no socket can have a port that another one has.
ASKS_FOR_ITS_PORT = r"""
import errno, os, socket
try:
    socket.socket().bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    said = "free"
except OSError as error:
    said = errno.errorcode[error.errno]
os.write(1, said.encode() + b"\n")
"""

if __name__ == "__main__":
    unittest.main()
