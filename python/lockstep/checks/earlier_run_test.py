"""Tests of the comparison with an earlier run."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import NAMES, Record, digest, moved, recorded, vector

SAME_BITS = "the same bits as the earlier run, in 8 updates"
OTHER = "differs_from_earlier_run"


class EarlierRunTest(JudgeTest):
    """The earlier run has the same bits, and repeats move gradients by 1e-7."""

    def setUp(self):
        self.record = Record()
        self.record.add_earlier()

    def steps(self, first=0):
        """Returns the steps of the earlier run from an update on, of both ranks."""
        steps = [e for events in self.record.earlier for e in events if e["event"] == "step"]
        return [step for step in steps if step["step"] >= first]

    def events(self, kind, sides=None):
        sides = sides or (self.record.events, self.record.earlier, *self.record.repeats)
        return [e for side in sides for events in side for e in events if e["event"] == kind]

    def move_earlier(self, shift):
        self.record.earlier = [moved(events, shift) for events in self.record.earlier]

    def other_gradients(self, first, index, factor):
        for step in self.steps(first):
            mean = records.mean_vector(step["step"], index)
            step["gradients"][index] = recorded([factor * x for x in mean])
            step["after"][index] = digest("after", step["step"], index, factor)

    def count(self):
        return self.record.judge().claims[-1].count

    def test_the_same_bits(self):
        self.expect_right(self.record, [SAME_BITS])
        self.record.repeats = []
        self.expect_right(self.record, [SAME_BITS])

    def test_other_bits_within_rounding(self):
        self.move_earlier(3e-7)
        (note,) = self.expect_right(self.record, ["rounding explains it"]).notes
        self.assertIn("bits differ first in the first weights at update 0: body.weight", note)
        self.assertEqual(self.count(), 8)

    def test_other_bits_without_repeats_are_not_judged(self):
        self.other_gradients(2, 1, 1.5)
        self.record.repeats = []
        words = "not judged: bits differ first in the gradients at update 2: head.weight, and no"
        self.expect_right(self.record, [words])
        self.assertEqual(self.count(), 2)

    def test_other_gradients(self):
        self.other_gradients(3, 1, 1 + 1e-4)
        finding = self.expect(self.record, OTHER, 3, 30, ["head.weight"])
        self.assertIn("head.weight is off by 0.0001 of its size", finding.evidence[0])

    def test_the_first_bits_may_differ_before_the_first_wrong_update(self):
        self.other_gradients(2, 0, 1 + 1e-7)
        self.other_gradients(5, 1, 1.01)
        finding = self.expect(self.record, OTHER, 5, 30, ["head.weight"])
        self.assertIn("differ first in the gradients at update 2: body.weight", finding.evidence[2])

    def test_other_parameters_after_the_same_gradients_show_in_the_next_gradients(self):
        for step in self.steps(3):
            step["after"][1] = digest("rounded otherwise", step["step"])
        self.expect_right(self.record, ["differ first in the parameters after the step"])
        self.other_gradients(4, 1, 1.01)
        self.expect(self.record, OTHER, 4, 30, ["head.weight"])

    def test_another_learning_rate(self):
        self.steps()[0]["groups"] = [{"lr": 0.2, "momentum": 0.9}]
        for step in self.steps():
            step["after"] = [digest("faster", step["step"], i) for i in (0, 1)]
        for self.record.repeats in (self.record.repeats, []):
            finding = self.expect(self.record, "trains_with_other_settings", 0, 33, list(NAMES))
            self.assertEqual(finding.evidence, ["lr: 0.1 now, 0.2 then"])

    def test_settings_of_the_implementation_do_not_count(self):
        (group,) = self.record.of(0, "step")[0]["groups"]
        group["foreach"] = True
        self.steps()[0]["groups"] = [{**group, "lr": group["lr"] * (1 + 1e-9), "foreach": False}]
        self.expect_right(self.record, [SAME_BITS])

    def test_another_optimizer(self):
        for event in self.events("optimizer", [self.record.earlier]):
            event["type"] = "Adam"
        finding = self.expect(self.record, "trains_with_other_settings", 0, 33)
        self.assertEqual(finding.evidence, ["the optimizer is SGD now, and was Adam"])

    def other_weights(self, sides):
        for number, side in enumerate(sides):
            for step in (e for events in side for e in events if e["event"] == "step"):
                step["after"][1] = digest("other", number, step["step"])
                if step["step"] == 0:
                    step["before"][1] = digest("other", number)
                    step["first"][1] = recorded(vector("other", number))

    def test_other_first_weights(self):
        self.other_weights([self.record.earlier])
        for side, seed in ((self.record.events, 1), (self.record.earlier, 2)):
            side[0].insert(2, {"event": "seed", "seed": seed})
        finding = self.expect(self.record, "starts_from_other_weights", 0, 11, ["head.weight"])
        self.assertEqual(finding.evidence, ["seeds: 1 now, 2 then"])

    def test_first_weights_that_no_run_repeats_are_not_judged(self):
        self.other_weights([self.record.earlier, *self.record.repeats])
        self.expect_right(self.record, ["each run of the script starts from other weights"])
        self.assertEqual(self.count(), 0)

    def test_other_samples_are_not_judged(self):
        self.other_gradients(2, 1, 1.5)
        for batch in self.events("batch", [self.record.earlier]):
            if batch["update"] >= 2:
                batch.update(indices=[5] * 4, samples=[digest("z")] * 4)
        self.expect_right(self.record, ["in 2 updates", "different samples from update 2 on"])
        self.assertEqual(self.count(), 2)

    def other_contents(self, sides):
        for number, side in enumerate(sides):
            for batch in self.events("batch", [side]):
                batch["samples"] = [digest("other", number, s) for s in batch["samples"]]

    def test_other_contents_of_the_same_samples_are_judged(self):
        self.other_contents([self.record.earlier])
        self.other_gradients(0, 0, 0.5)
        self.expect(self.record, OTHER, 0, 30, ["body.weight"])
        self.record.repeats = []
        self.expect_right(self.record, ["not judged: the samples of update 0 have other contents"])

    def test_contents_that_no_run_repeats_are_not_judged(self):
        self.other_contents([self.record.earlier, *self.record.repeats])
        self.other_gradients(0, 0, 0.5)
        self.expect_right(self.record, ["the samples' contents are random"])

    def test_repeats_that_spread_are_not_judged(self):
        self.record.add_earlier(shifts=(2e-3, -1e-7))
        self.other_gradients(1, 0, 0.5)
        self.expect_right(self.record, ["repeats of this run move its gradients by 0.002"])

    def test_repeats_that_end_early(self):
        self.other_gradients(3, 1, 1.5)
        for repeat in self.record.repeats:
            for rank, events in enumerate(repeat):
                repeat[rank] = [e for e in events if e["event"] != "step" or e["step"] < 3]
        self.expect_right(self.record, ["the repeats of this run end before update 3"])

    def test_other_parameters(self):
        for event in self.events("optimizer", [self.record.earlier]):
            event["parameters"].append(["norm.weight", [4], "float32"])
        self.expect(self.record, OTHER, 0, 11, ["norm.weight"])

    def test_a_finding_of_the_run_itself_explains_the_difference(self):
        self.other_gradients(3, 1, 1.5)
        self.record.of(1, "backward")[2]["loss"] = [float("nan")]
        self.expect(self.record, "not_finite", 2)
        self.record.of(1, "backward")[2]["loss"] = [1.0]
        self.record.of(1, "evaluate")[0]["buffers"] = [digest("own")]
        causes = [finding.cause for finding in self.record.judge().findings]
        self.assertEqual(causes, [OTHER, "buffers_differ"])

    def test_one_rank_is_judged_by_its_comparison(self):
        record = self.record
        sides = [record.events, record.earlier, *record.repeats]
        for side in sides:
            del side[1:]
        for event in self.events("rank", sides):
            event["world_size"] = 1
        self.expect_right(record, [SAME_BITS])
        self.other_gradients(4, 0, 1.5)
        self.expect(record, OTHER, 4, 30, ["body.weight"])
        record.repeats = []
        for batch in self.events("batch", [record.earlier]):
            batch.update(indices=[5], samples=[digest("z")])
        found = record.judge()
        self.assertEqual(found.outcome, "not judged")
        self.assertIn("train on different samples from update 0", found.why_not)

    def test_another_number_of_ranks(self):
        self.record.earlier = [records.one_rank_events(1e-7)]
        found = self.expect_right(self.record, ["bits differ first in the gradients"])
        self.assertEqual(found.claims[-1].count, 8)
        self.other_gradients(3, 1, 0.5)
        finding = self.expect(self.record, OTHER, 3, 30, ["head.weight"])
        self.assertIn("2 ranks now, 1 then", finding.evidence)
        self.steps()[0]["groups"] = [{"lr": 0.2, "momentum": 0.9}]
        self.expect_right(self.record, ["it seems scaled on purpose"])

    def expect_not_comparable(self, why):
        self.other_gradients(0, 0, 0.5)
        self.expect_right(self.record)
        self.assertIn(why, self.record.judge().claims[-1].why_not)

    def test_batch_norm_over_another_number_of_ranks_is_not_comparable(self):
        self.record.earlier = [records.one_rank_events()]
        for event in self.events("optimizer"):
            event["models"][0]["batch_norms"]["local"] = ["norm"]
        self.expect_not_comparable("batch norm normalises")

    def test_random_layers_are_comparable_under_the_same_conditions(self):
        for event in self.events("optimizer"):
            event["models"][0]["random"] = True
        self.expect_right(self.record, [SAME_BITS])
        for event in self.events("process", [self.record.earlier]):
            event["torch"] = "1"
        self.expect_not_comparable("the model draws random numbers, and the runs may draw others")

    def test_a_checkpoint_is_not_comparable(self):
        self.record.events[0].insert(4, {"event": "restore", "what": "model", "update": 0})
        self.expect_not_comparable("starts from a checkpoint")

    def test_random_numbers_of_the_script_under_other_conditions_end_the_comparison(self):
        for rank in (0, 1):
            self.record.of(rank, "step")[3]["drew"] = True
        self.expect_right(self.record, [SAME_BITS])
        for event in self.events("process", [self.record.earlier]):
            event["torch"] = "1"
        self.other_gradients(3, 0, 0.5)
        self.expect_right(self.record, ["in 3 updates", "draws random numbers before update 3"])


if __name__ == "__main__":
    unittest.main()
