"""Tests that several ranks of pytorch_ddp.py do what one does, and that each mutant differs.

Ranks are forks of this process, so PyTorch is loaded once. `pytorch_ddp_test.py Suite.test` runs
one test. With LOCKSTEP_EXHAUSTIVE=1 all cases run, otherwise a slice of them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import unittest
from unittest import mock

import numpy as np

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import broken_pytorch_ddp
import pytorch_ddp

lockstep_protocol = pytorch_ddp.lockstep_protocol

EXHAUSTIVE = "LOCKSTEP_EXHAUSTIVE" in os.environ
DEADLINE_SECONDS = 120
SAMPLES, TEST_SAMPLES = 40, 17
# By layer: fan-in, mean gain, power, mean bias. Weights are uniform^power, positive and far apart:
# no ReLU is near its kink, and the rounding of sums stays small against the sums.
LAYERS = {
    1: (9, 1.3, 8, -0.1),
    2: (500, 1.3, 30, -0.02),
    3: (800, 1.3, 60, -0.02),
    4: (128, 3, 60, 0),
}
SHAPES = {1: ((20, 1, 3, 3), 20), 2: ((50, 20, 5, 5), 50), 3: ((800, 128), 128), 4: ((128, 10), 10)}


def make_weights(model, unused):
    random = np.random.RandomState(3)
    weights = {}
    for layer, (fan_in, gain, power, bias) in LAYERS.items():
        shape, outputs = SHAPES[layer]
        values = gain * (power + 1) / fan_in * random.uniform(size=shape) ** power
        weights[f"W{layer}"] = np.where(values < 1e-12, 0, values).astype(np.float32)
        weights[f"b{layer}"] = (2 * bias * random.uniform(size=outputs)).astype(np.float32)
    for name in unused:
        weights[name] = np.arange(1, 5, dtype=np.float32)
    if model == "lenet_bn":
        for layer, channels in (("bn1", 20), ("bn2", 50)):
            weights[layer + ".weight"] = np.full(channels, 0.1, np.float32)
            weights[layer + ".bias"] = np.ones(channels, np.float32)
            weights[layer + ".running_mean"] = np.zeros(channels, np.float32)
            weights[layer + ".running_var"] = np.ones(channels, np.float32)
            weights[layer + ".num_batches_tracked"] = np.array(0, np.int64)
    return weights


def make_data():
    """Returns images of blobs on a dark ground. A label encodes the blob's position and size."""
    random = np.random.RandomState(7)
    data = {}
    for part, size in (("train", SAMPLES), ("test", TEST_SAMPLES)):
        x, y = random.uniform(4, 24, (2, size, 1, 1))
        width = random.uniform(2, 7, (size, 1, 1))
        rows, columns = np.mgrid[:28, :28]
        blob = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * width**2))
        images = np.where(blob < 0.1, 0, blob * random.uniform(0.5, 1, blob.shape))
        labels = ((x > 14) + 2 * (y > 14) + 4 * (width > 4)).reshape(-1) % 10
        data[part + ".images"] = images.astype(np.float32)[:, None]
        data[part + ".labels"] = labels.astype(np.int64)
    return data


