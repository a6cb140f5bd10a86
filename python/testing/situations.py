"""Runs late.py, for tests that late ranks are named."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import runs

from lockstep import waits

LATE = os.path.join(PYTHON, "testing", "late.py")
NAMED_SECONDS = 1.0  # After the usual time of the rank that waits.


class LateTest(unittest.TestCase):
    def run_kind(self, kind, *flags, nproc=2, **variables):
        """Returns the finished command, its verdict, and the waits that it saw."""
        with tempfile.TemporaryDirectory() as folder:
            done, _ = runs.record_script(
                folder, LATE, kind, flags=flags, nproc=nproc, forked=True, **variables
            )
            with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
                found = json.load(file)
            seen = waits.read(folder)
        self.said = done.stdout + done.stderr
        self.assertEqual(found["errors_of_lockstep"], [], self.said)
        for event in seen:
            self.assertLess(event["seconds"] - event["usual"], NAMED_SECONDS)
        return done, found, seen

    def expect_late(self, event, waiting, late, call, state, function):
        """Expects that `late` is named, with a stack whose first user's frame is `function`."""
        self.assertEqual((event["rank"], event["call"]), (waiting, call), self.said)
        (other,) = event["late"]
        self.assertEqual((other["rank"], other["state"]), (late, state), self.said)
        users = [(line, name) for line, name in other["stack"] if line.startswith(LATE)]
        self.assertEqual(users[0][1], function, self.said)
        with open(LATE, encoding="utf-8") as file:
            return file.read().splitlines()[int(users[0][0].rpartition(":")[2]) - 1].strip()

    def expect_wrong(self, done, found, cause):
        self.assertEqual((done.returncode, found["outcome"]), (1, "wrong"), self.said)
        self.assertEqual([f["cause"] for f in found["findings"]], [cause], self.said)
