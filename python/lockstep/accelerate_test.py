"""Tests of the hooks on scripts of Hugging Face Accelerate."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

NOTE = "2 of 8 updates have fewer than 2 backward passes, and Accelerate divides each loss by 2"


# Without a GPU, this is how Accelerate 1.15 starts several processes.
LAUNCH = "-m accelerate.commands.launch --multi_gpu --num_processes=2 --main_process_port=0".split()


class AccelerateTest(unittest.TestCase):
    def verdict(self, *flags, reference=False, launched=False):
        """Returns the exit status, the verdict in words, and each rank's events.

        launched: whether `accelerate launch` starts the ranks, and not --nproc.
        """
        with tempfile.TemporaryDirectory() as folder:
            script, record = os.path.join(folder, "script.py"), os.path.join(folder, "record")
            with open(script, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            ours = ["--reference=one_rank"] if reference else []
            if launched:
                command = [sys.executable, *LAUNCH, script, *flags]
                done = runs.lockstep("run", "--output_dir=" + record, *ours, "--", *command)
                events = runs.events_of(record)
            else:
                done, events = runs.record_script(record, script, *flags, flags=ours)
        said = done.stdout + done.stderr
        for of_rank in events.values():
            self.assertEqual(runs.of_kind(of_rank, "error"), [], said)
        return done.returncode, " ".join(said.split()), events

    def test_a_right_script(self):
        """Its loader pads the last batches, and an epoch's last update has one micro-batch."""
        status, said, events = self.verdict()
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks have the same parameters after each update (8 updates)", said)
        self.assertIn("uses the gradients of its own backward passes (8 updates)", said)
        self.assertIn("a schedule does not step once per rank (7 updates)", said)
        self.assertIn("epoch 0 pads the ranks' shares to one length with 2 repeated samples", said)
        self.assertIn(NOTE, said)
        self.expect_names(events[1])

    def expect_names(self, events):
        (optimizer,) = runs.of_kind(events, "optimizer")
        self.assertEqual(optimizer["type"], "SGD")
        names = [name for name, *_ in optimizer["parameters"]]
        self.assertEqual(names, ["0.weight", "0.bias", "2.weight", "2.bias"])
        sampler = runs.of_kind(events, "pass")[0]["sampler"]
        self.assertEqual(sampler["type"], "BatchSamplerShard")
        self.assertEqual((sampler["num_replicas"], sampler["rank"]), (2, 1))
        lines = {"step": "optimizer.step()", "backward": "accelerator.backward(loss)"}
        for kind, line in lines.items():
            number = int(runs.of_kind(events, kind)[0]["line"].rpartition(":")[2])
            self.assertEqual(SCRIPT.splitlines()[number - 1].strip(), line)
        self.assertEqual({e["steps"] for e in runs.of_kind(events, "schedule")}, {2})
        self.assertEqual({e["ddp"][0] for e in runs.of_kind(events, "backward")}, {0, 1})

    def test_computes_what_one_rank_computes(self):
        status, said, _ = self.verdict("--samples=64", "--no_schedule", reference=True)
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks compute what one rank computes (8 updates)", said)

    def test_ranks_that_accelerate_launch_starts(self):
        flags = "--samples=64", "--no_schedule"
        status, said, events = self.verdict(*flags, reference=True, launched=True)
        self.assertEqual(status, 0, said)
        self.assertEqual(sorted(events), [0, 1], said)
        self.assertIn("the ranks compute what one rank computes (8 updates)", said)

    def test_a_schedule_that_accelerate_steps_once_per_rank_is_compared_until_it_differs(self):
        status, said, _ = self.verdict("--samples=64", reference=True)
        self.assertEqual(status, 0, said)
        self.assertIn("the ranks compute what one rank computes (1 updates)", said)
        self.assertIn("Accelerate steps the schedule once per rank", said)

    def test_split_and_dispatched_batches(self):
        for flag in ("--split_batches", "--dispatch_batches"):
            with self.subTest(flag=flag):
                status, said, _ = self.verdict(flag)
                self.assertEqual(status, 0, said)

    def test_a_script_that_steps_its_schedule_once_per_rank(self):
        """By itself, and through Accelerate's wrapper, which steps as often already."""
        for flag in ("--own_schedule", "--loop"):
            with self.subTest(flag=flag):
                status, said, _ = self.verdict(flag)
                self.assertEqual(status, 1, said)
                self.assertIn("[schedule_steps_by_rank, likely]", said)

    def test_a_loss_that_is_divided_twice(self):
        status, said, _ = self.verdict("--divide")
        self.assertEqual(status, 1, said)
        self.assertIn("[divided_by_micro_batches_again, likely]", said)

    def test_a_sum_divided_by_its_count_is_no_second_division(self):
        status, said, _ = self.verdict("--divide", "--sum")
        self.assertEqual(status, 0, said)


SCRIPT = """
import argparse
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--samples", type=int, default=50)
for name in ("split_batches", "dispatch_batches", "own_schedule", "loop", "divide", "sum"):
    parser.add_argument("--" + name, action="store_true")
parser.add_argument("--no_schedule", action="store_true")
flags = parser.parse_args()
set_seed(0)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(
        split_batches=flags.split_batches,
        dispatch_batches=flags.dispatch_batches or None,
        use_seedable_sampler=True,
    ),
)
data = TensorDataset(torch.randn(flags.samples, 6), torch.randn(flags.samples, 2))
batch_size = flags.batch_size * (2 if flags.split_batches else 1)
loader = DataLoader(data, batch_size, shuffle=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(13)), batch_size)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
if not flags.own_schedule:
    scheduler = accelerator.prepare(scheduler)
repeated = accelerator.num_processes if flags.own_schedule or flags.loop else 1
repeated *= not flags.no_schedule
reduction = "sum" if flags.sum else "mean"
for epoch in range(2):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y, reduction=reduction)
            if flags.divide:
                loss = loss / 2
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for _ in range(repeated):
                if accelerator.sync_gradients or not flags.own_schedule:
                    scheduler.step()
            optimizer.zero_grad()
    model.eval()
    errors = 0.0
    for x, y in test_loader:
        with torch.no_grad():
            guesses, truths = accelerator.gather_for_metrics((model(x), y))
        errors += (guesses - truths).square().sum().item()
    accelerator.print("epoch", epoch, errors)
accelerator.end_training()
"""

if __name__ == "__main__":
    unittest.main()
