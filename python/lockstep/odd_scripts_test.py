"""Tests that scripts of every kind get a verdict, and never a traceback of ours."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs


class OddScriptsTest(unittest.TestCase):
    def verdict(self, kind, *flags, nproc=2):
        """nproc: 0 for a script that starts its ranks by itself, as new processes."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(PYTHON, "testing", "odd.py")
            done, _ = runs.record_script(
                folder, script, kind, flags=flags, nproc=nproc, forked=nproc > 0
            )
            with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
                found = json.load(file)
        said = done.stdout + done.stderr
        self.assertEqual(found["errors_of_lockstep"], [], said)
        self.assertNotIn("/lockstep/launch.py", said)
        return done.returncode, found, said

    def expect(self, kind, cause, *flags, ranks=(0, 1), nproc=2):
        status, found, said = self.verdict(kind, *flags, nproc=nproc)
        self.assertEqual((status, found["outcome"]), (1, "wrong"), said)
        self.assertEqual([f["cause"] for f in found["findings"]], [cause], said)
        if ranks:
            self.assertEqual(found["findings"][0]["ranks"], list(ranks), said)
        return found["findings"][0]

    def test_hang(self):
        finding = self.expect("hang", "calls_differ", "--hang_seconds=2")
        self.assertRegex(finding["evidence"][0], r"rank 0: barrier \(.*odd.py:\d+\)")
        self.assertIn("rank 1: stops after 0 calls", finding["evidence"][1])

    def test_fail_fast_ends_a_run_that_went_wrong(self):
        finding = self.expect("drift", "unknown", "--fail_fast")
        self.assertEqual((finding["update"], finding["tensors"]), (4, ["bias"]))
        self.assertIn("parameters differ", finding["text"])
        self.assertIn("changes them in between", finding["evidence"][1])

    def test_exit_early(self):
        finding = self.expect("exit_early", "ends_early", ranks=())
        self.assertLessEqual(set(finding["ranks"]), {0, 1})  # Those that were gone first.
        self.assertRegex(finding["evidence"][0], r"the process of rank \d ended with status 5")

    def test_not_a_number(self):
        finding = self.expect("not_a_number", "not_finite", ranks=[0])
        self.assertEqual(finding["update"], 0)

    def test_a_captured_graph_is_left_alone(self):
        status, found, said = self.verdict("captures")
        self.assertEqual((status, found["outcome"]), (0, "right"), said)
        self.assertRegex(found["notes"][0], r"CUDA graphs are not recorded: .*odd.py:\d+\Z")

    def test_no_call(self):
        finding = self.expect("no_call", "not_reduced")
        self.assertEqual(finding["update"], 0)

    def test_two_losses(self):
        finding = self.expect("two_losses", "gradient_missing")
        self.assertEqual(finding["tensors"], ["head.weight", "head.bias"])

    def test_right_scripts(self):
        for kind in ("fork", "two_models", "loader_per_epoch"):
            with self.subTest(kind=kind):
                status, found, said = self.verdict(kind, "--fail_fast")
                self.assertEqual((status, found["outcome"]), (0, "right"), said)

    def test_an_exception_in_a_spawned_rank(self):
        finding = self.expect("spawn", "crashes", ranks=[1], nproc=0)
        self.assertEqual(finding["evidence"], ["ValueError: planted failure"])
        self.assertRegex(finding["line"], r"odd.py:\d+\Z")

    def test_an_optimizer_of_the_scripts_own_class(self):
        status, found, said = self.verdict("own_optimizer")
        self.assertEqual((status, found["outcome"]), (0, "right"), said)
        self.assertIn("the ranks have the same parameters after each update (6 updates)", said)

    def test_no_optimizer(self):
        status, found, said = self.verdict("no_optimizer")
        self.assertEqual((status, found["outcome"]), (0, "right"), said)
        self.assertIn("the ranks have the same parameters after each update (6 updates)", said)


if __name__ == "__main__":
    unittest.main()
