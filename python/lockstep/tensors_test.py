"""Tests of the whole tensors of an update, kept and compared. Some need PyTorch."""

import json
import math
import os
import sys
import tempfile
import unittest

import numpy as np

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

from lockstep import tensors


class DifferenceTest(unittest.TestCase):
    def difference(self, one, other):
        arrays = [np.array(values, np.float32) for values in (one, other)]
        files = [{"after/w": array} for array in arrays]
        size, _, place, values = tensors.difference(files, "after/w")
        return size, place, [float(value) for value in values]

    def test_the_largest_difference(self):
        found = self.difference([[1, 2], [3, 4]], [[1, 2.5], [5, 4]])
        self.assertEqual(found, (2.0, (1, 0), [3.0, 5.0]))

    def test_nan_and_infinity(self):
        nan, inf = math.nan, math.inf
        self.assertEqual(self.difference([nan, inf, 1], [nan, inf, 1])[:2], (0.0, (0,)))
        self.assertEqual(self.difference([0, nan], [9, 1])[:2], (inf, (1,)))

    def test_what_cannot_be_compared(self):
        self.assertEqual(self.difference([1, 2], [1, 2, 3])[0], 0)
        self.assertEqual(self.difference([], [])[0], 0)
        self.assertEqual(tensors.difference([{}, {"after/w": np.ones(1)}], "after/w")[0], 0)




class KeptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.script = os.path.join(folder.name, "own.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(OWN)

    def record(self, name, *arguments, flags=()):
        folder = os.path.join(self.folder, name)
        done, events = runs.record_script(folder, self.script, *arguments, flags=flags, forked=True)
        with open(folder + "/verdict.json", encoding="utf-8") as file:
            found = json.load(file)
        self.assertEqual(found["errors_of_lockstep"], [], done.stdout + done.stderr)
        files = sorted(f for f in os.listdir(folder) if f.endswith(".npz"))
        return found, files, events

    def test_ranks_that_differ(self):
        found, files, _ = self.record("now", "own")
        self.assertEqual((found["findings"][0]["update"], files), (2, []))
        self.assertEqual(found["notes"], ["to see the tensors, repeat the run with --keep=2"])
        found, files, events = self.record("now", "own", flags=["--keep=2"])
        self.assertEqual(files, ["rank0.step2.npz", "rank1.step2.npz"])
        words = "the largest difference is in weight[1, 2], the gradient of update 2: 0 on rank 0, "
        words += "0.5 on rank 1 (rank0.step2.npz and rank1.step2.npz)"
        self.assertEqual((found["findings"][0]["evidence"][-1], found["notes"]), (words, []))
        (kept,) = runs.of_kind(events[1], "kept")
        self.assertEqual((kept["update"], kept["left_out"]), (2, 0))

    def test_a_run_that_differs_from_its_reference(self):
        reference = "--reference_command=%s %s own" % (sys.executable, self.script)
        found, _, _ = self.record("now", "both", flags=["--keep=2", reference])
        (finding,) = found["findings"]
        self.assertIn("0.5 now, 0 then (rank0.step2.npz)", finding["evidence"][-1])

    def test_tensors_beyond_the_limit_are_left_out(self):
        _, files, events = self.record("now", "own", flags=["--keep=0", "--limit_mb=0.02"])
        self.assertEqual(files, ["rank0.step0.npz", "rank1.step0.npz"])
        with np.load(self.folder + "/now/rank1.step0.npz") as file:
            self.assertEqual(sorted(file), ["after/weight", "before/weight", "gradient/weight"])
        self.assertEqual(runs.of_kind(events[1], "kept")[0]["left_out"], 3)


# A gradient of 0 becomes 0.5 in one place at update 2, on rank 1 or on both.
OWN = """
import os, sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3))
        self.large = torch.nn.Parameter(torch.ones(10000))

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(4):
    optimizer.zero_grad()
    (0 * (model.weight.sum() + model.large.sum())).backward()
    if update == 2 and (sys.argv[1] == "both" or os.environ["RANK"] == "1"):
        model.weight.grad[1, 2] = 0.5
    optimizer.step()
"""


if __name__ == "__main__":
    unittest.main()
