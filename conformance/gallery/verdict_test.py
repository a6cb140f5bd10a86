#!/usr/bin/python3
"""Tests that the wheel rejects broken scripts for their cause, and accepts the right ones.

The command and the ranks are forks of one process with PyTorch, or with LOCKSTEP_EXHAUSTIVE=1 new
processes. Another Python tests another PyTorch.
"""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
WHEEL = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [HERE, os.path.join(WHEEL, "testing")]

import forks
import junit_recorder

EXHAUSTIVE = "LOCKSTEP_EXHAUSTIVE" in os.environ
DEADLINE_SECONDS = 240
CANNOT_RUN = 77  # The exit status of a script that needs a newer PyTorch or a missing package.

# By broken script: the cause that the verdict names, the first update that is wrong, and a part of
# the line of the script that the verdict points to.
VERDICTS = {
    "accelerate_accumulation": (
        "divided_by_micro_batches_again",
        0,
        "accelerator.backward(loss)",
    ),
    "accuracy_of_means": ("metric_unweighted", 8, "dist.all_reduce(accuracy)"),
    "batch_norm_buffers": ("buffers_differ", 6, "model.eval()"),
    "clip_before_reduction": ("clipped_before_reduction", 0, "clip_grad_norm_("),
    "first_weights": ("first_weights_differ", 0, "optimizer = torch.optim.SGD("),
    "fsdp2_clip": ("scaled_by_part", 0, "optimizer.step()"),
    "fsdp2_optimizer": ("optimizer_misses_parameters", 0, "optimizer = torch.optim.SGD("),
    "fsdp2_root": ("partly_not_reduced", 0, "optimizer = torch.optim.SGD("),
    "half_sum": ("reduced_in_narrow_type", 0, "dist.all_reduce(self.buffer)"),
    "last_window": ("short_window_scaled", 2, "loss.backward()"),
    "micro_batch_updates": ("update_per_micro_batch", 1, "optimizer.step()"),
    "module_forward": ("ddp_bypassed", 0, "loss.backward()"),
    "optimizer_before_head": ("optimizer_misses_parameters", 0, "optimizer = torch.optim.SGD("),
    "resume_momentum": ("optimizer_state_differs", 0, "optimizer.step()"),
    "resume_order": ("resume_repeats_epochs", 0, "self.sampler.set_epoch(epoch)"),
    "same_batches": ("sampler_missing", 0, "for x, y in loader:"),
    "sampler_seeds": ("ranks_shuffle_apart", 0, "for noisy, clean in loader:"),
    "scheduler_steps": ("schedule_steps_by_rank", 1, "scheduler.step()"),
    "set_epoch": ("same_order_every_epoch", 8, "for texts, labels in loader:"),
    "token_mean": ("divided_by_ranks_again", 0, "loss.backward()"),
}
# Scripts whose first command writes the checkpoint that the second starts from. The second is
# judged.
RESUMED = {"resume_momentum", "resume_order"}


def scripts(folder):
    paths = glob.glob(os.path.join(HERE, folder, "*.py"))
    return sorted(os.path.splitext(os.path.basename(path))[0] for path in paths)


def judge(script, folder, *flags, fail_fast=False):
    """Judges two ranks of a script; returns the finished command and its verdict."""
    ours = ["--fail_fast"] if fail_fast else []
    output = tempfile.mkdtemp(dir=folder)
    command = ["run", "--nproc=2", "--output_dir=" + output, *ours, "--"]
    command += [sys.executable, os.path.join(HERE, script), *flags]
    variables = {"PYTHONPATH": WHEEL, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    options = {"env": {**os.environ, **variables}, "cwd": folder, "timeout": DEADLINE_SECONDS}
    if EXHAUSTIVE:
        started = [sys.executable, "-m", "lockstep", *command]
        done = subprocess.run(started, capture_output=True, text=True, check=False, **options)
    else:
        done = forks.server.run(command, **options)
    try:
        with open(os.path.join(output, "verdict.json"), encoding="utf-8") as file:
            return done, json.load(file)
    except FileNotFoundError:
        return done, None


def line_text(place):
    """Returns the text of a line, from "path:number"."""
    path, number = place.rsplit(":", 1)
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[int(number) - 1].strip()


HAS_TORCH = importlib.util.find_spec("torch") is not None


@unittest.skipUnless(HAS_TORCH, "no PyTorch: apt-get install python3-torch")
class VerdictTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def verdict(self, folder, name, fail_fast=False):
        """Returns the verdict on a script, and what a failure of the test prints."""
        script, flags = f"{folder}/{name}.py", []
        if name in RESUMED:
            flags.append(f"--checkpoint={self.folder}/{folder}.{name}")
            done, verdict = judge(script, self.folder, *flags, "--epochs=1")
            self.assertEqual(verdict["outcome"], "right", done.stdout)
        done, verdict = judge(script, self.folder, *flags, fail_fast=fail_fast)
        said = done.stdout + done.stderr
        # With --fail_fast the run may end before the command's own status is known.
        if done.returncode == CANNOT_RUN or f"ended with status {CANNOT_RUN}\n" in done.stderr:
            why = [line for line in done.stderr.splitlines() if " needs " in line]
            self.skipTest(why[0])
        self.assertIsNotNone(verdict, said)
        self.assertEqual(done.returncode, {"right": 0, "wrong": 1}[verdict["outcome"]], said)
        self.assertNotIn("Traceback", said)
        return verdict, said

    def expect_right(self, folder, name):
        with self.subTest(script=f"{folder}/{name}"):
            verdict, said = self.verdict(folder, name, fail_fast=True)
            self.assertEqual((verdict["outcome"], verdict["findings"]), ("right", []), said)

    def test_broken_scripts_get_their_cause(self):
        for name, (cause, update, line) in VERDICTS.items():
            with self.subTest(script=name):
                verdict, said = self.verdict("broken", name)
                self.assertEqual([f["cause"] for f in verdict["findings"]], [cause], said)
                finding = verdict["findings"][0]
                self.assertEqual(finding["update"], update, said)
                self.assertIn(line, line_text(finding["line"]))

    def test_mended_twins_raise_no_alarm(self):
        for name in scripts("mended"):
            self.expect_right("mended", name)

    def test_right_scripts_raise_no_alarm(self):
        for name in scripts("right"):
            self.expect_right("right", name)


if __name__ == "__main__":
    junit_recorder.main()
