"""Tests of the comparison with one rank."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import Record, digest


class OneRankTest(JudgeTest):
    """Comparison with one rank: the references' gradients are the means of the ranks' own."""

    def record(self, factor=None, shifts=(0.0, 1e-7, -1e-7)):
        """Returns a record whose ranks use factor(vector, update) in place of the mean."""
        record = Record()
        record.add_references(shifts)
        if factor:
            for rank in (0, 1):
                for step in record.of(rank, "step"):
                    step["gradients"] = [factor(step["step"], i) for i in (0, 1)]
        return record

    def scaled(self, factor, first=0):
        def gradient_of(update, i):
            mean = records.mean_vector(update, i)
            return records.recorded([x * (factor if update >= first else 1) for x in mean])

        return gradient_of

    def claim_of(self, record):
        return record.judge().claims[-1]

    def test_the_same_gradients_are_right(self):
        record = self.record()
        self.expect_right(record)
        self.assertEqual(self.claim_of(record).count, records.UPDATES)

    def test_rounding_is_right_and_more_is_not(self):
        # The spread is 1e-7; 8 times that and the bound of two partial sums are 2.5e-6.
        self.expect_right(self.record(self.scaled(1 + 5e-7)))
        self.expect(self.record(self.scaled(1 + 5e-6)), "unknown", 0, 30)

    def test_factors(self):
        self.expect(self.record(self.scaled(0.5, 3)), "divided_by_ranks_again", 3, 30)
        self.expect(self.record(self.scaled(2, 1)), "summed_not_averaged", 1, 30)
        self.expect(self.record(self.scaled(0.7)), "unknown", 0)

    def by_hand(self, used, moved, momentum=0.0):
        """Returns a record of updates by hand: gradients `used` times the right ones, and moves.

        One rank moves the parameters by -0.1 times its gradients, or by twice the momentum more.
        """
        record = self.record(self.scaled(used))
        runs = [(events, used, moved) for events in record.events]
        runs += [(events, 1.0, -0.1) for events in record.references]
        for events, factor, rate in runs:
            for step in (event for event in events if event["event"] == "step"):
                step["moved"] = [
                    [rate / factor * g[1] + momentum * i, rate / factor * g[3] - momentum * i]
                    for i, g in enumerate(step["gradients"])
                ]
        return record

    def test_updates_by_hand_may_divide_where_they_update(self):
        self.expect_right(self.by_hand(1, -0.1))
        self.expect_right(self.by_hand(2, -0.1))

    def test_updates_by_hand_that_are_wrong(self):
        self.expect(self.by_hand(2, -0.2), "summed_not_averaged", 0, 30)
        self.expect(self.by_hand(1, -0.05), "divided_by_ranks_again", 0, 30)
        self.expect(self.by_hand(0.5, -0.05), "divided_by_ranks_again", 0, 30)

    def test_updates_by_hand_that_cannot_be_compared(self):
        """A rate that is scaled on purpose, and sums that a momentum hides."""
        for record, words in (
            (self.by_hand(1, -0.2), "2 times as far as at one rank: it seems scaled on purpose"),
            (self.by_hand(2, -0.2, momentum=9.0), "which an update by hand may take back"),
        ):
            self.expect_right(record, [words])
            self.assertEqual(self.claim_of(record).count, 0)

    def test_a_factor_of_one_tensor_is_unknown(self):
        half = self.scaled(0.5)
        record = self.record(lambda update, i: (half if i else self.scaled(1))(update, i))
        finding = self.expect(record, "unknown", 0)
        self.assertEqual(finding.tensors, ["head.weight"])

    def test_mean_of_means(self):
        record = self.record()
        for events in record.references:
            for step in (event for event in events if event["event"] == "step"):
                means = [records.mean_vector(step["step"], i, (0.75, 0.25)) for i in (0, 1)]
                step["gradients"] = [records.recorded(mean) for mean in means]
        finding = self.expect(record, "mean_of_means", 0, 30)
        self.assertIn("weights 0.75, 0.25", finding.evidence[1])

    def test_a_gradient_that_is_zero_or_missing(self):
        record = self.record(lambda update, i: None if i else self.scaled(1)(update, i))
        self.expect(record, "unknown", 0)
        record = self.record(lambda update, i: records.recorded([float("nan")] * records.SIZE))
        self.assertEqual([f.cause for f in record.judge().findings], ["not_finite"])

    def test_a_schedule_that_depends_on_ranks(self):
        record = self.record()
        for rank in (0, 1):
            record.of(rank, "step")[5]["groups"] = [{"lr": 0.05, "momentum": 0.9}]
        self.expect(record, "schedule_depends_on_ranks", 5, 33)

    def test_a_learning_rate_that_is_scaled_from_the_start_gives_a_note(self):
        record = self.record()
        for rank in (0, 1):
            record.of(rank, "step")[0]["groups"] = [{"lr": 0.2, "momentum": 0.9}]
        self.expect_right(record, ["it seems scaled on purpose"])
        self.assertEqual(self.claim_of(record).count, 0)

    def test_what_cannot_be_compared_is_not(self):
        def batch_norm(model):
            model["batch_norms"]["local"] = ["norm"]

        for change, why in (
            (batch_norm, "batch norm normalises"),
            (lambda model: model.update(random=True), "draws random numbers"),
        ):
            record = self.record(self.scaled(0.5))
            for events in (*record.events, *record.references):
                for event in events:
                    if event["event"] == "optimizer":
                        change(event["models"][0])
            self.expect_right(record)
            self.assertIn(why, self.claim_of(record).why_not)
        record = self.record(self.scaled(0.5))
        for events in record.references:
            next(e for e in events if e["event"] == "step")["before"][0] = digest("seed")
        self.assertIn("starts from other weights", self.claim_of(record).why_not)

    def test_other_samples_are_not_compared(self):
        record = self.record(self.scaled(0.5, 2))
        for events in record.references:
            batch = [event for event in events if event["event"] == "batch"][2]
            batch.update(indices=[5] * 8, samples=[digest("z")] * 8)
        self.expect_right(record, ["trains on other samples at update 2"])
        self.assertEqual(self.claim_of(record).count, 2)

    def test_a_padded_batch_is_known_by_its_indices(self):
        record = self.record(self.scaled(0.5, 2))
        for events in record.references:
            for batch in (event for event in events if event["event"] == "batch"):
                batch.update(samples=[digest("padded", s) for s in batch["samples"]])
                batch.update(shapes=[[9]])
        self.expect(record, "divided_by_ranks_again", 2)

    def test_other_contents_of_one_shape_are_other_samples(self):
        record = self.record(self.scaled(0.5, 2))
        for events in record.references:
            for batch in (event for event in events if event["event"] == "batch"):
                batch.update(samples=[digest("flipped", s) for s in batch["samples"]])
        self.expect_right(record, ["trains on other samples at update 0"])

    def test_random_numbers_of_the_script_end_the_comparison(self):
        record = self.record(self.scaled(0.5, 2))
        for rank in (0, 1):
            record.of(rank, "step")[2]["drew"] = True
        self.expect_right(record, ["draws random numbers"])
        self.assertEqual(self.claim_of(record).count, 2)

    def test_a_spread_that_hides_errors_ends_the_comparison(self):
        record = self.record(self.scaled(0.5), shifts=(0.0, 2e-3, 1e-7))
        self.expect_right(record, ["rounding alone moves"])
        self.assertEqual(self.claim_of(record).count, 0)


if __name__ == "__main__":
    unittest.main()
