"""Tests of the checks of samples, of resumed runs and of evaluations."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

from judging import JudgeTest
from records import Record, digest

from lockstep import verdict


class SamplesTest(JudgeTest):
    def share(self, record, **sampler):
        """Gives rank 1 the samples of rank 0, and both samplers these settings."""
        for mine, theirs in zip(record.of(1, "batch"), record.of(0, "batch")):
            if mine["loader"] == 0:
                mine.update(indices=theirs["indices"], samples=theirs["samples"])
        for rank in (0, 1):
            for event in record.of(rank, "pass"):
                event["sampler"].update(sampler)

    def test_no_distributed_sampler(self):
        record = Record()
        self.share(record, type="RandomSampler", length=32, distributed=False)
        for rank in (0, 1):
            for event in record.of(rank, "pass"):
                del event["sampler"]["num_replicas"], event["sampler"]["shuffle"]
        self.expect(record, "sampler_missing", 0, 20)
        for rank in (0, 1):
            for event in record.of(rank, "pass"):
                event["sampler"]["type"] = "OwnSampler"
        self.expect(record, "same_samples", 0, 20)
        for rank in (0, 1):
            for event in record.of(rank, "pass"):
                event["sampler"]["replacement"] = True
        self.expect_right(record)

    def test_sampler_of_another_group(self):
        for settings in ({"num_replicas": 1, "rank": 0}, {"rank": 0}):
            record = Record()
            self.share(record, **settings)
            self.expect(record, "sampler_misconfigured", 0, 20)

    def test_seeds_by_rank(self):
        for name in ("seed", "epoch"):
            record = Record()
            self.share(record)
            for event in record.of(1, "pass"):
                event["sampler"][name] = 17
            self.expect(record, "ranks_shuffle_apart", 0, 20)

    def test_samples_without_indices(self):
        record = Record()
        self.share(record, type="OwnSampler", distributed=False)
        for rank in (0, 1):
            for event in record.of(rank, "batch"):
                event["indices"] = None
            for event in record.of(rank, "pass"):
                del event["sampler"]["num_replicas"], event["sampler"]["shuffle"]
        self.expect(record, "same_samples", 0)

    def test_same_order_in_each_epoch(self):
        record = Record()
        for rank in (0, 1):
            batches = [b for b in record.of(rank, "batch") if b["loader"] == 0]
            for one, other in zip(batches[:4], batches[4:]):
                other.update(indices=one["indices"], samples=one["samples"])
            for event in record.of(rank, "pass"):
                event["sampler"]["epoch"] = 0
        finding = self.expect(record, "same_order_every_epoch", 4, 20)
        self.assertEqual(finding.sure, verdict.CERTAIN)
        for rank in (0, 1):
            for event in record.of(rank, "pass"):
                event["sampler"]["shuffle"] = False
        self.expect_right(record)


class ResumeTest(JudgeTest):
    def test_a_resume_that_begins_with_epoch_0(self):
        record = Record()
        record.resume(called=0)
        finding = self.expect(record, "resume_repeats_epochs", 0, 19)
        self.assertIn("the checkpoint's epoch is 1, and set_epoch(0)", finding.evidence[0])

    def test_a_resume_from_a_checkpoint_of_epoch_0_is_right(self):
        record = Record()
        record.resume(epoch=0, called=0)
        self.expect_right(record)

    def test_a_new_training_from_another_runs_weights_is_right(self):
        record = Record()
        record.resume(called=0)
        for rank in (0, 1):
            record.of(rank, "restore")[0]["what"] = "model"
        self.expect_right(record)

    def test_a_resume_without_set_epoch_is_right(self):
        record = Record()
        record.resume(called=0)
        for rank in (0, 1):
            record.remove(rank, "set_epoch")
        self.expect_right(record)


class EvaluationTest(JudgeTest):
    def test_buffers_by_rank(self):
        record = Record()
        record.of(1, "evaluate")[0]["buffers"] = [digest("own")]
        self.expect(record, "buffers_differ", 8, 40, ["norm.running_mean"])

    def metric(self, record, values):
        for rank in (0, 1):
            record.of(rank, "call")[-1].update(values=values[rank])
        return record

    def test_means_of_uneven_shares(self):
        self.expect(self.metric(Record(), ([0.7], [0.5])), "metric_unweighted", 8, 41)

    def test_values_that_are_no_means_of_hits_are_not_called_so(self):
        self.expect_right(self.metric(Record(), ([0.7123], [0.5])))
        self.expect_right(self.metric(Record(), ([3.0], [5.0])))
        self.expect_right(self.metric(Record(), ([0.7, 10.0], [0.5, 6.0])))


if __name__ == "__main__":
    unittest.main()
