"""Tests of the hooks on FSDP2 (fully_shard), which needs PyTorch 2.6 or newer."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs


class FullyShardTest(unittest.TestCase):
    def verdict(self, *flags, reference=False):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "fsdp2.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            ours = ["--reference=one_rank"] if reference else []
            done, events = runs.record_script(
                os.path.join(folder, "record"), script, *flags, flags=ours
            )
        said = done.stdout + done.stderr
        for of_rank in events.values():
            self.assertEqual(runs.of_kind(of_rank, "error"), [], said)
        return done.returncode, said, events

    def test_a_right_script_computes_what_one_rank_computes(self):
        status, said, events = self.verdict(reference=True)
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks compute what one rank computes (4 updates)", said)
        self.assertIn("uses the gradients of its own backward passes (4 updates)", said)
        parts = [runs.of_kind(events[rank], "optimizer")[0]["parts"] for rank in (0, 1)]
        # Five rows: three are on rank 0, two on rank 1.
        self.assertEqual(parts[0], [[0, 21], [0, 3], [0, 10], [0, 1]])
        self.assertEqual(parts[1], [[21, 14], [3, 2], [10, 5], [1, 0]])
        for step in runs.of_kind(events[0], "step"):
            self.assertEqual([count for count, *_ in step["local"]], [2] * 4)

    def test_a_gradient_divided_again(self):
        status, said, _ = self.verdict("--divide", reference=True)
        self.assertEqual(status, 1, said)
        self.assertIn("[divided_by_ranks_again, certain]", said)

    def test_replicas_are_compared(self):
        status, said, _ = self.verdict("--replicate")
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks have the same parameters after each update (4 updates)", said)
        status, said, _ = self.verdict("--replicate", "--noise")
        self.assertEqual(status, 1, said)
        self.assertIn("the ranks' parameters differ [unknown]", said)


# Two micro-batches an update; the first one's gradients stay on the rank.
SCRIPT = """
import argparse
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
for name in ("--divide", "--replicate", "--noise"):
    parser.add_argument(name, action="store_true")
flags = parser.parse_args()
dist.init_process_group("gloo")
ranks = dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
model[2].bias = torch.nn.Parameter(torch.zeros(1))
data = TensorDataset(torch.randn(64, 7), torch.randn(64, 3))
shape, names = ((ranks, 1), ("r", "s")) if flags.replicate else ((ranks,), ("s",))
fully_shard(model, mesh=dist.init_device_mesh("cpu", shape, mesh_dim_names=names))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, flags.batch_size, sampler=DistributedSampler(data))
for i, (x, y) in enumerate(loader):
    last = i % 2 == 1
    model.set_requires_gradient_sync(last)
    loss = torch.nn.functional.mse_loss(model(x), y) / 2
    (loss / ranks if flags.divide else loss).backward()
    if last:
        if flags.noise:
            for p in model.parameters():
                p.grad.to_local().add_(0.01 * dist.get_rank())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""

if __name__ == "__main__":
    unittest.main()
