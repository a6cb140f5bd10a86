"""Tests of the check of losses that are divided by a total of all ranks."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import Record

from lockstep.checks import counts


class CountsTest(JudgeTest):
    def record(self, scale, counts_of=lambda update: (30 + update, 20)):
        """Returns a record whose ranks reduce counts, and scale losses by scale(count, total)."""
        record = Record()
        for update in range(records.UPDATES):
            shares = counts_of(update)
            for rank in (0, 1):
                (loss,) = [e for e in record.of(rank, "backward") if e["update"] == update]
                loss["scale"] = scale(shares[rank], sum(shares))
                call = {"event": "call", "call": 50 + update, "update": update, "op": "sum"}
                call.update(kind="all_reduce", sizes=[[]], dtype="int64", group="all", peer=None)
                call.update(line="/s/train.py:29", values=[float(shares[rank])])
                record.events[rank].insert(record.events[rank].index(loss), call)
        return record

    def count(self, record):
        return next(c.count for c in record.judge().claims if c.name == counts.NAME)

    def test_a_part_of_the_mean_that_is_averaged_again(self):
        for scale in (lambda n, total: 1 / total, lambda n, total: n / total):
            finding = self.expect(self.record(scale), "divided_by_ranks_again", 0, 30)
            self.assertIn("counts are 30, 20, and their total is 50", finding.evidence[0])

    def test_a_part_times_the_number_of_ranks_is_right(self):
        record = self.record(lambda n, total: 2 / total)
        self.expect_right(record)
        self.assertEqual(self.count(record), 8)

    def test_gradients_that_undo_the_mean_are_right(self):
        record = self.record(lambda n, total: 1 / total)
        for rank in (0, 1):
            for step in record.of(rank, "step"):
                means = [records.mean_vector(step["step"], i) for i in (0, 1)]
                step["gradients"] = [records.recorded([2 * x for x in mean]) for mean in means]
        self.expect_right(record)

    def test_a_total_that_never_changes_may_be_another_number(self):
        record = self.record(lambda n, total: 1 / total, lambda update: (30, 20))
        self.expect_right(record)
        self.assertEqual(self.count(record), 0)

    def test_other_scales_are_right(self):
        scales = [lambda n, total: 1 / (total + 1), lambda n, total: None, lambda n, total: 1 / n]
        for scale in scales:
            self.expect_right(self.record(scale))

    def test_one_update_of_another_scale_leaves_a_doubt(self):
        record = self.record(lambda n, total: 1 / total)
        for rank in (0, 1):
            record.of(rank, "backward")[5]["scale"] = 0.5
        self.expect_right(record)


if __name__ == "__main__":
    unittest.main()
