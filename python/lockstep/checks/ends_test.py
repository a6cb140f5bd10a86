"""Tests of the checks of calls and of how ranks end."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

from judging import WAIT, JudgeTest
from records import Record

from lockstep.checks import ends


class CallsTest(JudgeTest):
    def test_other_sizes(self):
        record = Record()
        record.of(1, "call")[3]["sizes"] = [[11]]
        finding = self.expect(record, "calls_differ", 3, 31)
        self.assertIn("rank 1: all_reduce sum of [11] float32", finding.evidence[1])

    def test_other_kinds_operations_and_roots(self):
        for changes in ({"kind": "broadcast"}, {"op": "max"}, {"dtype": "int64"}, {"peer": 1}):
            record = Record()
            record.of(1, "call")[2].update(changes)
            self.expect(record, "calls_differ", 2, 31)

    def test_a_call_that_one_rank_leaves_out(self):
        record = Record()
        record.events[1].remove(record.of(1, "call")[-1])
        self.expect(record, "calls_differ", 8)

    def test_a_mismatch_explains_a_crash_and_a_hang(self):
        record = Record()
        record.of(1, "call")[3]["sizes"] = [[11]]
        record.status = 1
        failure = {"event": "exception", "type": "RuntimeError", "text": "size", "update": 3}
        record.events[0].append({**failure, "line": "/s/train.py:31"})
        self.expect(record, "calls_differ", 3)
        record.hung_seconds = 5.0
        self.expect(record, "calls_differ", 3)


class EndsTest(JudgeTest):
    def test_exception(self):
        record = Record()
        record.status = 1
        failure = {"event": "exception", "update": 5, "line": "/s/train.py:50"}
        record.events[0].append({**failure, "type": "RuntimeError", "text": "Connection closed"})
        record.events[1].append({**failure, "type": "ValueError", "text": "too bad\nmore"})
        finding = self.expect(record, "crashes", 5, 50)
        self.assertEqual((finding.ranks, finding.evidence), ([1], ["ValueError: too bad"]))

    def test_killed(self):
        record = Record()
        record.status = -9
        record.remove(1, "end")
        finding = self.expect(record, "ends_early")
        self.assertEqual(finding.ranks, [1])

    def kill(self, status):
        """Returns a record whose rank 1 is gone first, so that rank 0 loses its connection."""
        record = Record()
        record.status, record.gone = 1, [{"rank": 1, "status": status}]
        failure = {"event": "exception", "update": 8, "line": "/s/train.py:31"}
        record.events[0].append({**failure, "type": "RuntimeError", "text": "Broken pipe"})
        record.events[1].remove(record.of(1, "call")[-1])
        return record

    def test_the_rank_that_is_gone_first_explains_what_follows(self):
        for status, words in (
            (-9, "the process of rank 1 was ended by signal 9 (SIGKILL)"),
            (5, "the process of rank 1 ended with status 5"),
            (None, "the process of rank 1 is gone, without Python's regular exit"),
        ):
            record = self.kill(status)
            record.remove(1, "end")
            finding = self.expect(record, "ends_early", 8)
            self.assertEqual((finding.ranks, finding.evidence[0]), ([1], words))

    def test_a_rank_that_exits_with_a_status(self):
        record = self.kill(3)
        record.remove(0, "call")
        record.remove(1, "call")
        finding = self.expect(record, "unknown")
        self.assertEqual((finding.ranks, finding.update), ([1], 8))
        self.assertEqual(finding.text, "a rank ends with a status that is not 0")

    def test_an_exception_of_its_own_is_named_although_another_rank_is_gone(self):
        record = self.kill(-15)
        record.remove(1, "end")
        record.of(0, "exception")[0]["text"] = "too bad"
        finding = self.expect(record, "crashes", 8, 31)
        self.assertEqual(finding.ranks, [0])

    def test_a_rank_that_begins_an_update_more_than_another(self):
        record = self.kill(None)
        record.gone = []
        record.remove(0, "call")
        record.remove(1, "call")
        begun = record.of(0, "batch")[0], {**record.of(0, "backward")[0], "loss": [0.5]}
        for event in begun:
            record.events[0].append({**event, "update": 8})
            # Its own status follows from its exception.
            for record.gone in ([], [{"rank": 0, "status": 1}]):
                finding = self.expect(record, "uneven_updates", 8, 31)
                self.assertEqual(finding.ranks, [1])
            record.events[0].pop()

    def test_a_hang_with_the_late_ranks_stack(self):
        record = Record()
        record.remove(1, "end")
        record.hung_seconds, record.status, record.waits = 5.0, 143, [WAIT]
        finding = self.expect(record, "hangs", line=51)
        self.assertEqual(finding.ranks, [1])
        self.assertIn("train.py:51 (load) < /s/train.py:60 (main)", finding.evidence[1])

    def test_hang(self):
        record = Record()
        record.hung_seconds = 31.0
        record.remove(1, "end")
        finding = self.expect(record, "hangs")
        self.assertIn("31 s", finding.text)

    def test_infinite_losses_that_the_factor_of_a_scaler_explains(self):
        infinite = float("inf")
        for count, changes, right in (
            (1, {}, False),
            (1, {"scaler": 2.0**120}, True),
            (ends.HALVINGS, {"scaler": 2.0**120}, True),
            (ends.HALVINGS + 1, {"scaler": 2.0**120}, False),
            (1, {"scaler": 2.0**120, "loss": [float("nan")]}, False),
        ):
            with self.subTest(count=count, changes=changes):
                record = Record()
                (event,) = (e for e in record.of(1, "backward") if e["update"] == 3)
                place = record.events[1].index(event)
                skipped = [{**event, "loss": [infinite], **changes} for _ in range(count)]
                record.events[1][place:place] = skipped
                if right:
                    self.expect_right(record)
                else:
                    self.expect(record, "not_finite", 3, 30)

    def test_not_finite(self):
        record = Record()
        record.of(1, "backward")[6]["loss"] = [float("nan")]
        self.expect(record, "not_finite", 6, 30)
        record.of(0, "step")[4]["gradients"][1][2] = float("inf")
        self.expect(record, "not_finite", 4, 33, ["head.weight"])

    def test_a_command_that_fails_is_not_right(self):
        record = Record()
        record.status = 3
        finding = self.expect(record, "unknown")
        self.assertEqual(finding.text, "the command ends with status 3")

    def test_uneven_updates_under_join_are_right(self):
        record = Record()
        record.events[1].remove(record.of(1, "step")[-1])
        for rank in (0, 1):
            record.events[rank].insert(4, {"event": "join", "update": 0, "line": "/s/t.py:1"})
        self.expect_right(record)

    def test_uneven_updates(self):
        record = Record()
        steps = record.of(1, "step")
        record.events[1].remove(steps[-1])
        self.expect(record, "uneven_updates", 7)


if __name__ == "__main__":
    unittest.main()
