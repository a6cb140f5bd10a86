"""Tests of updates that a script writes by hand: they are judged as an optimizer's are."""

import json
import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

SCRIPT = os.path.join(PYTHON, "testing", "by_hand.py")
UPDATES = 6
SAME = "the ranks have the same parameters after each update"
OWN = "an update uses the gradients of its own backward passes"


def source_of(line):
    path, _, number = line.rpartition(":")
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[int(number) - 1].strip()


class ByHandTest(unittest.TestCase):
    def verdict(self, *flags, ours=()):
        """Returns the verdict, each rank's events, and what was printed."""
        with tempfile.TemporaryDirectory() as folder:
            done, events = runs.record_script(folder, SCRIPT, *flags, flags=ours, forked=True)
            with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
                found = json.load(file)
        said = done.stdout + done.stderr
        self.assertEqual(found["errors_of_lockstep"], [], said)
        self.assertEqual(done.returncode, int(found["outcome"] == "wrong"), said)
        return found, events, said

    def expect(self, cause, *flags, ours=()):
        found, _, said = self.verdict(*flags, ours=ours)
        self.assertEqual([f["cause"] for f in found["findings"]], [cause], said)
        (finding,) = found["findings"]
        self.assertEqual(finding["ranks"], [0, 1])
        return finding

    def expect_right(self, *flags, ours=()):
        found, events, said = self.verdict(*flags, ours=ours)
        self.assertEqual(found["outcome"], "right", said)
        checked = {claim["claim"]: claim["checked"] for claim in found["claims"]}
        self.assertEqual((checked[SAME], checked[OWN]), (UPDATES, UPDATES), said)
        return found, events, checked

    def test_right_scripts_by_how_they_clear_gradients(self):
        for flags in (
            ["--clear=none"],
            ["--clear=zero", "--data"],
            ["--clear=model"],
            ["--clear=before"],
            ["--clear=before", "--ddp"],
        ):
            with self.subTest(flags=flags):
                _, events, _ = self.expect_right(*flags)
                self.expect_steps(events[0], "--data" in flags)

    def expect_steps(self, events, data):
        (optimizer,) = runs.of_kind(events, "optimizer")
        steps = runs.of_kind(events, "step")
        self.assertEqual([step["update"] for step in steps], list(range(UPDATES)))
        self.assertEqual(len(optimizer["parameters"]), 6)
        self.assertEqual(len(optimizer["models"][0]["buffers"]), 3)
        wanted = "p.data.sub_(rate * p.grad.data)" if data else "p -= rate * p.grad"
        for step in steps:
            self.assertEqual(source_of(step["line"]), wanted)
            self.assertNotIn(None, step["gradients"])
            self.assertEqual([count for count, *_ in step["local"]], [1] * 6)
        self.assertEqual(["before" in step for step in steps], [True] + [False] * 5)
        batches = [event["update"] for event in runs.of_kind(events, "batch")]
        self.assertEqual(batches, list(range(UPDATES)))

    def test_gradients_that_are_not_reduced(self):
        finding = self.expect("not_reduced", "--own_gradients")
        self.assertEqual(finding["update"], 0)
        self.assertEqual(source_of(finding["line"]), "p -= rate * p.grad")

    def test_gradients_that_no_parameter_holds(self):
        ours = ["--reference=one_rank"]
        for flags in (["--grad", "--no_norm"], ["--grad", "--no_norm", "--data"]):
            with self.subTest(flags=flags):
                _, _, checked = self.expect_right(*flags, ours=ours)
                self.assertEqual(checked["the ranks compute what one rank computes"], UPDATES)
        finding = self.expect("not_reduced", "--grad", "--own_gradients")
        self.assertEqual(finding["update"], 0)

    def test_some_gradients_that_are_not_reduced(self):
        finding = self.expect("partly_not_reduced", "--own_bias", "--no_norm")
        self.assertEqual((finding["update"], finding["tensors"]), (0, ["0.bias", "3.bias"]))
        self.assertEqual(source_of(finding["line"]), "p -= rate * p.grad")

    def test_a_forward_pass_around_ddp(self):
        finding = self.expect("ddp_bypassed", "--ddp", "--bypass")
        self.assertEqual(finding["update"], 0)

    def test_first_weights(self):
        finding = self.expect("first_weights_differ", "--seed_by_rank")
        self.assertEqual(finding["update"], 0)

    def test_a_rate_that_depends_on_the_rank(self):
        finding = self.expect("learning_rate_differs", "--rate_by_rank")
        self.assertEqual(finding["update"], 0)
        self.assertIn("by 1, 2 times the same update", finding["evidence"][-1])

    def test_gradients_that_are_never_cleared(self):
        finding = self.expect("not_cleared", "--clear=", "--ddp")
        self.assertEqual(finding["update"], 1)

    def test_compares_with_one_rank(self):
        ours = ["--reference=one_rank"]
        _, _, checked = self.expect_right("--no_norm", ours=ours)
        self.assertEqual(checked["the ranks compute what one rank computes"], UPDATES)
        finding = self.expect("summed_not_averaged", "--no_norm", "--sum", ours=ours)
        self.assertEqual(finding["update"], 0)

    def test_an_optimizer_ends_it(self):
        found, events, said = self.verdict("--optimizer")
        self.assertEqual(found["outcome"], "right", said)
        kinds = [event["type"] for event in runs.of_kind(events[0], "optimizer")]
        self.assertEqual(kinds, ["ByHand", "SGD"])
        steps = [event["optimizer"] for event in runs.of_kind(events[0], "step")]
        self.assertEqual(steps, [0, 0, 1, 1, 1, 1])

    def test_updates_beside_an_optimizer(self):
        for flags, first in (
            (["--beside"], 0),
            (["--beside", "--later"], 1),
            (["--beside", "--ddp", "--clear=zero"], 0),
            (["--beside", "--later", "--clear=before", "--data"], 1),
        ):
            with self.subTest(flags=flags):
                found, events, said = self.verdict(*flags)
                self.assertEqual(found["outcome"], "right", said)
                self.assertFalse([n for n in found["notes"] if "in no optimizer" in n], said)
                checked = {claim["claim"]: claim["checked"] for claim in found["claims"]}
                self.assertEqual((checked[SAME], checked[OWN]), (2 * UPDATES, 2 * UPDATES), said)
                self.expect_two(events[0], first, "--data" in flags)

    def expect_two(self, events, first, data):
        """first: the number of the optimizer's first update."""
        described = runs.of_kind(events, "optimizer")
        self.assertEqual([event["type"] for event in described], ["SGD", "ByHand"][:: 1 - 2 * first])
        by_hand = described[1 - first]
        names = [name.rpartition(".")[2] for name, *_ in by_hand["parameters"]]
        self.assertEqual(sorted(names), ["bias", "weight"])
        steps = runs.of_kind(events, "step")
        self.assertEqual([step["update"] for step in steps], list(range(2 * UPDATES)))
        own = [step for step in steps if step["optimizer"] == by_hand["optimizer"]]
        self.assertEqual([step["update"] for step in own], list(range(1 - first, 2 * UPDATES, 2)))
        wanted = "p.data.sub_(rate * p.grad.data)" if data else "p -= rate * p.grad"
        for step in own:
            self.assertEqual(source_of(step["line"]), wanted)
            self.assertNotIn(None, step["gradients"])

    def test_wrong_updates_beside_an_optimizer(self):
        for flags, cause, tensors in (
            (["--own_head"], "partly_not_reduced", ["3.bias", "3.weight"]),
            (["--own_head", "--later"], "partly_not_reduced", ["3.bias", "3.weight"]),
            (["--rate_by_rank"], "learning_rate_differs", ["3.bias", "3.weight"]),
            (["--ddp", "--bypass"], "ddp_bypassed", None),
        ):
            with self.subTest(flags=flags):
                finding = self.expect(cause, "--beside", *flags)
                if tensors:
                    self.assertEqual(sorted(finding["tensors"]), tensors)

    def test_parameters_that_nobody_updates_are_left_out(self):
        found, events, said = self.verdict("--beside", "--no_update")
        self.assertEqual(found["outcome"], "right", said)
        self.assertEqual([e["type"] for e in runs.of_kind(events[0], "optimizer")], ["SGD"])
        self.assertIn("3.weight, 3.bias have gradients and are in no optimizer", said)

    def test_what_is_no_update_by_hand(self):
        """An optimizer has copies of the parameters; each rank moves its samples."""
        for flags in (["--copies"], ["--beside", "--no_update", "--attack"]):
            with self.subTest(flags=flags):
                found, events, said = self.verdict(*flags)
                self.assertEqual(found["outcome"], "right", said)
                self.assertEqual([e["type"] for e in runs.of_kind(events[0], "optimizer")], ["SGD"])
                self.assertEqual(len(runs.of_kind(events[0], "step")), UPDATES)

    def test_compares_both_with_one_rank(self):
        flags = "--beside", "--no_norm"
        found, _, said = self.verdict(*flags, ours=["--reference=one_rank"])
        self.assertEqual(found["outcome"], "right", said)
        self.assertEqual(found["claims"][-1]["checked"], 2 * UPDATES, said)

    def test_gradients_that_nothing_uses_are_no_update(self):
        found, events, said = self.verdict("--no_update")
        self.assertEqual((found["outcome"], runs.of_kind(events[0], "step")), ("not judged", []))
        self.assertIn("no optimizer took a step", found["why_not_judged"])

    def test_changes_no_bit(self):
        for flags in (["--clear=zero"], ["--clear=before", "--ddp"]):
            with tempfile.TemporaryDirectory() as folder:
                hooked, events = runs.record_script(folder, SCRIPT, *flags, forked=True)
                plain, none = runs.record_script(folder, "-c", PLAIN % SCRIPT, *flags)
            self.assertEqual((len(events), none), (2, {}))
            digests = [sorted(re.findall("digest of.*", d.stdout)) for d in (hooked, plain)]
            self.assertEqual(len(digests[0]), 2, hooked.stderr)
            self.assertEqual(*digests)


# Runs a script in a Python without hooks.
PLAIN = """
import os, sys
del os.environ["LOCKSTEP_RECORD"]
os.execv(sys.executable, [sys.executable, %r, *sys.argv[1:]])
"""

if __name__ == "__main__":
    unittest.main()
