"""Tests that ranks which do not join the group are named, and late ranks of more than two."""

import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs
from situations import LateTest

from lockstep.hooks import recorder
from lockstep.monitor import joining, place

IDLE = "is idle and has not joined"
# Forks import nothing, so they join sooner than started ranks. Only exhaustive runs wait longer.
JOIN_SECONDS = recorder.JOIN_SECONDS if runs.EXHAUSTIVE else 3


class JoiningTest(LateTest):
    def run_sooner(self, kind, *flags, nproc=2):
        """Runs a script whose ranks wait longer than it usually takes to join."""
        return self.run_kind(kind, *flags, nproc=nproc, JOIN_SECONDS=str(JOIN_SECONDS))

    def test_a_rank_that_does_not_join(self):
        done, found, seen = self.run_sooner("never_joins", "--hang_seconds=3", nproc=3)
        self.expect_wrong(done, found, "hangs")
        waiting = seen[0]["rank"]
        line = self.expect_late(seen[0], waiting, 1, "init_process_group", IDLE, "never_joins")
        self.assertEqual(line, "time.sleep(1000)")
        (first, second) = found["findings"][0]["evidence"]
        words = re.search(r"for (\S+) s \(ranks usually join within (\d+) s\); its stack: ", first)
        waited, usual = map(float, words.groups())
        self.assertEqual(usual, JOIN_SECONDS)
        self.assertTrue(usual <= waited <= usual + 1, first)
        self.assertIn("never_joins", second)

    def test_a_world_size_without_a_rank(self):
        done, found, seen = self.run_sooner("larger_world", "--hang_seconds=3")
        self.expect_wrong(done, found, "hangs")
        self.assertEqual(seen[0]["call"], "init_process_group")
        self.assertEqual([other["rank"] for other in seen[0]["late"]], [2])
        self.assertIn("rank 2 has no process on this host", found["findings"][0]["evidence"])

    def test_a_world_size_without_a_rank_ends_a_run_that_fails_fast(self):
        done, found, _ = self.run_sooner("larger_world", "--fail_fast")
        self.expect_wrong(done, found, "hangs")
        self.assertIn("rank 2 has no process on this host", found["findings"][0]["evidence"])

    def test_a_rank_that_leaves_before_it_joins_ends_a_run_that_fails_fast(self):
        done, found, seen = self.run_kind("leaves_before", "--fail_fast")
        self.expect_wrong(done, found, "hangs")
        self.assertIn("rank 1 has ended and has not joined", found["findings"][0]["evidence"])
        self.assertLess(seen[0]["seconds"], 10)  # Nobody waits for a slow start.

    def test_a_rank_that_joins_late_is_named_and_right(self):
        done, found, seen = self.run_sooner("joins_late", "--fail_fast")
        self.assertEqual((done.returncode, found["findings"], len(seen)), (0, [], 1), self.said)
        self.expect_late(seen[0], 0, 1, "init_process_group", IDLE, "joins_late")
        self.assertIn("lockstep: rank 0 goes on", done.stderr)


class GraceTest(unittest.TestCase):
    def test_ranks_that_import_may_record_nothing_for_longer(self):
        with tempfile.TemporaryDirectory() as folder:
            writers = [place.Writer(place.path_of(folder, rank), 0) for rank in (0, 1)]
            for kind, seconds in (
                ("init_process_group", 10),
                ("DDP's constructor", 10),
                ("DDP's forward pass", 0),
                ("barrier", 0),
            ):
                writers[1].enter(kind, "/s/train.py:10", "all")
                self.assertEqual(joining.grace(folder), seconds, kind)
                writers[1].leave()
                self.assertEqual(joining.grace(folder), 0)


class ManyRanksTest(LateTest):
    def test_one_late_rank_of_three(self):
        done, found, seen = self.run_kind("missing_call", "--hang_seconds=3", nproc=3)
        self.expect_wrong(done, found, "calls_differ")
        self.assertIn(seen[0]["rank"], (0, 2))
        self.assertEqual([other["rank"] for other in seen[0]["late"]], [1])

    def test_two_late_ranks_of_four(self):
        done, found, seen = self.run_kind("two_late", "--hang_seconds=3", nproc=4)
        self.expect_wrong(done, found, "calls_differ")
        self.assertIn(seen[0]["rank"], (0, 2))
        self.assertEqual([other["rank"] for other in seen[0]["late"]], [1, 3])
        self.assertEqual({other["state"] for other in seen[0]["late"]}, {"is idle"})

    def test_a_rank_of_four_that_sleeps_once(self):
        done, found, seen = self.run_kind("sleeps", "--fail_fast", nproc=4)
        self.assertEqual((done.returncode, found["findings"], len(seen)), (0, [], 1), self.said)
        self.assertEqual([other["rank"] for other in seen[0]["late"]], [1])


if __name__ == "__main__":
    unittest.main()