def write_case(folder, order=None, **changes):
    """Writes a case of four steps of 12 samples, the last of 4, with `changes` of its keys.

    `order` is the order of the training data.
    """
    case = {
        "protocol": 1,
        "name": "test",
        "model": "lenet",
        "batch_norm": "none",
        "unused": [],
        "frozen": [],
        "dtype": "float32",
        "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        "batch_sizes": [12],
        "accumulate": 1,
        "epochs": 1,
        "shuffle": False,
        "seed": 5,
        "resume": False,
        "stop_after": 0,
        "evaluate": True,
        "write": {"gradients": [1, 2, 3, 4], "state": [1, 4]},
        **changes,
    }
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "case.json"), "w", encoding="utf-8") as file:
        json.dump(case, file)
    lockstep_protocol.write_safetensors(
        os.path.join(folder, "weights.safetensors"), make_weights(case["model"], case["unused"])
    )
    data = make_data()
    if order is not None:
        data.update({name: data[name][order] for name in ("train.images", "train.labels")})
    lockstep_protocol.write_safetensors(os.path.join(folder, "data.safetensors"), data)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fork_rank(trainer, variables, log, deadline):
    """Starts a rank as a fork of this process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(deadline)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(variables)
        pytorch_ddp.train(trainer, "cpu")
        status = 0
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def run_ranks(trainer, world_size, case, output, deadline, names=("RANK", "WORLD_SIZE")):
    """Runs all ranks; returns their exit statuses, negative for a signal, and their outputs.

    `names` are the variables for the rank and the world size.
    """
    variables = {
        "LOCKSTEP_CASE": case,
        "LOCKSTEP_OUTPUT": output,
        names[1]: str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    with tempfile.TemporaryFile() as log:
        pids = [
            fork_rank(trainer, {**variables, names[0]: str(rank)}, log.fileno(), deadline)
            for rank in range(world_size)
        ]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        log.seek(0)
        said = log.read().decode(errors="replace")
    return [os.WEXITSTATUS(s) if os.WIFEXITED(s) else -os.WTERMSIG(s) for s in statuses], said


def read_output(output, world_size):
    """Reads each rank's JSON and tensors."""
    ranks = []
    for rank in range(world_size):
        path = os.path.join(output, f"rank{rank}")
        with open(path + ".json", encoding="utf-8") as file:
            record = json.load(file, parse_constant=lambda text: 1 / 0)
        ranks.append((record, lockstep_protocol.read_safetensors(path + ".safetensors")))
    return ranks


def far(a, b, tolerance, beside=0.0):
    """Whether |a - b| exceeds `tolerance` times the norm of b, or of `beside`; true for NaN."""
    a, b, beside = (np.asarray(x, np.float64) for x in (a, b, beside))
    scale = max(np.linalg.norm(b), np.linalg.norm(beside))
    return a.shape != b.shape or not np.linalg.norm(a - b) <= tolerance * scale


def weights_beside(name):
    """Returns the weights beside a bias: /W2 for gradient.1/b2, /bn1.weight for /bn1.bias."""
    if name.endswith(".bias"):
        return name[: -len("bias")] + "weight"
    return name.replace("/b", "/W")


def tensor_differences(ranks, one, tolerance):
    """Returns the kinds of tensors that differ. "disagree:...": the ranks' bits differ."""
    found = set()
    first, want = ranks[0][1], one[0][1]
    for name in sorted({**first, **want}):
        kind = name.split(".")[0]
        # A batch norm cancels the biases before it: their gradients are zero except for rounding.
        # The measure is therefore the gradient of the weights beside the bias.
        beside = want.get(weights_beside(name), 0.0)
        if name not in first or name not in want or far(first[name], want[name], tolerance, beside):
            found.add(kind)
        if any(
            name not in other or not np.array_equal(first.get(name), other[name])
            for _, other in ranks[1:]
        ):
            found.add("disagree:" + kind)
    return found


def first_step(outputs):
    """Returns the outputs with the tensors of the first step only."""
    return [
        (record, {k: v for k, v in tensors.items() if k.split("/")[0].endswith(".1")})
        for record, tensors in outputs
    ]


def differences(ranks, one, tolerance=1e-4):
    """Returns the kinds of things in which `ranks` differ from `one` (both from read_output)."""
    found = tensor_differences(ranks, one, tolerance)
    records, want = [record for record, _ in ranks], one[0][0]
    for step, one_step in enumerate(want["steps"]):
        steps = [record["steps"][step] for record in records if step < len(record["steps"])]
        indices = sorted(i for s in steps for i in s["indices"])
        if indices != sorted(one_step["indices"]) or {s["epoch"] for s in steps} != {
            one_step["epoch"]
        }:
            found.add("indices")
        elif far(
            sum(float(s["loss"]) * len(s["indices"]) for s in steps if s["indices"]) / len(indices),
            float(one_step["loss"]),
            tolerance,
        ):
            found.add("loss")
    if (want["evaluation"] is None) != any(record["evaluation"] is None for record in records):
        found.add("evaluation")
    elif want["evaluation"] is not None:
        found |= evaluation_differences(
            [record["evaluation"] for record in records], want["evaluation"], tolerance
        )
    return found


