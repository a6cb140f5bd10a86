"""Tests of the checks of parameters and of the optimizers' settings."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import Record, digest, gradient

from lockstep.checks import parameters


class ParametersTest(JudgeTest):
    def part(self, record, names, change):
        """Applies change(step, index) to rank 1's steps for the named parameters."""
        for step in record.of(1, "step"):
            for i, name in enumerate(records.NAMES):
                if name in names:
                    change(step, i)

    def other_after(self, record, first=0, names=records.NAMES):
        def change(step, i):
            if step["step"] >= first:
                step["after"][i] = digest("drift", step["step"], i)

        self.part(record, names, change)

    def own_gradients(self, record, names=records.NAMES):
        for rank in (0, 1):
            for step in record.of(rank, "step"):
                for i, name in enumerate(records.NAMES):
                    if name in names:
                        own = gradient("own", step["step"], i, rank)
                        step["gradients"][i] = own
                        step["local"][i] = [1, own[1], own[3]]
        self.other_after(record, names=names)

    def test_first_weights(self):
        record = Record()
        record.of(1, "step")[0]["before"][1] = digest("other")
        self.other_after(record, names=["head.weight"])
        self.expect(record, "first_weights_differ", 0, 11, ["head.weight"])

    def test_parameters_that_the_script_changes_between_updates(self):
        record = Record()
        record.of(1, "step")[3]["before"] = [digest("moved"), digest("p", 2, 1)]
        self.other_after(record, first=3, names=["body.weight"])
        finding = self.expect(record, "unknown", 3, 33, ["body.weight"])
        self.assertIn("the script changes them in between", finding.evidence[1])

    def test_no_reduction(self):
        record = Record()
        self.own_gradients(record)
        for rank in (0, 1):
            record.remove(rank, "ddp")
            for event in record.of(rank, "backward"):
                event["ddp"] = None
        self.expect(record, "not_reduced", 0, 33, list(records.NAMES))

    def test_no_reduction_by_ddp(self):
        for forwards, cause in (([0, 0], "ddp_bypassed"), ([1, 0], "never_synchronised")):
            record = Record()
            self.own_gradients(record)
            for rank in (0, 1):
                for event in record.of(rank, "backward"):
                    event["ddp"] = forwards
            self.expect(record, cause, 0, 30)

    def test_own_gradients_although_ddp_saw_the_forward_pass_are_unknown(self):
        record = Record()
        self.own_gradients(record)
        self.expect(record, "unknown", 0)

    def test_accumulated_own_gradients_are_known_by_their_sums(self):
        record = Record()
        self.own_gradients(record)
        for rank in (0, 1):
            for step in record.of(rank, "step"):
                for local in step["local"]:
                    local[0] = 2
                    local[1] *= 1 + 2**-26  # The parts' sum rounds otherwise than their sums.
            for event in record.of(rank, "backward"):
                event["ddp"] = [2, 0]
        self.expect(record, "never_synchronised", 0)
        for step in record.of(1, "step"):
            step["local"][0][1] *= 1.001
        self.expect(record, "unknown", 0)

    def test_a_part_is_not_reduced(self):
        record = Record()
        self.own_gradients(record, names=["head.weight"])
        self.expect(record, "partly_not_reduced", 0, 11, ["head.weight"])

    def test_a_gradient_is_missing_on_a_rank(self):
        record = Record()
        self.other_after(record, first=2, names=["head.weight"])
        for step in record.of(1, "step")[2:]:
            step["gradients"][1] = None
        self.expect(record, "gradient_missing", 2, 33, ["head.weight"])

    def test_other_gradients_are_unknown(self):
        record = Record()
        self.other_after(record, first=3)
        for step in record.of(1, "step")[3:]:
            step["gradients"] = [gradient("odd", step["step"], i) for i in (0, 1)]
        self.expect(record, "unknown", 3)

    def test_gradients_that_were_not_recorded_are_unknown(self):
        record = Record()
        self.other_after(record, first=3)
        for rank in (0, 1):
            del record.of(rank, "step")[3]["gradients"]
        self.expect(record, "unknown", 3)

    def test_learning_rate_by_rank(self):
        record = Record()
        self.other_after(record, first=4)
        record.of(1, "step")[4]["groups"] = [{"lr": 0.05, "momentum": 0.9}]
        self.expect(record, "learning_rate_differs", 4)

    def test_other_settings_by_rank(self):
        record = Record()
        self.other_after(record, first=1)
        record.of(1, "step")[0]["groups"] = [{"lr": 0.1, "momentum": 0.8}]
        self.expect(record, "settings_differ", 1)

    def test_state_restored_on_one_rank(self):
        record = Record()
        self.other_after(record)
        self.expect(record, "unknown", 0)
        record.events[0].insert(4, {"event": "restore", "what": "optimizer", "update": 0})
        self.expect(record, "optimizer_state_differs", 0)

    def test_not_data_parallel_is_not_compared(self):
        record = Record()
        self.other_after(record)
        record.of(1, "optimizer")[0]["parameters"][0][1] = [4, 3]
        found = record.judge()
        self.assertEqual(found.findings, [])
        self.assertIn("different shapes", found.claims[3].why_not)


