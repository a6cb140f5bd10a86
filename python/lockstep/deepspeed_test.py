"""Tests of the hooks on scripts of DeepSpeed, on the CPU with gloo."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs


# 47 numbers are made flat: rank 0 has 24 of them, and rank 1 has 23.
PARTS = [
    [[0, 24], [0, 0], [0, 0], [0, 0]],
    [[24, 6], [0, 5], [0, 10], [0, 2]],
]
PARTS_OF_STAGE_3 = [
    [[0, 15], [0, 3], [0, 5], [0, 1]],
    [[15, 15], [3, 2], [5, 5], [1, 1]],
]


class DeepSpeedTest(unittest.TestCase):
    def verdict(self, *flags, reference=False):
        """Returns the exit status, the verdict in words, and each rank's events."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            ours = ["--reference=one_rank"] if reference else []
            done, events = runs.record_script(
                os.path.join(folder, "record"), script, *flags, flags=ours, DS_ACCELERATOR="cpu"
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
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                compares = stage > 1
                status, said, events = self.verdict("--stage=%d" % stage, reference=compares)
                self.assertEqual(status, 0, said)
                self.assertIn("(each rank holds its own part of them)", said)
                self.assertIn("uses the gradients of its own backward passes (8 updates)", said)
                # The script draws random numbers before its second epoch, of four updates.
                words = "the ranks compute what one rank computes (4 updates)"
                self.assertEqual(words in said, compares, said)
                self.expect_updates(events)
                self.expect_parts(events, PARTS_OF_STAGE_3 if stage == 3 else PARTS)

    def expect_parts(self, events, parts):
        described = [runs.of_kind(events[rank], "optimizer")[0] for rank in (0, 1)]
        names = [name for name, *_ in described[0]["parameters"]]
        self.assertEqual(names, ["0.weight", "0.bias", "2.weight", "2.bias"])
        shapes = [shape for _, shape, _ in described[0]["parameters"]]
        self.assertEqual(shapes, [[5, 6], [5], [2, 5], [2]])
        self.assertEqual([event["parts"] for event in described], parts)
        for step in runs.of_kind(events[1], "step"):
            self.assertEqual([count for count, *_ in step["local"]], [2] * 4)
            self.assertNotIn(None, step["gradients"])

    def test_a_loss_divided_again(self):
        flags = "--stage=3", "--divide", "--clip=100"
        status, said, _ = self.verdict(*flags, reference=True)
        self.assertEqual(status, 1, said)
        self.assertIn("[divided_by_ranks_again, certain]", said)

    def test_a_learning_rate_that_depends_on_the_rank(self):
        for stage in (0, 3):
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
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--clip", type=float, default=1.0)
for name in ("--rate_by_rank", "--divide"):
    parser.add_argument(name, action="store_true")
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
        "train_micro_batch_size_per_gpu": flags.batch_size,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": flags.clip,
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
        if flags.divide:
            loss = loss / torch.distributed.get_world_size()
        engine.backward(loss)
        engine.step()
"""

if __name__ == "__main__":
    unittest.main()
