"""Tests of the hooks on scripts of DeepSpeed, on the CPU with gloo."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs


class DeepSpeedTest(unittest.TestCase):
    def verdict(self, *flags):
        """Returns the exit status, the verdict in words, and each rank's events."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            done, events = runs.record_script(
                os.path.join(folder, "record"), script, *flags, DS_ACCELERATOR="cpu"
            )
        said = done.stdout + done.stderr
        for of_rank in events.values():
            self.assertEqual(runs.of_kind(of_rank, "error"), [], said)
        return done.returncode, " ".join(said.split()), events

    def expect_updates(self, events):
        """Each call of engine.step() that ends a window of two micro-batches is an update."""
        steps = runs.of_kind(events[0], "step")
        self.assertEqual([step["update"] for step in steps], list(range(8)))
        number = int(steps[0]["line"].rpartition(":")[2])
        self.assertEqual(SCRIPT.splitlines()[number - 1].strip(), "engine.step()")

    def test_a_right_script_without_zero(self):
        status, said, events = self.verdict("--stage=0")
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks have the same parameters after each update (8 updates)", said)
        self.assertIn("uses the gradients of its own backward passes (8 updates)", said)
        self.expect_updates(events)

    def test_a_right_script_with_zero(self):
        status, said, events = self.verdict("--stage=1")
        self.assertEqual(status, 0, said)
        self.assertIn("(the parameters are DeepSpeed's own)", said)
        self.assertIn("no sample is trained on by two ranks in one epoch (128 samples)", said)
        self.expect_updates(events)

    def test_a_learning_rate_that_depends_on_the_rank(self):
        for stage in (0, 1):
            with self.subTest(stage=stage):
                status, said, _ = self.verdict("--stage=%d" % stage, "--rate_by_rank")
                self.assertEqual(status, 1, said)
                self.assertIn("[learning_rate_differs, certain]", said)


# DeepSpeed would compile its operations for shared memory, which takes a minute.
SCRIPT = """
import argparse
import torch
import deepspeed
from torch.utils.data import TensorDataset

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=0)
parser.add_argument("--rate_by_rank", action="store_true")
flags = parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
data = TensorDataset(torch.randn(64, 6), torch.randn(64, 2))
engine, optimizer, loader, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    training_data=data,
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": flags.stage},
    },
)
if flags.rate_by_rank:
    optimizer.param_groups[0]["lr"] *= 1 + torch.distributed.get_rank()
for epoch in range(2):
    loader.data_sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
"""

if __name__ == "__main__":
    unittest.main()
