"""Tests of the checks on records of sharded parameters."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import JudgeTest
from records import events_of

from lockstep import evidence
from lockstep.checks import clipping, earlier_run, one_rank, parameters, reduction


class ShardsTest(JudgeTest):
    def setUp(self):
        self.record = records.Record()
        self.record.shard()

    def claim(self, name):
        found = self.record.judge()
        self.assertEqual(found.run.errors, [])
        return next(claim for claim in found.claims if claim.name == name), found

    def test_parts_of_a_right_run_make_up_the_whole(self):
        self.record.add_references()
        for name in (reduction.NAME, one_rank.NAME, clipping.NAME):
            claim, found = self.claim(name)
            self.assertEqual((found.outcome, claim.count), ("right", records.UPDATES), name)
        claim, _ = self.claim(parameters.NAME)
        self.assertEqual((claim.count, claim.why_not), (0, "each rank holds its own part of them"))

    def test_a_gradient_divided_again(self):
        self.record.add_references()
        for rank in (0, 1):
            for step in self.record.of(rank, "step"):
                halved = [[g[0], g[1] / 2, g[2] / 4, g[3] / 2] for g in step["gradients"]]
                step["gradients"] = step["reduced"] = halved
        self.expect(self.record, "divided_by_ranks_again", update=0, tensors=list(records.NAMES))

    def test_a_wrong_part_of_one_rank(self):
        self.record.add_references()
        gradient = self.record.of(1, "step")[3]["gradients"][1]
        gradient[1:] = [2 * gradient[1], 4 * gradient[2], 2 * gradient[3]]
        self.record.of(1, "step")[3]["reduced"][1] = gradient
        self.expect(self.record, "unknown", update=3, tensors=["head.weight"])

    def test_other_first_weights_at_one_rank(self):
        self.record.add_references()
        self.record.of(1, "step")[0]["first"][0][1] += 1e-3
        claim, _ = self.claim(one_rank.NAME)
        self.assertEqual((claim.count, claim.why_not), (0, "one rank starts from other weights"))

    def test_each_rank_scales_its_own_part(self):
        for rank, factor in ((0, 0.5), (1, 0.25)):
            step = self.record.of(rank, "step")[2]
            step["gradients"] = [
                ["ab", factor * g[1], factor**2 * g[2], factor * g[3]] for g in step["gradients"]
            ]
        self.expect(self.record, "scaled_by_part", update=2, tensors=["body.weight"])

    def test_the_same_factor_and_other_changes_are_no_scaling_by_part(self):
        for rank in (0, 1):
            same, other = self.record.of(rank, "step")[2:4]
            same["gradients"] = [["ab", g[1] / 2, g[2] / 4, g[3] / 2] for g in same["gradients"]]
            other["gradients"] = [
                ["ab", g[1] / (2 + rank), g[2] / 4, g[3]] for g in other["gradients"]
            ]
        self.assertEqual(self.record.judge().outcome, "right")

    def test_replicas_of_a_part_must_agree(self):
        for rank in (0, 1):
            (optimizer,) = self.record.of(rank, "optimizer")
            optimizer["parts"] = [[0, records.SIZE], [rank * 6, 6]]
        for step in self.record.of(0, "step"):
            step["gradients"][0] = self.record.of(1, "step")[step["step"]]["gradients"][0]
        for first, second in zip(self.record.of(0, "step"), self.record.of(1, "step")):
            for name in {"before", "after"} & set(first):
                second[name][0] = first[name][0]
        claim, found = self.claim(parameters.NAME)
        self.assertEqual((found.outcome, claim.count), ("right", records.UPDATES))
        self.record.of(1, "step")[5]["after"][0] = records.digest("another")
        self.record.of(1, "step")[6]["after"][0] = records.digest("others")
        self.record.of(1, "step")[7]["after"][0] = records.digest("others, too")
        self.expect(self.record, "unknown", update=5, tensors=["body.weight"])

    def keep_head_whole(self):
        """Each rank holds all of the second parameter, and updates it with its own gradient."""
        for rank in (0, 1):
            (optimizer,) = self.record.of(rank, "optimizer")
            optimizer["parts"] = [optimizer["parts"][0], None]
            for step in self.record.of(rank, "step"):
                own = records.gradient(step["step"], 1, rank)
                step["gradients"][1] = step["reduced"][1] = own
                step["after"][1] = records.digest("own", step["step"], rank)
                if step["step"] == 0:
                    step["before"][1] = records.digest("first")

    def test_a_parameter_that_is_not_sharded_is_partly_not_reduced(self):
        self.keep_head_whole()
        self.expect(self.record, "partly_not_reduced", update=0, tensors=["head.weight"])

    def test_parts_of_own_gradients_are_not_reduced(self):
        self.keep_head_whole()
        for rank in (0, 1):
            for event in self.record.of(rank, "backward"):
                del event["ddp"]
            for step in self.record.of(rank, "step"):
                own = records.vector(step["step"], 0, rank)[6 * rank : 6 * rank + 6]
                step["gradients"][0] = step["reduced"][0] = records.recorded(own, 6 * rank)
        self.expect(self.record, "not_reduced", update=0, tensors=["head.weight"])

    def test_a_run_that_is_sharded_and_one_that_is_not_are_not_compared(self):
        ranks = [evidence.Rank(rank, events_of(rank)) for rank in (0, 1)]
        mine = [evidence.Rank(rank, events) for rank, events in enumerate(self.record.events)]
        why_not = earlier_run.why_not_comparable(evidence.Run(mine), evidence.Run(ranks))
        self.assertEqual(why_not, "the runs shard the parameters in other ways")
        self.assertEqual(earlier_run.why_not_comparable(evidence.Run(mine), evidence.Run(mine)), "")

    def test_parts_that_overlap_are_not_judged(self):
        (optimizer,) = self.record.of(1, "optimizer")
        optimizer["parts"] = [[5, 6]] * 2
        claim, found = self.claim(parameters.NAME)
        self.assertIn("do not make up the whole", claim.why_not)
        self.assertEqual(found.outcome, "right")


if __name__ == "__main__":
    unittest.main()
