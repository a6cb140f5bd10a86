"""Tests of the reference's command; with PyTorch, of whole comparisons with one rank."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
import runs

from lockstep import evidence, launch, reference

SCRIPT = os.path.join(PYTHON, "testing", "compared.py")


class CommandTest(unittest.TestCase):
    def at_one_rank(self, command, nproc=0, flag=""):
        changed, ranks = reference.at_one_rank(command.split(), nproc, 2, flag)
        return " ".join(changed), ranks

    def test_launchers(self):
        for command, changed in (
            ("torchrun --nproc_per_node=2 t.py", "torchrun --nproc_per_node=1 t.py"),
            ("torchrun --nproc-per-node 2 t.py -n 3", "torchrun --nproc-per-node 1 t.py -n 3"),
            (
                "torchrun --nnodes=1 --nproc_per_node=2 t.py",
                "torchrun --nnodes=1 --nproc_per_node=1 t.py",
            ),
            (
                "python -m torch.distributed.run --nproc_per_node=2 t.py",
                "python -m torch.distributed.run --nproc_per_node=1 t.py",
            ),
            ("mpirun -n 2 python t.py -n 2", "mpirun -n 1 python t.py -n 2"),
            (
                "accelerate launch --num_processes=2 --mixed_precision no t.py --num_processes 4",
                "accelerate launch --num_processes=1 --mixed_precision no t.py --num_processes 4",
            ),
            (
                "accelerate launch --multi_gpu --num-processes 2 t.py",
                "accelerate launch --num-processes 1 t.py",
            ),
            (
                "/usr/bin/accelerate-launch --cpu t.py --num_processes 4",
                "/usr/bin/accelerate-launch --num_processes 1 --cpu t.py --num_processes 4",
            ),
            (
                "python -m accelerate.commands.launch --num_machines 1 -m trains.all --epochs 2",
                "python -m accelerate.commands.launch --num_processes 1 --num_machines 1"
                " -m trains.all --epochs 2",
            ),
            (
                "python3 /usr/bin/accelerate launch --num_processes 2 t.py",
                "python3 /usr/bin/accelerate launch --num_processes 1 t.py",
            ),
            ("/usr/bin/mpirun -np 2 python t.py", "/usr/bin/mpirun -np 1 python t.py"),
        ):
            self.assertEqual(self.at_one_rank(command), (changed, 0))
        self.assertEqual(self.at_one_rank("python t.py", nproc=2), ("python t.py", 1))
        self.assertEqual(
            self.at_one_rank("python t.py --gpus 2", flag="--gpus"), ("python t.py --gpus 1", 0)
        )

    def test_commands_that_name_no_ranks(self):
        for command, why in (
            ("python t.py", "--world_size_flag"),
            ("torchrun --nnodes=2 --nproc_per_node=2 t.py", "several hosts"),
            ("accelerate launch --num_machines=2 --num_processes=4 t.py", "several hosts"),
            ("accelerate config t.py", "--world_size_flag"),
        ):
            with self.assertRaisesRegex(reference.Impossible, why):
                self.at_one_rank(command)


class FlagsTest(unittest.TestCase):
    def test_what_is_no_reference(self):
        with tempfile.TemporaryDirectory() as folder:
            for flags, why in (
                (["--reference=%s/none" % folder], "No such file or directory, and it is neither"),
                (["--reference=" + folder], "no record of a rank, and is neither one_rank nor cpu"),
                (["--reference_env=PLAIN"], "--reference_env=PLAIN is not NAME=VALUE"),
                (["--reference=one_rank", "--reference_command=x"], "exclude each other"),
                (self.inside(folder), "is in --output_dir, which is written anew"),
            ):
                done = runs.lockstep("run", *flags, "--", "true", forked=True)
                self.assertEqual((done.returncode, done.stdout), (2, ""), flags)
                self.assertIn(why, done.stderr)
            self.assertTrue(os.path.exists(folder + "/old/rank0.jsonl"))

    def inside(self, folder):
        os.mkdir(folder + "/old")
        with open(folder + "/old/rank0.jsonl", "w", encoding="utf-8"):
            pass
        return ["--output_dir=" + folder, "--reference=%s/old" % folder]


class BatchTest(unittest.TestCase):
    def run_of(self, arguments, batch_size=4):
        events = records.events_of(0)
        for event in events:
            if event["event"] == "pass":
                event["batch_size"] = batch_size
        flags = [[[name], value] for name, value in arguments.items()]
        events.insert(1, {"event": "arguments", "flags": flags})
        return evidence.Run([evidence.Rank(0, events)])

    def change(self, command, arguments, flag="", **options):
        run = self.run_of(arguments, **options)
        return " ".join(reference.with_global_batch(command.split(), run, flag)[0])

    def test_is_learnt_from_the_arguments(self):
        known = {"--lr": 4, "--batch-size": 4, "--eval-batch-size": 4}
        self.assertEqual(self.change("t.py --batch-size=4", known), "t.py --batch-size=8")
        self.assertEqual(self.change("t.py --batch-size 4 --x", known), "t.py --batch-size 8 --x")
        self.assertEqual(self.change("t.py", known), "t.py --batch-size 8")
        self.assertEqual(self.change("t.py", {"--bs": 4, "--batches": 3}), "t.py --bs 8")

    def test_a_global_batch_stays(self):
        self.assertEqual(self.change("t.py", {"--batch": 8}), "t.py")

    def test_is_named_by_a_flag(self):
        self.assertEqual(self.change("t.py --b 4", {}, "--b"), "t.py --b 8")
        both = {"--batch-a": 4, "--batch-b": 4}
        self.assertEqual(self.change("t.py", both, "--batch-b"), "t.py --batch-b 8")

    def test_says_that_it_is_not_known(self):
        for arguments, flag, why in (
            ({}, "", "no argument"),
            ({"--batch-size": 5}, "", "no argument"),
            ({"--batch-a": 4, "--batch-b": 4}, "", "several arguments"),
            ({}, "--bs", "the command has no --bs"),
        ):
            with self.assertRaisesRegex(reference.Impossible, why):
                self.change("t.py", arguments, flag)


class RoundingTest(unittest.TestCase):
    """Needs PyTorch."""

    def test_a_repeat_rounds_sums_otherwise_that_no_order_of_samples_changes(self):
        """A sum of equal numbers is the same in every order, and rounds at every addition."""
        with tempfile.TemporaryDirectory() as folder:
            script = folder + "/sums.py"
            with open(script, "w", encoding="utf-8") as file:
                file.write(SUMS)
            sums = []
            for seed in (0, 1, 2):
                launch.run([sys.executable, script], folder + "/record", {"perturb": seed})
                (step,) = runs.of_kind(runs.events_of(folder + "/record")[0], "step")
                sums.append(step["gradients"][0][1])
        self.assertEqual(len(set(sums)), 3)
        self.assertAlmostEqual(max(sums), min(sums), delta=3000 * 2**-24 * 300)


# Adds 3000 numbers one by one.
SUMS = """
import torch
p = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([p], lr=1.0)
sum(0.1 * p for _ in range(3000)).backward()
optimizer.step()
"""


class ComparisonTest(unittest.TestCase):
    """Needs PyTorch."""

    def compare(self, *arguments, flags=()):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [argument.replace("FOLDER", folder) for argument in arguments]
            flags = ["--reference=one_rank", "--reference_updates=4", *flags]
            record = folder + "/run"
            done, _ = runs.record_script(record, SCRIPT, *arguments, flags=flags, forked=True)
            with open(folder + "/run/verdict.json", encoding="utf-8") as file:
                found = json.load(file)
            saved = sorted(os.listdir(folder))
        said = done.stdout + done.stderr
        self.assertEqual(found["errors_of_lockstep"], [], said)
        return done.returncode, found, saved

    def test_a_right_script(self):
        status, found, saved = self.compare("--save=FOLDER/model")
        self.assertEqual((status, found["outcome"]), (0, "right"), found)
        self.assertEqual(found["claims"][-1]["checked"], 4)
        self.assertEqual(found["notes"], ["the reference is one rank with --batch_size 8"])
        self.assertEqual(saved, ["model", "run"])

    def test_a_loss_that_is_divided_again(self):
        status, found, _ = self.compare("--again")
        self.assertEqual(status, 1)
        (finding,) = found["findings"]
        self.assertEqual((finding["cause"], finding["update"]), ("divided_by_ranks_again", 0))
        self.assertRegex(finding["line"], r"compared\.py:\d+\Z")

    def test_ranks_that_draw_their_own_numbers_are_not_compared(self):
        status, found, _ = self.compare("--noise")
        self.assertEqual((status, found["outcome"]), (0, "right"), found)
        self.assertIn("the script draws random numbers", found["claims"][-1]["why_not"])

    def test_a_reference_that_cannot_be_made(self):
        status, found, _ = self.compare(flags=["--batch_flag=--bogus"])
        self.assertEqual((status, found["outcome"]), (0, "right"))
        self.assertIn("the command has no --bogus", found["claims"][-1]["why_not"])


if __name__ == "__main__":
    unittest.main()
