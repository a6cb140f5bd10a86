"""Tests of the hooks on scripts with a GradScaler, which works on the CPU since PyTorch 2.3."""

import os
import sys
import tempfile
import types
import unittest

import torch

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

from lockstep.hooks import scalers

OWN = "uses the gradients of its own backward passes (%d updates)"


class ScalersTest(unittest.TestCase):
    def verdict(self, *flags, options=()):
        """Returns the exit status, the verdict in words, and the events of rank 0."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            record = os.path.join(folder, "record")
            options = ["--fail_fast", *options]
            done, events = runs.record_script(record, script, *flags, flags=options)
            self.kept = sorted(name for name in os.listdir(record) if name.endswith(".npz"))
        said = done.stdout + done.stderr
        for of_rank in events.values():
            self.assertEqual(runs.of_kind(of_rank, "error"), [], said)
        return done.returncode, " ".join(said.split()), events[0]

    def expect_right(self, *flags, skips=0, options=()):
        """Expects eight windows, of which the first are skipped."""
        status, said, events = self.verdict(*flags, options=options)
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
                self.assertEqual(steps[0]["groups"][0]["lr"], 0.01)
                self.assertEqual(["drew" in step for step in steps], [False] * 6)

    def test_draws_before_a_skipped_update_belong_to_the_next(self):
        for draw, drew in (([], False), (["--draw=1"], True)):
            _, steps = self.expect_right("--large", "--fused", *draw, skips=2)
            self.assertEqual(["drew" in step for step in steps], [drew] + [False] * 5)

    def test_a_skipped_update_is_not_kept(self):
        """The scaler skips the first two updates, and the script ends after as many windows."""
        flags = ["--large", "--fused"]
        for windows, count in ((2, 0), (3, 2)):
            self.verdict(*flags, "--windows=%d" % windows, options=["--keep=0"])
            self.assertEqual(len(self.kept), count, self.kept)

    def test_reads_of_the_device(self):
        """The hooks make the host wait neither in scale() nor before a fused update."""
        for flags, step in (
            (["--fused"], ["update", "read"]),
            (["--fused", "--large"], ["update", "read"]),
            ([], ["read"] * 5),  # The scaler's own, and Adam's of each parameter's steps.
        ):
            with self.subTest(flags=flags):
                options = ["--first=1", "--every=99"]
                _, said, _ = self.verdict(*flags, "--count", "--windows=6", options=options)
                self.assertIn("in scale(): %s" % ([[]] * 6), said)
                self.assertIn("in the last steps: %s" % ([step] * 3), said)

    def test_a_scale_is_that_of_its_loss(self):
        """A script may change the scale between scale() and the backward pass."""
        scale = torch.tensor(8.0)
        scaler = types.SimpleNamespace(is_enabled=lambda: True, _get_scale_async=lambda: scale)
        hooks = scalers.Scalers(None)
        hooks.scaled(None, None, (scaler,), {})
        scale.fill_(4.0)
        self.assertEqual([hooks.take(), hooks.take()], [8.0, None])

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
for name in ("fused", "clip", "large", "infinite", "nan", "always_infinite", "alone", "count"):
    parser.add_argument("--" + name, action="store_true")
parser.add_argument("--windows", type=int, default=8)
parser.add_argument("--draw", type=int, help="The window that draws a random number.")
flags = parser.parse_args()


class Count(TorchDispatchMode):
    # Notes each read of a number from a tensor, and each fused update.
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for name, what in (("aten._local_scalar_dense", "read"), ("aten._fused_adam_", "update")):
            if str(function).startswith(name):
                self.seen[-1].append(what)
        return function(*args, **(kwargs or {}))

    def call(self, function, *args):
        self.seen.append([])
        with self:
            return function(*args)


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
scales, steps = Count(), Count()
for epoch in range(8 if flags.always_infinite else 1):
    for window, (x, y) in zip(range(flags.windows), loader):
        if window == flags.draw:
            torch.rand(1)
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
        scaled = scales.call(scaler.scale, loss) if flags.count else scaler.scale(loss)
        scaled.backward()
        if flags.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 100)
        if flags.count:
            steps.call(scaler.step, optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
if flags.count and dist.get_rank() == 0:
    print("in scale(): %s, in the last steps: %s" % (scales.seen, steps.seen[-3:]))
dist.destroy_process_group()
"""

if __name__ == "__main__":
    unittest.main()