def evaluation_differences(evaluations, want, tolerance):
    found = set()
    if sorted(i for e in evaluations for i in e["indices"]) != want["indices"]:
        found.add("evaluation indices")
    for e in evaluations:
        if any(far(float(e[key]), want[key], tolerance) for key in ("loss", "accuracy", "count")):
            found.add("evaluation")
    return found


class AdapterTest(unittest.TestCase):
    """Runs cases in its own folder."""

    one_rank_runs = {}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.runs = 0

    def start(self, trainer, world_size, output=None, deadline=DEADLINE_SECONDS, **changes):
        """Runs a case; returns the ranks' exit statuses, their printed text, the output folder."""
        self.runs += 1
        case = os.path.join(self.folder, f"case{self.runs}")
        output = output or os.path.join(self.folder, f"output{self.runs}")
        write_case(case, **changes)
        return (*run_ranks(trainer, world_size, case, output, deadline), output)

    def outputs(self, trainer, world_size, output=None, **changes):
        """Runs a case in which every rank must succeed; returns the ranks' outputs."""
        statuses, said, output = self.start(trainer, world_size, output, **changes)
        self.assertEqual(statuses, [0] * world_size, said)
        return read_output(output, world_size)

    def resumed_outputs(self, trainer, world_size, stop_after, **changes):
        """Runs a case in two starts; returns the joined outputs."""
        output = os.path.join(self.folder, f"resumed{self.runs}")
        first = self.outputs(trainer, world_size, output, stop_after=stop_after, **changes)
        second = self.outputs(trainer, world_size, output, resume=True, **changes)
        for (record, tensors), (later, later_tensors) in zip(first, second):
            self.assertIsNone(record["evaluation"])
            record["steps"] += later["steps"]
            record["evaluation"] = later["evaluation"]
            tensors.update(later_tensors)
        return first

    def one_rank(self, **changes):
        """Returns the outputs of the right recipe on one rank; runs once for each case."""
        key = repr(changes)
        if key not in self.one_rank_runs:
            self.one_rank_runs[key] = self.outputs(pytorch_ddp.Trainer, 1, **changes)
        return self.one_rank_runs[key]

    def differences_of(self, trainer, batch_sizes, stop_after=0, **changes):
        """Compares `trainer`, on one rank per batch size, with the right recipe on one rank."""
        ranks = len(batch_sizes)
        if stop_after:
            found = self.resumed_outputs(
                trainer, ranks, stop_after, batch_sizes=batch_sizes, **changes
            )
        else:
            found = self.outputs(trainer, ranks, batch_sizes=batch_sizes, **changes)
        return differences(found, self.one_rank(**changes))


def grid(*always, more=()):
    """Returns the cases to run: `always`, and in exhaustive runs also `more`."""
    return (*always, *more) if EXHAUSTIVE else always


EVEN = {"batch_sizes": [6, 6]}
EVEN_OF_THREE = {"batch_sizes": [4, 4, 4]}
UNEVEN = {"batch_sizes": [9, 3]}
ACCUMULATE = {**EVEN, "accumulate": 3}
SHUFFLED = {
    **EVEN_OF_THREE,
    "shuffle": True,
    "epochs": 2,
    "write": {"gradients": [1, 5], "state": [8]},
}
SYNC = {**EVEN, "model": "lenet_bn", "batch_norm": "sync"}
PARTS = {**EVEN, "unused": ["aux", "head.weight"], "frozen": ["W1", "b3"]}
RESUME = {**SHUFFLED, "stop_after": 2, "write": {"gradients": [1, 3, 8], "state": [2, 8]}}


