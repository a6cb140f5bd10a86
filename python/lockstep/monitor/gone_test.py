"""Tests that a rank whose process is gone is named, and ends a run that fails fast."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from situations import LateTest

from lockstep import waits
from lockstep.monitor import gone, place


class RunTest(LateTest):
    """Needs PyTorch."""

    def test_a_rank_that_is_killed(self):
        done, found, _ = self.run_kind("killed", "--fail_fast")
        self.expect_wrong(done, found, "ends_early")
        (finding,) = found["findings"]
        self.assertEqual(finding["ranks"], [1])
        words = "the process of rank 1 was ended by signal 9 (SIGKILL)"
        self.assertEqual(finding["evidence"][0], words)
        self.assertIn("lockstep: " + words, done.stderr)
        self.assertIn("--fail_fast ended the run before its regular end", found["notes"])

    def test_a_rank_that_exits_with_a_status(self):
        done, found, _ = self.run_kind("exits", "--fail_fast")
        self.expect_wrong(done, found, "unknown")
        (finding,) = found["findings"]
        self.assertEqual(finding["ranks"], [1])
        self.assertEqual(finding["evidence"][0], "the process of rank 1 ended with status 3")


class LaunchedTest(unittest.TestCase):
    """Ranks that a launcher has started: nobody knows their exit status."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.gone = gone.Gone(self.folder, self.fail)
        self.settle = gone.SETTLE_SECONDS
        self.addCleanup(setattr, gone, "SETTLE_SECONDS", self.settle)
        gone.SETTLE_SECONDS = 0.0
        for rank in (0, 1):
            with open(os.path.join(self.folder, "rank%d.jsonl" % rank), "w", encoding="utf-8") as file:
                for event in records.events_of(rank)[:-1]:
                    file.write(json.dumps(event) + "\n")

    def leave(self, rank, regular):
        """A process of the rank shows its place and leaves."""
        child = os.fork()
        if not child:
            writer = place.Writer(place.path_of(self.folder, rank), 0)
            if regular:
                writer.end()
            os._exit(0)
        os.waitpid(child, 0)

    def test_ends_the_run_when_nobody_goes_on(self):
        place.Writer(place.path_of(self.folder, 0), 0)
        self.leave(1, regular=False)
        self.gone.poll(2, None)
        self.assertEqual(self.gone.event["ranks"], [{"rank": 1, "status": None}])
        self.assertIsNone(self.gone.finding(False))
        finding = self.gone.finding(True)
        self.assertEqual((finding.cause, finding.ranks), ("ends_early", [1]))
        self.assertEqual(len(waits.read(self.folder, waits.GONE)), 1)
        self.assertEqual(waits.read(self.folder), [])

    def test_lets_others_say_first_why_they_fail(self):
        gone.SETTLE_SECONDS = self.settle
        self.leave(1, regular=False)
        self.gone.poll(2, None)
        self.assertIsNone(self.gone.finding(True))

    def test_a_regular_end_is_no_fault(self):
        self.leave(1, regular=True)
        for statuses in (None, {1: 0}):
            self.gone.poll(2, statuses)
            self.assertIsNone(self.gone.event)

    def test_waits_for_the_status_of_a_rank_that_run_has_started(self):
        self.leave(1, regular=False)
        self.gone.poll(2, {})
        self.assertIsNone(self.gone.event)
        endings = [self.gone.is_ending(2, statuses) for statuses in ({}, {1: 0}, None)]
        self.assertEqual(endings, [True, False, False])
        self.gone.poll(2, {1: 0})
        self.assertEqual(self.gone.event["ranks"], [{"rank": 1, "status": 0}])


if __name__ == "__main__":
    unittest.main()
