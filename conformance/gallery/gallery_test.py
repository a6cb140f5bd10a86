#!/usr/bin/python3
"""Tests that the broken scripts are broken and that the right ones are right, without a judge.

Ranks are forks of this process, so PyTorch is loaded once. `gallery_test.py Suite.test` runs one
test; another Python tests another PyTorch.
"""

import contextlib
import difflib
import glob
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # The ranks share the cores.
sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import junit_recorder

try:
    import torch
    import torch.distributed

    # A new PyTorch loads hundreds of modules when it makes its first optimizer.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
except ImportError:
    torch = None

DEADLINE_SECONDS = 120
RANKS = 2
BATCH_SIZE = 16
# Differences of weights, relative to the weights' norm. Runs that differ by rounding alone stay
# below the first, and broken scripts are above the second; between them a test fails.
ROUNDING, BUG = 1e-5, 1e-4
KEPT = []  # The DDP models of a rank.
NEEDS_NEW_TORCH = 77  # The exit status of a script that this PyTorch is too old for.

# What is wrong with each broken script, in words of `findings`. A twin has no findings.
BROKEN = {
    "accuracy_of_means": {"accuracy"},
    "batch_norm_buffers": {"buffers differ by rank"},
    "half_sum": {"weights"},
    "clip_before_reduction": {"weights"},
    "first_weights": {"weights", "weights differ by rank"},
    "last_window": {"weights"},
    "micro_batch_updates": {"weights"},
    "module_forward": {"weights", "weights differ by rank"},
    "optimizer_before_head": {"untrained: head.bias head.weight"},
    "resume_momentum": {"weights", "weights differ by rank"},
    "resume_order": {"weights"},
    "same_batches": {"weights", "samples"},
    "sampler_seeds": {"weights", "samples"},
    "scheduler_steps": {"weights"},
    "set_epoch": {"same order in each epoch"},
    "token_mean": {"weights"},
}
# In image_classifier, as DDP has it, only rank 0's buffers count: they are broadcast before each
# pass, and rank 0 alone evaluates and saves.
RIGHT = {
    "all_reduce": set(),
    "attention": set(),
    "ddp": set(),
    "ddp_accumulation": set(),
    "fsdp2": set(),
    "gan": set(),
    "image_classifier": {"buffers differ by rank"},
    "unused_parameters": set(),
}
# One rank computes other weights, because a rank draws its own random numbers (gan), has its own
# local batch norm (batch_norm_buffers) or both (image_classifier).
NOT_COMPARED_WITH_ONE_RANK = {"batch_norm_buffers", "gan", "image_classifier"}
# Micro-batches of an update. These scripts are compared with one rank that does not accumulate.
ACCUMULATION = {"ddp_accumulation": 4, "last_window": 3, "micro_batch_updates": 4}
# These scripts end after an epoch, and start again from their checkpoint.
RESUMED = {"resume_momentum", "resume_order"}
# These scripts are also asked which parameters no epoch changes.
FINE_TUNING = {"optimizer_before_head"}


