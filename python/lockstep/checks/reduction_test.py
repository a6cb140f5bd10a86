"""Tests of the checks of reductions and of accumulation."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import Record

from lockstep.checks import reduction


class AccumulationTest(JudgeTest):
    """Each update has two backward passes of half a loss, except those that a test shortens."""

    def shortened(self, *updates, scale=0.5):
        record = Record()
        record.accumulate()
        for rank in (0, 1):
            for update in updates:
                first, second = [e for e in record.of(rank, "backward") if e["update"] == update]
                record.events[rank].remove(first)
                second["scale"] = scale
        return record

    def test_a_short_window(self):
        finding = self.expect(self.shortened(3, 7), "short_window_scaled", 3, 30)
        self.assertIn("2 of 8 updates have fewer than 2 backward passes", finding.evidence[0])

    def test_a_short_window_that_is_scaled_by_its_own_number_is_right(self):
        self.expect_right(self.shortened(3, 7, scale=1.0))

    def test_windows_of_many_lengths_are_right(self):
        self.expect_right(self.shortened(1, 2, 3, 5, 6))

    def test_losses_that_are_not_scaled_are_right(self):
        for scale in (1.0, None, 0.25):
            record = self.shortened(3, scale=scale)
            for rank in (0, 1):
                for event in record.of(rank, "backward"):
                    event["scale"] = scale
            self.expect_right(record)

    def test_passes_that_no_update_follows_are_right(self):
        record = self.shortened()
        for rank in (0, 1):
            last = {**record.of(rank, "backward")[0], "update": records.UPDATES}
            record.events[rank].insert(-1, last)
        self.expect_right(record)


class ReductionTest(JudgeTest):
    """An update uses the mean of the ranks' own gradients of that update."""

    def record(self, used):
        """Returns a record in which the ranks use used(update, tensor, the values before)."""
        record = Record()
        before = [[0.0] * records.SIZE] * 2
        for update in range(records.UPDATES):
            before = [used(update, i, before[i]) for i in (0, 1)]
            for rank in (0, 1):
                record.of(rank, "step")[update]["gradients"] = [records.recorded(b) for b in before]
        return record

    def checked(self, record):
        (claim,) = [c for c in record.judge().claims if c.name == reduction.NAME]
        return claim.count

    def add(self, update, i, before):
        return [x + y for x, y in zip(records.mean_vector(update, i), before)]

    def test_multiples_of_the_mean_are_right(self):
        for factor in (1, 2, 0.5, 0.3, 1024.0):
            record = self.record(
                lambda update, i, before: [factor * x for x in records.mean_vector(update, i)]
            )
            self.expect_right(record)
            self.assertEqual(self.checked(record), records.UPDATES)

    def test_gradients_that_are_never_cleared(self):
        finding = self.expect(self.record(self.add), "not_cleared", 1, 33)
        self.assertIn("in 7 of 7 updates", finding.evidence[0])

    def test_updates_between_micro_batches(self):
        def clear_every_fourth(update, i, before):
            return self.add(update, i, before if update % 4 else [0.0] * records.SIZE)

        finding = self.expect(self.record(clear_every_fourth), "update_per_micro_batch", 1, 33)
        self.assertIn("in 6 of 7 updates", finding.evidence[0])

    def test_half_of_the_gradient_before_is_something_else(self):
        def decay(update, i, before):
            return self.add(update, i, [0.5 * x for x in before])

        record = self.record(decay)
        self.expect_right(record)
        self.assertEqual(self.checked(record), 1)

    def narrow(self, dtype, error, size=records.SIZE):
        def rounded(update, i, before):
            values = records.mean_vector(update, i)
            return [x * (1 + error * (-1) ** k) for k, x in enumerate(values)]

        record = self.record(rounded)
        for rank in (0, 1):
            for call in record.of(rank, "call"):
                call.update(dtype=dtype, sizes=[[size]])
        return record

    def test_a_narrow_reduction(self):
        for size in (records.SIZE, 2 * records.SIZE):
            self.expect(self.narrow("float16", 2.0**-11, size), "reduced_in_narrow_type", 0, 31)
        self.expect(self.narrow("bfloat16", 2.0**-8), "reduced_in_narrow_type", 0, 31)

    def test_other_differences_are_no_narrow_reduction(self):
        for record in (
            self.narrow("float32", 2.0**-11),
            self.narrow("float16", 0.0),
            self.narrow("float16", 0.1),
            self.narrow("float16", 2.0**-11, size=5),
        ):
            self.expect_right(record)


if __name__ == "__main__":
    unittest.main()