class RightTest(AdapterTest):
    """The right recipe does not differ from one rank."""

    def expect_one_rank(self, **changes):
        with self.subTest(**changes):
            self.assertEqual(self.differences_of(pytorch_ddp.Trainer, **changes), set())

    def test_even_batches(self):
        for changes in grid(EVEN_OF_THREE, more=({"batch_sizes": [12]}, EVEN)):
            self.expect_one_rank(**changes)

    def test_uneven_batches_and_a_rank_without_samples(self):
        for batch_sizes in grid([7, 1, 4], [12, 0], more=([9, 3],)):
            self.expect_one_rank(batch_sizes=batch_sizes)

    def test_accumulation(self):
        for changes in grid(UNEVEN, more=(EVEN, EVEN_OF_THREE)):
            self.expect_one_rank(accumulate=3, **changes)

    def test_shuffled_epochs(self):
        self.expect_one_rank(**SHUFFLED)

    def test_sync_batch_norm(self):
        for batch_sizes in grid([11, 1], [12, 0], more=([6, 6], [4, 4, 4])):
            self.expect_one_rank(**{**SYNC, "batch_sizes": batch_sizes})

    def test_sync_batch_norm_with_accumulation(self):
        self.expect_one_rank(**{**SYNC, "batch_sizes": [4, 4, 4]}, accumulate=2)

    def test_unused_and_frozen(self):
        for changes in grid(PARTS, more=({**PARTS, **EVEN_OF_THREE, "accumulate": 2},)):
            self.expect_one_rank(**changes)

    def test_resume(self):
        sync = {**RESUME, "model": "lenet_bn", "batch_norm": "sync"}
        for changes in grid(sync, more=(RESUME,)):
            self.expect_one_rank(**changes)

    def test_bfloat16(self):
        ranks = self.outputs(pytorch_ddp.Trainer, 2, batch_sizes=[6, 6], dtype="bfloat16")
        one = self.one_rank(dtype="bfloat16")
        # Each rank rounds the weights' gradients to 8 bits. Later steps begin with parameters whose
        # last bit may round them to another bfloat16, so only the first step's tensors are near.
        found = differences(first_step(ranks), first_step(one), tolerance=0.02)
        self.assertEqual(found, set())
        self.assertEqual(differences(ranks, one, tolerance=np.inf), set())  # Ranks agree.
        self.assertIn("gradient", differences(one, self.one_rank()))

    def test_local_batch_norm(self):
        """Two ranks compute what one rank computes with their shares as micro-batches."""
        changes = {"model": "lenet_bn", "batch_norm": "local"}
        ranks = self.outputs(pytorch_ddp.Trainer, 2, batch_sizes=[6, 6], **changes)
        starts = range(0, SAMPLES, 12)
        order = np.concatenate(
            [np.arange(SAMPLES)[i : i + 12][rank::2] for i in starts for rank in (0, 1)]
        )
        one = self.one_rank(order=order, accumulate=2, **changes)
        found = tensor_differences(ranks, one, tolerance=1e-4)
        self.assertEqual(found, {"buffer", "disagree:buffer"})
        self.assertEqual(ranks[0][1]["buffer.4/bn1.num_batches_tracked"], 4)


class TutorialTest(AdapterTest):
    """The tutorials' recipe differs exactly as PyTorch's documentation says."""

    # 40 samples are even on 2 ranks and padded on 3; 17 test samples are padded on 2 and on 3.
    EXPECTED = (
        (EVEN, {"evaluation", "evaluation indices"}),
        (EVEN_OF_THREE, {"indices", "gradient", "parameter", "evaluation", "evaluation indices"}),
        (UNEVEN, {"loss", "gradient", "parameter", "evaluation", "evaluation indices"}),
    )

    def test_differs_as_documented(self):
        for changes, expected in self.EXPECTED:
            with self.subTest(**changes):
                self.assertEqual(
                    self.differences_of(pytorch_ddp.TutorialTrainer, **changes), expected
                )

    def test_cannot_synchronise_batch_norm_on_the_cpu(self):
        statuses, said, output = self.start(pytorch_ddp.TutorialTrainer, 2, **SYNC)
        self.assertEqual(statuses, [0, 0], said)
        with open(os.path.join(output, "rank1.json"), encoding="utf-8") as file:
            self.assertEqual(
                json.load(file),
                {
                    "protocol": 1,
                    "rank": 1,
                    "world_size": 2,
                    "unsupported": "torch.nn.SyncBatchNorm runs on GPUs only",
                },
            )


