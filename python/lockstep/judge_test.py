"""Tests of the verdict, and that a test breaks a right record for every cause."""

import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from judging import COVERED, WAIT, JudgeTest
from records import Record, digest

from lockstep import causes


class RightTest(JudgeTest):
    def test_a_right_record_is_right_in_every_claim(self):
        record = Record()
        record.accumulate()
        record.resume()
        found = self.expect_right(record)
        self.assertEqual([claim.name for claim in found.claims if not claim.count], [])

    def test_one_rank_alone_is_compared_with_none(self):
        record = Record()
        record.events = record.events[:1]
        found = record.judge()
        why_not = [claim.why_not for claim in found.claims if not claim.count]
        self.assertEqual(why_not.count("fewer than two ranks left a record"), 8)
        self.assertEqual((found.outcome, found.findings), ("not judged", []))

    def test_a_wait_that_passes_gives_a_note(self):
        record = Record()
        record.waits = [WAIT]
        self.expect_right(record, ["in between, rank 0 waits for rank 1 in barrier"])

    def test_weights_that_are_averaged_after_the_update_agree(self):
        record = Record()
        for step in record.of(1, "step"):
            step["before"] = [digest("p", step["step"] - 1, i) for i in (0, 1)]
            if step["step"] < records.UPDATES - 1:
                step["after"] = [digest("p", step["step"], i, "own") for i in (0, 1)]
        for step in record.of(0, "step"):
            step["before"] = [digest("p", step["step"] - 1, i) for i in (0, 1)]
        self.expect_right(record)

    def test_weights_that_are_averaged_now_and_then_give_a_note(self):
        record = Record()
        for step in record.of(1, "step")[2:5]:
            step["after"][0] = digest("own", step["step"])
        self.expect_right(record, ["averaged now and then"])

    def test_padding_of_shares_gives_a_note(self):
        record = Record()
        for batch in record.of(1, "batch")[:1]:
            batch["indices"][3] = record.of(0, "batch")[0]["indices"][0]
            batch["samples"][3] = record.of(0, "batch")[0]["samples"][0]
        self.expect_right(record, ["pads the ranks' shares"])

    def test_a_frozen_part_that_is_only_left_out_gives_a_note(self):
        record = Record()
        for step in record.of(0, "step"):
            step["left_out"] = ["stem.weight"]
        self.expect_right(record, ["stem.weight have gradients"])

    def test_equal_shards_with_equal_indices_are_different_samples(self):
        record = Record()
        for rank in (0, 1):
            for batch in record.of(rank, "batch"):
                batch["indices"] = [i // 2 for i in batch["indices"]]
        self.expect_right(record)

    def test_a_schedule_that_steps_once_an_epoch_is_right(self):
        record = Record()
        for rank in (0, 1):
            record.events[rank] = [
                e for e in record.events[rank] if e["event"] != "schedule" or e["update"] % 4 == 0
            ]
        self.expect_right(record)

    def test_a_norm_below_the_limit_changes_nothing(self):
        record = Record()
        for rank in (0, 1):
            for clip in record.of(rank, "clip"):
                clip.update(norm=0.5 + 0.1 * rank)
        self.expect_right(record)


class VerdictTest(JudgeTest):
    def test_not_judged(self):
        record = Record()
        record.status = 3
        record.events = record.events[:1]
        found = record.judge()
        self.assertEqual((found.outcome, found.exit_status()), ("not judged", 3))
        self.assertIn("only rank 0 of 2 left a record", found.to_text())
        record = Record()
        for rank in (0, 1):
            record.remove(rank, "step")
        self.assertIn("no optimizer took a step", record.judge().why_not)

    def test_one_rank_is_not_judged(self):
        record = Record()
        record.events = record.events[:1]
        record.of(0, "rank")[0]["world_size"] = 1
        self.assertIn("there is one rank", record.judge().why_not)

    def test_lines_have_100_columns_at_most(self):
        record = Record()
        for rank in (0, 1):
            for event in record.events[rank]:
                if "line" in event:
                    event["line"] = "/a/long/path" * 6 + event["line"]
        record.of(1, "step")[0]["before"][1] = digest("other")
        record.of(1, "evaluate")[0]["buffers"] = [digest("own")]
        text = record.judge().to_text()
        self.assertLessEqual(max(len(line) for line in text.splitlines()), 100)

    def test_json_holds_the_findings(self):
        record = Record()
        record.of(1, "evaluate")[0]["buffers"] = [digest("own")]
        found = json.loads(json.dumps(record.judge().to_json()))
        self.assertEqual(found["outcome"], "wrong")
        self.assertEqual(found["findings"][0]["cause"], "buffers_differ")
        self.assertEqual(found["findings"][0]["ranks"], [0, 1])

    def test_an_unreadable_record_is_our_error(self):
        record = Record()
        del record.of(0, "pass")[0]["sampler"]
        found = record.judge()
        self.assertIn("check samples.check_once: KeyError", found.run.errors[0])


def load_tests(loader, tests, pattern):
    """Adds the tests of the single checks."""
    del pattern
    checks = os.path.join(PYTHON, "lockstep", "checks")
    tests.addTests(loader.discover(checks, "*_test.py", PYTHON))
    return tests


if __name__ == "__main__":
    done = unittest.main(exit=False).result
    if done.wasSuccessful() and len(sys.argv) == 1 and COVERED != set(causes.CAUSES):
        sys.exit("causes that no test covers: %s" % sorted(set(causes.CAUSES) - COVERED))
    sys.exit(not done.wasSuccessful())