class OwnGradientsTest(unittest.TestCase):
    """How far an accumulated gradient's sums may be from the sums of the passes' own gradients.

    All numbers of a gradient are 0.5 here, so sqrt(size * sum of squares) is the sum of their sizes.
    """

    def shifted(self, count, size, shift):
        """Returns whether sums that are moved by shift times the sum of sizes are a rank's own."""
        total = size / 2
        recorded_gradient = [digest("g"), total, size / 4, total / 8]
        shifts = ([shift, 0], [0, shift])
        own = [[count, (1 + a) * total, (1 / 8 + b) * total] for a, b in shifts]
        found = {parameters.is_own(recorded_gradient, local, size) for local in own}
        self.assertEqual(len(found), 1)
        return found.pop()

    def test_as_far_as_roundings_explain(self):
        for count, size in ((2, 1), (2, 12), (3, 2**20), (64, 7), (1000, 4096)):
            # `count` additions of parts that may be twice as large as their sum, and two sums of
            # eight float32 numbers each.
            roundings = 2 * (count + 8 + 8)
            for sign in (1, -1):
                with self.subTest(count=count, size=size, sign=sign):
                    self.assertTrue(self.shifted(count, size, sign * 0.99 * roundings * 2.0**-24))
                    self.assertFalse(self.shifted(count, size, sign * 1.01 * roundings * 2.0**-24))

    def test_one_pass_has_the_same_bits(self):
        self.assertTrue(self.shifted(1, 12, 0.0))
        self.assertFalse(self.shifted(1, 12, 2.0**-50))

    def test_nan_is_not_own(self):
        nan = float("nan")
        self.assertFalse(parameters.is_own([digest("g"), nan, nan, nan], [2, nan, nan], 12))


class SettingsTest(JudgeTest):
    def test_learning_rate_by_rank_from_the_start(self):
        record = Record()
        record.of(1, "step")[0]["groups"][0]["lr"] = 0.2
        self.expect(record, "learning_rate_differs", 0)

    def test_optimizer_holds_an_old_head(self):
        record = Record()
        for rank in (0, 1):
            record.of(rank, "optimizer")[0]["parameters"][1][0] = "parameter 1"
            for step in record.of(rank, "step"):
                step["gradients"][1] = step["local"][1] = None
                step["left_out"] = ["head.weight"]
        self.expect(record, "optimizer_misses_parameters", 0, 11, ["head.weight"])

    def test_schedule_steps_once_a_rank(self):
        record = Record()
        for rank in (0, 1):
            record.events[rank] = [
                again
                for event in record.events[rank]
                for again in [event] * (1 + (event["event"] == "schedule"))
            ]
        self.expect(record, "schedule_steps_by_rank", 1, 34)

    def test_clipping_before_the_reduction(self):
        record = Record()
        for clip in record.of(1, "clip"):
            clip["norm"] += 0.25
        self.expect(record, "clipped_before_reduction", 0, 32)


if __name__ == "__main__":
    unittest.main()