class BrokenTest(AdapterTest):
    """Each mutant differs, and only in the intended kinds."""

    AFTER = {"loss", "parameter", "evaluation"}  # Effects of a wrong gradient.
    # The case, and all kinds that differ.
    EXPECTED = {
        "LossNotScaled": (UNEVEN, {"gradient"} | AFTER),
        "AccumulationNotScaled": (ACCUMULATE, {"gradient"} | AFTER),
        "NoSetEpoch": (SHUFFLED, {"indices", "gradient", "parameter", "evaluation"}),
        "NoSyncBatchNorm": (SYNC, {"gradient", "buffer", "disagree:buffer"} | AFTER),
        "PaddedEvaluation": (EVEN, {"evaluation", "evaluation indices"}),
        "UnweightedMetrics": (EVEN, {"evaluation"}),
        "GradientsReducedTwice": (EVEN, {"gradient"} | AFTER),
        "ParameterLeftOutOfDdp": (
            EVEN,
            {"gradient", "disagree:gradient", "disagree:parameter"} | AFTER,
        ),
        "DifferentSeedsPerRank": (SHUFFLED, {"indices", "gradient", "parameter", "evaluation"}),
        "RankLosesLastBatch": (EVEN, {"indices", "gradient", "parameter", "evaluation"}),
        "LearningRateScaledByN": (EVEN, {"gradient"} | AFTER),
        "SumsInsteadOfAverages": (EVEN, {"gradient"} | AFTER),
        "GradientsDividedTwice": (EVEN, {"gradient"} | AFTER),
        "MetricsNotReduced": (EVEN, {"evaluation"}),
        "BuffersOfRankZeroOnly": (SYNC, {"disagree:buffer", "evaluation"}),
        "ResumeForgetsPosition": (RESUME, {"indices", "gradient", "parameter", "evaluation"}),
        "ResumeForgetsMomentum": (RESUME, {"gradient"} | AFTER),
        "FrozenIsTrained": (PARTS, {"gradient"} | AFTER),
        "UnusedDecays": (PARTS, {"gradient", "parameter"}),
        "WritesNaN": (EVEN, {"gradient"} | AFTER | {"disagree:gradient", "disagree:parameter"}),
    }
    # broken_trainers_test always plants these; here they run only in exhaustive runs.
    CHECKED = {
        "LossNotScaled",
        "NoSetEpoch",
        "NoSyncBatchNorm",
        "PaddedEvaluation",
        "ParameterLeftOutOfDdp",
        "ResumeForgetsMomentum",
        "AccumulationNotScaled",
        "GradientsReducedTwice",
        "LearningRateScaledByN",
    }
    # The ratio of the first step's gradient to one rank's.
    FACTORS = {
        "AccumulationNotScaled": 3,
        "GradientsReducedTwice": 2,
        "SumsInsteadOfAverages": 2,
        "GradientsDividedTwice": 0.5,
        "LearningRateScaledByN": 1,
    }
    ENDS_BADLY = {"RankSkipsLastBatch", "Hangs", "Crashes", "WritesGarbage", "WritesNothing"}

    def test_differ_where_they_are_broken(self):
        for name, (changes, expected) in self.EXPECTED.items():
            if name in self.CHECKED and not EXHAUSTIVE:
                continue
            with self.subTest(bug=name):
                self.assertEqual(
                    self.differences_of(broken_pytorch_ddp.BUGS[name], **changes), expected
                )

    def test_gradients_are_off_by_a_factor(self):
        for name, factor in self.FACTORS.items():
            if name in self.CHECKED and not EXHAUSTIVE:
                continue
            changes = dict(self.EXPECTED[name][0], write={"gradients": [1], "state": []})
            with self.subTest(bug=name):
                got = self.outputs(broken_pytorch_ddp.BUGS[name], 2, **changes)[0][1]
                del changes["batch_sizes"]
                want = self.one_rank(**changes)[0][1]
                for tensor, value in want.items():
                    self.assertFalse(far(got[tensor], factor * value, 1e-4), tensor)

    def test_all_are_here(self):
        self.assertEqual(set(broken_pytorch_ddp.BUGS), {*self.EXPECTED, *self.ENDS_BADLY})

    def broken(self, name, **options):
        statuses, said, output = self.start(broken_pytorch_ddp.BUGS[name], 2, **{**EVEN, **options})
        return statuses, said, sorted(os.listdir(output)) if os.path.isdir(output) else []

    def test_rank_that_skips_its_last_batch_ends_well_and_alone(self):
        statuses, said, files = self.broken("RankSkipsLastBatch")
        self.assertEqual(statuses, [1, 0], said)
        self.assertEqual(files, ["rank1.json", "rank1.safetensors"])

    def test_hangs(self):
        statuses, said, files = self.broken("Hangs", deadline=2)
        self.assertEqual((statuses, files), ([-signal.SIGALRM] * 2, []), said)

    def test_crashes(self):
        statuses, said, files = self.broken("Crashes")
        self.assertEqual((statuses, files), ([1, 1], []))
        self.assertIn("planted: rank 1 crashes", said)

    def test_writes_garbage(self):
        statuses, said, output = self.start(broken_pytorch_ddp.WritesGarbage, 2, **EVEN)
        self.assertEqual(statuses, [0, 0], said)
        self.assertEqual(read_output(output, 1)[0][0]["rank"], 0)
        with self.assertRaises(ValueError):
            lockstep_protocol.read_safetensors(os.path.join(output, "rank1.safetensors"))

    def test_writes_nothing(self):
        self.assertEqual(self.broken("WritesNothing")[::2], ([0, 0], []))