@contextlib.contextmanager
def reserved_port():
    """Holds a free port, where rank 0 can listen because PyTorch's store sets SO_REUSEADDR too."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("0.0.0.0", 0))
        yield str(held.getsockname()[1])


def record_orders(path):
    """Has the passes over the first loader of this process append their indices to a file."""
    passes = torch.utils.data.BatchSampler.__iter__
    first = []

    def recorded(sampler):
        first.append(sampler)
        order = []
        for batch in passes(sampler):
            order += batch
            yield batch
        if sampler is first[0]:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(order) + "\n")

    torch.utils.data.BatchSampler.__iter__ = recorded


def keep_ddp_models():
    """Keeps the DDP models of this process until it ends without destructors.

    PyTorch 1.13's ~Reducer joins gloo's threads with the interpreter's lock held. Such a thread may
    wait for the lock, to release the last call's tensor, and then the process hangs.
    """
    initialize = torch.nn.parallel.DistributedDataParallel.__init__

    def kept(model, *args, **kwargs):
        KEPT.append(model)
        initialize(model, *args, **kwargs)

    torch.nn.parallel.DistributedDataParallel.__init__ = kept


def run_script(script, flags, environment, log):
    """Runs a script in this process; returns its exit status."""
    signal.alarm(DEADLINE_SECONDS)
    keep_ddp_models()
    record_orders(f"{environment['ORDERS']}.{environment['RANK']}")
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    sys.argv = [script, *flags]
    try:
        runpy.run_path(script, run_name="__main__")
        return 0
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:  # The fork must not go on as its parent.
        traceback.print_exc()
        return 1


def fork_rank(*arguments):
    """Starts a rank as a fork of this process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = run_script(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_ranks(script, world_size, orders, flags):
    """Runs all ranks of a script; returns their exit statuses and their output."""
    variables = {
        "ORDERS": orders,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
    }
    with tempfile.TemporaryFile() as log, reserved_port() as port:
        variables["MASTER_PORT"] = port
        pids = [
            fork_rank(
                os.path.join(HERE, script),
                flags,
                {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                log.fileno(),
            )
            for rank in range(world_size)
        ]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        log.seek(0)
        said = log.read().decode(errors="replace")
    return [os.WEXITSTATUS(s) if os.WIFEXITED(s) else -os.WTERMSIG(s) for s in statuses], said


def read_orders(path):
    if not os.path.exists(path):  # The script has no loader.
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def is_buffer(name):
    return name.endswith((".running_mean", ".running_var", ".num_batches_tracked"))


def distance(got, want):
    """Returns the largest |got - want| / |want| of all parameters; infinite for NaN."""
    largest = 0.0
    for name, value in want.items():
        # The gradient of attention's bias of keys is zero except for rounding, and Adam makes steps
        # of full length of that.
        if is_buffer(name) or name.endswith("in_proj_bias"):
            continue
        far = ((got[name] - value).norm() / value.norm()).item()
        largest = max(largest, far if far == far else float("inf"))
    return largest


def differ_by_rank(ranks, which):
    first, *others = ranks
    return any(
        not torch.equal(first[name], other[name])
        for other in others
        for name in filter(which, first)
    )


def order_findings(orders):
    """Returns the faults of the indices of ranks' passes over their loaders."""
    found = set()
    for shares in zip(*orders):
        if sorted(sum(shares, [])) != list(range(len(shares) * len(shares[0]))):
            found.add("samples")
    if any(len(passes) > 1 and passes[0] == passes[1] for passes in orders):
        found.add("same order in each epoch")
    return found


@unittest.skipIf(torch is None, "no PyTorch: apt-get install python3-torch")
class GalleryTest(unittest.TestCase):
    """Runs scripts in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.runs = 0

    def outputs(self, script, world_size, *flags, batch_size=BATCH_SIZE):
        """Runs a script, which must succeed; returns what its ranks saved.

        That is a dictionary by rank of weights ("model"), metrics, and orders of samples.
        """
        self.runs += 1
        prefix = os.path.join(self.folder, f"run{self.runs}")
        flags = [f"--batch-size={batch_size}", f"--save={prefix}", *flags]
        statuses, said = run_ranks(script, world_size, prefix + ".orders", flags)
        if statuses == [NEEDS_NEW_TORCH] * world_size:
            self.skipTest(said.splitlines()[0])
        self.assertEqual(statuses, [0] * world_size, said)
        ranks = []
        for rank in range(world_size):
            saved = torch.load(f"{prefix}.{rank}")
            ranks.append(saved if "model" in saved else {"model": saved})
            ranks[rank]["orders"] = read_orders(f"{prefix}.orders.{rank}")
        return ranks

    def runs_to_compare(self, script, name):
        """Returns the outputs of two ranks, and those of one rank with the same updates."""
        ranks_flags, one_rank_flags, batch_size = [], [], RANKS * BATCH_SIZE
        if name in ACCUMULATION:
            batch_size *= ACCUMULATION[name]
            ranks_flags.append(f"--accumulation-steps={ACCUMULATION[name]}")
            one_rank_flags.append("--accumulation-steps=1")
        if name in RESUMED:
            ranks_flags += [f"--checkpoint={self.folder}/checkpoint{self.runs}", "--epochs=2"]
            one_rank_flags.append("--epochs=2")
            self.outputs(script, RANKS, *ranks_flags, "--epochs=1")
        ranks = self.outputs(script, RANKS, *ranks_flags)
        return ranks, self.outputs(script, 1, *one_rank_flags, batch_size=batch_size)[0]

    def findings(self, script):
        """Returns the kinds of faults that runs of a script show."""
        name = os.path.splitext(os.path.basename(script))[0]
        ranks, one = self.runs_to_compare(script, name)
        weights = [rank["model"] for rank in ranks]
        found = order_findings([rank["orders"] for rank in ranks])
        if differ_by_rank(weights, lambda name: not is_buffer(name)):
            found.add("weights differ by rank")
        if differ_by_rank(weights, is_buffer):
            found.add("buffers differ by rank")
        if name not in NOT_COMPARED_WITH_ONE_RANK:
            far = distance(weights[0], one["model"])
            self.assertFalse(ROUNDING < far < BUG, f"{script}: neither right nor wrong: {far}")
            if far > ROUNDING:
                found.add("weights")
        if ranks[0].get("accuracy") != one.get("accuracy"):
            found.add("accuracy")
        if name in FINE_TUNING:
            first = self.outputs(script, 1, "--epochs=0")[0]["model"]
            same = [name for name in first if torch.equal(weights[0][name], first[name])]
            if same:
                found.add("untrained: " + " ".join(sorted(same)))
        return found


class RightTest(GalleryTest):
    """Two ranks train as one rank does, and alike."""

    def test_right_scripts(self):
        for name, expected in RIGHT.items():
            with self.subTest(script=name):
                self.assertEqual(self.findings(f"right/{name}.py"), expected)

    def test_mended_twins(self):
        for name in BROKEN:
            with self.subTest(script=name):
                self.assertEqual(self.findings(f"mended/{name}.py"), set())


class BrokenTest(GalleryTest):
    """Each broken script shows its own fault, and no other."""

    def test_broken_scripts(self):
        for name, expected in BROKEN.items():
            with self.subTest(script=name):
                self.assertEqual(self.findings(f"broken/{name}.py"), expected)


class FilesTest(unittest.TestCase):
    """The files are the tables', and each pair differs in few lines."""

    def scripts(self, folder):
        paths = glob.glob(os.path.join(HERE, folder, "*.py"))
        return sorted(os.path.splitext(os.path.basename(path))[0] for path in paths)

    def lines(self, folder, name):
        with open(os.path.join(HERE, folder, name + ".py"), encoding="utf-8") as file:
            return file.read().splitlines()

    def test_all_are_in_the_tables(self):
        self.assertEqual(self.scripts("right"), sorted(RIGHT))
        self.assertEqual(self.scripts("broken"), sorted(BROKEN))
        self.assertEqual(self.scripts("mended"), sorted(BROKEN))

    def test_twins_differ_in_few_lines(self):
        for name in BROKEN:
            compared = difflib.ndiff(self.lines("broken", name), self.lines("mended", name))
            changed = [line for line in compared if line[0] in "+-"]
            with self.subTest(script=name):
                self.assertTrue(1 <= len(changed) <= 6, changed)

    def test_the_page_lists_each(self):
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
            page = file.read()
        for name in (*RIGHT, *BROKEN):
            self.assertIn(f"| `{name}` |", page)


@unittest.skipIf(torch is None, "no PyTorch: apt-get install python3-torch")
class CommandTest(unittest.TestCase):
    """The README's command, with torchrun."""

    def test_torchrun_starts_a_script(self):
        with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
            # The torchrun of Debian 12 cannot read its own defaults of the first two flags.
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--redirects=1", "--tee=1"]
                + [f"--nproc_per_node={RANKS}", f"--master_port={port}"]
                + [os.path.join(HERE, "right/ddp.py"), "--epochs=1", f"--save={folder}/weights"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("epoch 0 loss ", done.stdout)
            self.assertEqual(sorted(os.listdir(folder)), ["weights.0", "weights.1"])


if __name__ == "__main__":
    junit_recorder.main()
