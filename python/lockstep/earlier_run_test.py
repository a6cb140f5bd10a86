"""Tests of whole comparisons with an earlier run. They need PyTorch."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

SCRIPT = os.path.join(PYTHON, "testing", "compared.py")
UPDATES = 12
SAME_BITS = "the same bits as the earlier run, in %d updates" % UPDATES
LAYERS = ["0.weight", "0.bias", "2.weight", "2.bias"]


class EarlierRunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.record("earlier")

    @classmethod
    def record(cls, name, *arguments, **options):
        """Records the script in a folder of this name; returns the verdict and what was said."""
        folder = os.path.join(cls.folder, name)
        done, _ = runs.record_script(folder, SCRIPT, *arguments, forked=True, **options)
        with open(os.path.join(folder, "verdict.json"), encoding="utf-8") as file:
            found = json.load(file)
        said = done.stdout + done.stderr
        assert found["errors_of_lockstep"] == [], said
        assert done.returncode == (found["outcome"] == "wrong"), said
        return found, said

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def compare(self, *arguments, earlier="earlier", flags=None):
        flags = flags or ["--reference=" + self.path(earlier)]
        flags = [*flags, "--reference_updates=3"]
        found, self.said = self.record("now", *arguments, flags=flags)
        return found

    def expect_right(self, found, note, checked=UPDATES):
        self.assertEqual((found["outcome"], found["findings"]), ("right", []), self.said)
        self.assertIn(note, found["notes"][0])
        self.assertEqual(found["claims"][-1]["checked"], checked)

    def expect(self, found, cause, update, tensors, line):
        self.assertEqual([f["cause"] for f in found["findings"]], [cause], self.said)
        (finding,) = found["findings"]
        self.assertEqual((finding["update"], finding["tensors"]), (update, tensors))
        path, _, number = finding["line"].rpartition(":")
        with open(path, encoding="utf-8") as file:
            self.assertIn(line, file.read().splitlines()[int(number) - 1])
        return finding["evidence"]

    def test_the_same_script_has_the_same_bits(self):
        self.expect_right(self.compare(), SAME_BITS)
        self.assertNotIn("twice more", self.said)
        earlier = "--reference=%s/earlier" % self.folder
        again = runs.lockstep("judge", self.folder + "/now", earlier, forked=True)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(SAME_BITS, again.stdout)

    def test_another_learning_rate(self):
        found = self.compare("--lr=0.06")
        evidence = self.expect(found, "trains_with_other_settings", 0, LAYERS, "optimizer.step()")
        self.assertEqual(evidence[0], "lr: 0.06 now, 0.05 then")
        self.assertNotIn("twice more", self.said)

    def test_another_seed(self):
        evidence = self.expect(
            self.compare("--seed=1"), "starts_from_other_weights", 0, LAYERS, "torch.optim.SGD("
        )
        self.assertIn("seeds: 1 now, 0 then", evidence)

    def test_a_script_without_a_seed_is_not_judged(self):
        self.record("unseeded", "--seed=-1")
        found = self.compare("--seed=-1", earlier="unseeded")
        self.expect_right(found, "each run of the script starts from other weights", checked=0)

    def test_a_dropped_normalisation(self):
        evidence = self.expect(
            self.compare("--raw"), "differs_from_earlier_run", 0, LAYERS, "loss.backward()"
        )
        self.assertIn("arguments that differ: --raw now, none then", evidence)

    def test_a_reference_with_a_variable_that_changes_roundings(self):
        found = self.compare(flags=["--reference_env=PLAIN=1"])
        self.expect_right(found, "rounding explains it", checked=3)

    def test_a_reference_by_another_command(self):
        command = "%s %s --lr=0.06" % (sys.executable, SCRIPT)
        found = self.compare(flags=["--reference_command=" + command])
        self.assertEqual(found["findings"][0]["evidence"][0], "lr: 0.05 now, 0.06 then")

    def devices_of(self, *names):
        """Returns the devices of the parameters in the record of rank 0 in this folder."""
        (optimizer,) = runs.of_kind(runs.events_of(self.path(*names))[0], "optimizer")
        self.assertEqual(len(optimizer["parameters"]), len(optimizer["devices"]))
        return set(optimizer["devices"])

    def test_a_gpu_with_other_roundings(self):
        found = self.compare("--gpu", flags=["--reference=cpu"])
        self.expect_right(found, "rounding explains it", checked=3)
        self.assertIn("runs the reference on the CPU", self.said)
        self.assertEqual(self.devices_of("now"), {"cuda:0"})
        self.assertEqual(self.devices_of("now", "reference", "run0"), {"cpu"})
        self.assertEqual(self.devices_of("now", "reference", "run1"), {"cuda:0"})

    def test_a_gpu_that_computes_something_else(self):
        found = self.compare("--gpu", "--gpu_fault", flags=["--reference=cpu"])
        evidence = self.expect(found, "differs_from_earlier_run", 0, LAYERS, "loss.backward()")
        self.assertIn("devices: ['cuda'] now, ['cpu'] then", evidence)

    def test_first_weights_that_each_device_draws_are_not_judged(self):
        found = self.compare("--gpu", "--gpu_seed", flags=["--reference=cpu"])
        self.expect_right(found, "each device draws its own random numbers", checked=0)

    def test_scripts_that_cannot_be_compared_with_the_cpu(self):
        for flags, why_not in (
            ([], "the run has its parameters on the CPU already"),
            (["--gpu", "--gpu_only"], "with 2 ranks: RuntimeError: no GPU is there"),
        ):
            with self.subTest(flags=flags):
                found = self.compare(*flags, flags=["--reference=cpu"])
                self.assertEqual((found["outcome"], found["findings"]), ("right", []), self.said)
                self.assertEqual(found["claims"][-1]["checked"], 0)
                self.assertIn(why_not, found["claims"][-1]["why_not"])
                self.assertEqual(os.path.exists(self.path("now", "reference")), bool(flags))


if __name__ == "__main__":
    unittest.main()
