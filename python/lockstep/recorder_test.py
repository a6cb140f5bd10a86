"""Tests of the hooks: what they record of a DDP script, and that they change nothing in it."""

import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import runs

TRAIN = os.path.join(PYTHON, "testing", "train.py")


def digests(said):
    return sorted(re.findall(r"digest of rank .*", said))


def train_source():
    with open(TRAIN, encoding="utf-8") as file:
        return file.read()


class RecorderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def record(self, *arguments, script=TRAIN, status=0, forked=True, **options):
        """Records two ranks, or options["nproc"], and expects that our hooks make no error."""
        done, events = runs.record_script(
            self.path("record"), script, *arguments, forked=forked, **options
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for kinds in events.values():
            self.assertEqual(runs.of_kind(kinds, "error"), [])
        return done.stdout, events


class UnchangedTest(RecorderTest):
    def test_no_bit_of_weights_and_random_states_changes(self):
        """The script has dropout, batch norm, accumulation with no_sync, and loading workers."""
        plain, events = self.record(
            *MUCH, script=self.path("plain.py", PLAIN % TRAIN), forked=False
        )
        self.assertEqual(events, {})
        recorded, events = self.record(*MUCH)
        self.assertEqual(sorted(events), [0, 1])
        self.assertEqual(len(digests(plain)), 2)
        self.assertEqual(digests(plain), digests(recorded))
        EventsTest().expect_samples(events[0])
        self.expect_mean_of_local_gradients(events)

    def expect_mean_of_local_gradients(self, events):
        steps = [runs.of_kind(events[rank], "step") for rank in (0, 1)]
        self.assertEqual(len(steps[0]), 6)
        for one, other in zip(*steps):
            for index, gradient in enumerate(one["gradients"]):
                local = [step["local"][index] for step in (one, other)]
                self.assertEqual([count for count, *_ in local], [2, 2])
                for position, value in ((1, gradient[1]), (2, gradient[3])):
                    mean = sum(values[position] for values in local) / 2
                    # float32 sums of at most 432 terms below 1.
                    self.assertLess(abs(mean - value), 432 * 2**-24)


MUCH = ("--accumulate=2", "--workers=2")
# Every step reduces a number. One step moves a parameter, and one reduces many numbers.
MOVES = """
            step += 1
            dist.all_reduce(torch.ones(1))
            if step == 3:
                model.module[0].weight.data.mul_(0.5)
            if step == 7:
                dist.all_reduce(torch.ones(1000))
"""
# Runs a script in a Python without hooks.
PLAIN = """
import os, sys
del os.environ["LOCKSTEP_RECORD"]
os.execv(sys.executable, [sys.executable, %r, *sys.argv[1:]])
"""


class CheckpointTest(RecorderTest):
    def test_records_the_numbers_of_epochs_that_a_loaded_file_counts(self):
        checkpoint = {"epoch": 3, "model": {"epoch": 9}, "best_epoch": 2, "epoch_loss": 0.5}
        script = self.path("load.py", LOAD % (checkpoint, self.path("checkpoint")))
        _, events = self.record(script=script, nproc=1)
        (load,) = runs.of_kind(events[0], "load")
        self.assertEqual(load["epochs"], {"epoch": 3, "best_epoch": 2})

    def test_records_by_which_number_a_loss_is_scaled_last(self):
        _, events = self.record(script=self.path("scales.py", SCALES), nproc=1)
        scales = [event["scale"] for event in runs.of_kind(events[0], "backward")]
        self.assertEqual(scales, [0.25, 0.5, 1.5, 1.0, 1.0, 2.0])


LOAD = """
import torch
parameter = torch.nn.Parameter(torch.ones(3))
checkpoint, path = %r, %r
torch.save(checkpoint, path)
torch.load(path)
torch.optim.SGD([parameter], lr=0.1).step()
"""
# A quotient of two losses has no scale. PyTorch computes 2 / x as twice the reciprocal of x.
SCALES = """
import torch
x = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([x], lr=0.1)
mean = lambda: (x * x).mean()
for loss in (mean() / 4, mean() * 0.5, 3 * (mean() / 2), mean(), mean() / x.sum(), 2 / mean()):
    loss.backward()
optimizer.step()
"""


class LifetimeTest(RecorderTest):
    def test_a_model_and_its_group_live_no_longer_than_without_hooks(self):
        """A group that outlives destroy_process_group has threads that run at the exit."""
        script = self.path("lives.py", LIVES)
        hooked, events = self.record(script=script)
        self.assertEqual(sorted(events), [0, 1])
        lived = sorted(line for line in hooked.splitlines() if line.startswith("lives"))
        self.assertEqual(lived, ["lives: model False, optimizer False"] * 2, hooked)


# The script asks before any garbage collection whether the objects that it has dropped are alive.
LIVES = """
import gc, os, weakref
import torch, torch.distributed as dist
import lockstep

gc.disable()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(lockstep.watch(model).parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
references = weakref.ref(model), weakref.ref(optimizer)
del model, optimizer
dist.destroy_process_group()
lives = tuple(reference() is not None for reference in references)
os.write(1, b"lives: model %s, optimizer %s\\n" % tuple(str(x).encode() for x in lives))
"""


class EventsTest(RecorderTest):
    def test_describes_the_run(self):
        _, events = self.record("--epochs=2")
        for rank in (0, 1):
            self.expect_run(rank, events[rank])
        first, second = (runs.of_kind(events[rank], "step") for rank in (0, 1))
        for one, other in zip(first, second):
            self.assertEqual(one["after"], other["after"])
            if one["step"] < 10:
                digests_of = [[g[0] for g in step["gradients"]] for step in (one, other)]
                self.assertEqual(*digests_of)
                self.assertNotEqual(one["local"], other["local"])
                self.assertNotEqual(one["buffers"], other["buffers"])

    def expect_run(self, rank, events):
        kinds = [event["event"] for event in events]
        self.assertEqual((kinds[0], kinds[-1]), ("process", "end"))
        self.assertEqual(runs.of_kind(events, "rank")[0]["rank"], rank)
        self.assertEqual(runs.of_kind(events, "rank")[0]["world_size"], 2)
        (optimizer,) = runs.of_kind(events, "optimizer")
        names = [name for name, _, _ in optimizer["parameters"]]
        self.assertEqual(names, ["0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias"])
        self.assertEqual(optimizer["models"][0]["batch_norms"], {"sync": [], "local": ["1"]})
        self.assertTrue(optimizer["models"][0]["ddp"])
        self.assertRegex(optimizer["line"], r"/train\.py:\d+\Z")
        self.expect_steps(events)
        self.expect_samples(events)
        (save,) = runs.of_kind(events, "save") if rank == 0 else (None,)
        if save:
            self.assertEqual(save["path"], os.devnull)

    def expect_steps(self, events):
        steps = runs.of_kind(events, "step")
        self.assertEqual(len(steps), 12)  # Two epochs of 24 samples in batches of 4.
        self.assertEqual([s["groups"][0]["lr"] for s in steps if "groups" in s], [0.1, 0.05])
        self.assertEqual(["before" in step for step in steps], [True] + [False] * 11)
        for step in steps[1:10]:
            self.assertNotEqual(step["after"], steps[step["update"] - 1]["after"])
            self.assertEqual([count for count, *_ in step["local"]], [1] * 6)
        self.assertNotIn("gradients", steps[11])
        losses = [event["loss"] for event in runs.of_kind(events, "backward")]
        self.assertEqual([len(loss) for loss in losses], [1] * 12)
        self.assertEqual(runs.of_kind(events, "backward")[0]["ddp"], [0, 1])
        (call,) = runs.of_kind(events, "call")
        self.assertEqual((call["kind"], call["sizes"], call["op"]), ("all_reduce", [[1]], "max"))

    def test_digests_parameters_before_a_step_only_if_something_may_have_moved_them(self):
        """A change through .data shows in no version; a call may bring what is copied later."""
        moves = train_source().replace("            step += 1", MOVES)
        _, events = self.record(script=self.path("moves.py", moves))
        steps = runs.of_kind(events[0], "step")
        self.assertEqual([s["step"] for s in steps if "before" in s], [0, 3, 7])
        first = {name: i for i, (name, *_) in enumerate(self.parameters_of(events[0]))}
        changed = [b != a for b, a in zip(steps[3]["before"], steps[2]["after"])]
        self.assertEqual([i for i, c in enumerate(changed) if c], [first["0.weight"]])
        self.assertEqual(steps[7]["before"], steps[6]["after"])

    def parameters_of(self, events):
        return runs.of_kind(events, "optimizer")[0]["parameters"]

    def expect_samples(self, events):
        passes = runs.of_kind(events, "pass")
        self.assertEqual([p["sampler"]["epoch"] for p in passes], [0, 1])
        self.assertEqual(passes[0]["sampler"]["type"], "DistributedSampler")
        self.assertEqual(len(runs.of_kind(events, "trains")), 1)
        batches = runs.of_kind(events, "batch")
        by_index = {}
        for batch in batches:
            self.assertEqual(len(batch["samples"]), 4)
            for index, sample in zip(batch["indices"], batch["samples"]):
                self.assertEqual(by_index.setdefault(index, sample), sample)
        self.assertEqual(len(set(by_index.values())), len(by_index))

    def test_a_bounded_record_says_so(self):
        _, events = self.record(flags=["--limit_mb=0.002"])
        kinds = [event["event"] for event in events[0]]
        self.assertEqual(kinds[-2:], ["bounded", "end"])


class FailureTest(RecorderTest):
    def test_records_an_exception_and_its_line(self):
        done, events = runs.record_script(
            self.path("record"), TRAIN, "--fail_at=3", forked=True
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("RuntimeError: planted failure", done.stderr)
        (failure,) = runs.of_kind(events[0], "exception")
        self.assertEqual((failure["type"], failure["update"]), ("RuntimeError", 3))
        self.assertRegex(failure["line"], r"train\.py:\d+\Z")

    def test_an_error_of_a_hook_is_ours_and_the_script_goes_on(self):
        broken = "import torch\nimport lockstep\nlockstep.watch(7)\n" + train_source()
        done, events = runs.record_script(
            self.path("record"), self.path("broken.py", broken), forked=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(digests(done.stdout)), 2)
        errors = runs.of_kind(events[0], "error")
        self.assertTrue(errors)
        self.assertEqual(errors[0]["hook"], "watch")

    def test_a_script_without_pytorch_leaves_no_record(self):
        script = self.path("plain.py", "print(6 * 7)\n")
        done, events = runs.record_script(self.path("record"), script, nproc=1)
        self.assertEqual((done.returncode, events), (0, {}))
        self.assertTrue(done.stdout.startswith("42\nlockstep: not judged: no process"), done.stdout)

    def test_ends_a_command_that_hangs(self):
        hangs = train_source().replace("        scheduler.step()", HANG)
        done, events = runs.record_script(
            self.path("record"), self.path("hangs.py", hangs), flags=["--hang_seconds=2"], forked=True
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(runs.of_kind(events[1], "step")), 6)


HANG = "        while dist.get_rank():\n            torch.zeros(1)"


class WarningTest(RecorderTest):
    def test_a_warning_for_the_caller_of_a_hooked_function_names_the_users_line(self):
        script = self.path("warns.py", WARNS)
        done, _ = runs.record_script(self.path("record"), script, nproc=1, forked=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warns.py:10: UserWarning: careful", done.stderr)


# A model's eval() is hooked, and warns for the line of its caller, which is the last one.
WARNS = """
import warnings
import torch

def careful(self):
    warnings.warn("careful", stacklevel=2)
torch.nn.Module.eval.__wrapped__.__code__ = careful.__code__
torch.nn.Module.eval.__wrapped__.__globals__["warnings"] = warnings

torch.nn.Linear(1, 1).eval()
"""


class PreloadTest(RecorderTest):
    def test_runs_the_users_sitecustomize_too(self):
        self.path("site/sitecustomize.py", "import builtins\nbuiltins.users_own = 42\n")
        script = self.path("s.py", "import sys\nprint(users_own, 'preload' in ''.join(sys.path))\n")
        done, _ = runs.record_script(
            self.path("record"), script, nproc=1, PYTHONPATH=self.path("site")
        )
        self.assertEqual(done.stdout.splitlines()[0], "42 False", done.stderr)

    def test_a_module_that_imports_pytorch_before_it_has_its_classes(self):
        self.path("site/accelerate/__init__.py", "")
        self.path("site/accelerate/accelerator.py", EARLY)
        script = self.path("s.py", "from accelerate.accelerator import *\nprint(hooked())\n")
        done, _ = runs.record_script(
            self.path("record"), script, nproc=1, PYTHONPATH=self.path("site")
        )
        self.assertEqual(done.stdout.splitlines()[0], "[True, True]", done.stdout + done.stderr)
        self.assertNotIn("our own error", done.stdout)

    def test_leaves_a_module_of_the_users_alone(self):
        self.path("lockstep.py", "mine = 7\n")
        script = self.path("s.py", "import torch, lockstep\nprint(lockstep.mine)\n")
        done, _ = runs.record_script(self.path("record"), script, nproc=1)
        self.assertEqual(done.stdout.splitlines()[0], "7", done.stderr)


# Hugging Face Accelerate, as the hooks see it when a process imports it before torch.
EARLY = """
import torch

class Accelerator:
    def backward(self): pass

class AcceleratedScheduler:
    def step(self): pass

def hooked():
    methods = Accelerator.backward, AcceleratedScheduler.step
    return [hasattr(method, "_lockstep_hook") for method in methods]
"""


class CommandTest(unittest.TestCase):
    def test_wrong_flags_give_one_line_and_status_2(self):
        for arguments, said in (
            ((), "an action is missing"),
            (("run",), "a command is missing behind --"),
            (("judge", "/nonexistent"), "/nonexistent: No such file"),
            (("judge", "/usr"), "/usr: holds no record of a rank"),
            (("run", "--every=0", "--", "true"), "--every=0 is too small"),
            (("run", "--bogus", "--", "true"), "unrecognized arguments: --bogus"),
            (("run", "--", "/nonexistent/program"), "/nonexistent/program: No such file"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                done = runs.lockstep(*arguments, forked=True, LOCKSTEP_TEST=folder)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertRegex(done.stderr, r"\Alockstep: [^\n]*\n\Z")
            self.assertIn(said, done.stderr)

    def test_says_how_to_do_without_a_launcher_that_fails_by_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("run", "--output_dir=" + folder, "--", "sh", "-c")
            failed = runs.lockstep(*flags, "exit 3", "--nproc_per_node=2", forked=True)
            self.assertEqual(failed.returncode, 3)
            self.assertIn("`lockstep run --nproc=2 -- python3 SCRIPT`", failed.stdout)
            for arguments in (["exit 0", "--nproc_per_node=2"], ["exit 3"]):
                self.assertNotIn("--nproc", runs.lockstep(*flags, *arguments, forked=True).stdout)

    def test_passes_the_status_of_the_command_on(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("run", "--output_dir=" + folder, "--")
            self.assertEqual(runs.lockstep(*flags, "sh", "-c", "exit 7").returncode, 7)
            self.assertEqual(runs.lockstep(*flags, "sh", "-c", "kill -9 $$").returncode, 137)


if __name__ == "__main__":
    unittest.main()