class CommandTest(AdapterTest):
    """The commands as //conformance:check starts them."""

    def command(self, script, *flags, **variables):
        not_ours = ("LOCKSTEP_", "RANK", "WORLD", "MASTER_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, script), *flags],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def test_runs_a_case(self):
        write_case(self.folder)
        status, _, said = self.command(
            "pytorch_ddp.py",
            "--device=cpu",
            RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            LOCKSTEP_CASE=self.folder,
            LOCKSTEP_OUTPUT=self.folder + "/out",
        )
        self.assertEqual(status, 0, said)
        self.assertEqual(differences(read_output(self.folder + "/out", 1), self.one_rank()), set())

    def test_runs_ranks_of_mpirun(self):
        write_case(self.folder, batch_sizes=[6, 6])
        statuses, said = run_ranks(
            pytorch_ddp.Trainer,
            2,
            self.folder,
            self.folder + "/out",
            DEADLINE_SECONDS,
            names=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        )
        self.assertEqual(statuses, [0, 0], said)
        self.assertEqual(
            [record["rank"] for record, _ in read_output(self.folder + "/out", 2)], [0, 1]
        )

    def test_says_that_mpirun_names_no_place_to_meet(self):
        write_case(self.folder)
        status, _, said = self.command(
            "pytorch_ddp.py",
            OMPI_COMM_WORLD_RANK="0",
            OMPI_COMM_WORLD_SIZE="2",
            LOCKSTEP_CASE=self.folder,
            LOCKSTEP_OUTPUT=self.folder + "/out",
        )
        self.assertEqual(status, 1)
        self.assertRegex(said, r"\Apytorch_ddp: MASTER_ADDR is not set, [^\n]*\n\Z")

    def test_ranks_that_share_a_gpu_need_no_variable_for_their_rank(self):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        with mock.patch.dict(os.environ, meeting, clear=True):
            pytorch_ddp.use_environment("cuda", 1, 1000)
            self.assertEqual(os.environ["NCCL_HOSTID"], "lockstep-1")

    def test_says_in_a_line_what_is_wrong(self):
        self.assertEqual(
            self.command("pytorch_ddp.py"),
            (
                1,
                "",
                "pytorch_ddp: LOCKSTEP_CASE is not set in the environment; "
                "//conformance:check sets it\n",
            ),
        )

    def test_lists_the_bugs(self):
        status, said, _ = self.command("broken_pytorch_ddp.py", "--list")
        self.assertEqual(status, 0)
        self.assertEqual(
            [line.split(":")[0] for line in said.splitlines()], list(broken_pytorch_ddp.BUGS)
        )


if __name__ == "__main__":
    unittest.main()
