"""Tests of the hooks on scripts with a GradScaler, which works on the CPU since PyTorch 2.3."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

OWN = "uses the gradients of its own backward passes (%d updates)"


class ScalersTest(unittest.TestCase):
    def verdict(self, *flags):
        """Returns the exit status, the verdict in words, and the events of rank 0."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            record = os.path.join(folder, "record")
            done, events = runs.record_script(record, script, *flags, flags=["--fail_fast"])
        said = done.stdout + done.stderr
        for of_rank in events.values():
            self.assertEqual(runs.of_kind(of_rank, "error"), [], said)
        return done.returncode, " ".join(said.split()), events[0]

    def expect_right(self, *flags, skips=0):
        """Expects eight windows, of which the first are skipped."""
        status, said, events = self.verdict(*flags)
        self.assertEqual(status, 0, said)
        self.assertIn(OWN % (8 - skips), said)
        steps = runs.of_kind(events, "step")
        self.assertEqual([step["update"] for step in steps], list(range(8 - skips)))
        self.assertEqual([e["update"] for e in runs.of_kind(events, "skip")], [0] * skips)
        return events, steps

    def test_scales_are_taken_back(self):
        for flags in ([], ["--fused"]):
            with self.subTest(flags=flags):
                events, steps = self.expect_right(*flags)
                for event in runs.of_kind(events, "backward"):
                    self.assertEqual((event["scaler"], event["scale"]), (2.0**16, 1.0))
                    self.assertLess(event["loss"][0], 100)
                for step in steps:
                    self.assertLess(step["gradients"][0][2], 100)
                    self.assertLess(abs(step["local"][0][1]), 100)

    def test_updates_that_the_scaler_skips(self):
        for flags in (["--large", "--clip"], ["--large", "--fused", "--infinite"]):
            with self.subTest(flags=flags):
                _, steps = self.expect_right(*flags, skips=2)
                self.assertEqual([count for count, *_ in steps[0]["local"]], [1] * 4)

    def test_a_loss_that_stays_wrong(self):
        for flag in ("--nan", "--always_infinite"):
            with self.subTest(flag=flag):
                status, said, _ = self.verdict(flag)
                self.assertEqual(status, 1, said)
                self.assertIn("[not_finite, certain]", said)

    def test_gradients_that_are_not_reduced(self):
        status, said, _ = self.verdict("--alone")
        self.assertEqual(status, 1, said)
        self.assertIn("[not_reduced, certain]", said)


# A scale of 2^120 makes large gradients infinite, and with --infinite the loss too, until the scaler
# has divided it by 2^12 in the first two updates. --large makes gradients large, and no loss.
SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
for name in ("fused", "clip", "large", "infinite", "nan", "always_infinite", "alone"):
    parser.add_argument("--" + name, action="store_true")
flags = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs, targets = (torch.randn(64, n, generator=generator) for n in (6, 2))
loader = DataLoader(TensorDataset(inputs, targets), 4, sampler=DistributedSampler(inputs))
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
if not flags.alone:
    model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=flags.fused)
scaler = torch.amp.GradScaler(
    "cpu", init_scale=2.0**120 if flags.large else 2.0**16, backoff_factor=2.0**-6
)
for epoch in range(8 if flags.always_infinite else 1):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        if flags.large:
            loss = loss.detach() + 2.0**17 * (loss - loss.detach())
        if flags.infinite and scaler.get_scale() > 2.0**110:
            loss = loss + 2.0**20
        if flags.nan:
            loss = loss * float("nan")
        if flags.always_infinite:
            loss = loss + float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if flags.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 100)
        scaler.step(optimizer)
        scaler.update()
dist.destroy_process_group()
"""

if __name__ == "__main__":
    unittest.main()
