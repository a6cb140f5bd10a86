"""Tests of the peer: its lines on a CPU, and its calls of a GPU on a stand-in for torch.cuda."""

import contextlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_peer

BATCH, CHANNELS, SIZE, CLASSES = 6, 3, 8, 5
PARAMETERS = {
    "conv.weight": [4, CHANNELS, 3, 3],
    "norm.weight": [4],
    "norm.bias": [4],
    "head.weight": [CLASSES, 64],
    "head.bias": [CLASSES],
}
BUFFERS = {"norm.mean": [4], "norm.variance": [4], "norm.batches": [1]}
OPERATIONS = [
    {"kind": "convolution", "weight": "conv.weight", "bias": None}
    | {"stride": 1, "padding": 1, "relu": False},
    {"kind": "batch_norm", "weight": "norm.weight", "bias": "norm.bias", "mean": "norm.mean"}
    | {"variance": "norm.variance", "batches": "norm.batches", "epsilon": 1e-5, "relu": True},
    {"kind": "pool", "maximum": True, "kernel": 2, "stride": 2, "padding": 0},
    {"kind": "linear", "weight": "head.weight", "bias": "head.bias"}
    | {"inputs_first": False, "per_position": False, "relu": False},
]


def write_tensors(path, tensors, metadata):
    """Writes a safetensors file. tensors: {name: (type, shape, values)}."""
    header, data = {"__metadata__": metadata}, b""
    for name, (kind, shape, values) in tensors.items():
        begin = len(data)
        letter = {"F32": "f", "I32": "i", "I64": "q"}[kind]
        data += struct.pack("<%d%s" % (len(values), letter), *values)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_case(folder):
    """Writes the files that the command writes for a small network."""
    numbers = random.Random(3)

    def draw(shape):
        count = 1
        for n in shape:
            count *= n
        return ("F32", shape, [numbers.uniform(-0.5, 0.5) for _ in range(count)])

    tensors = {name: draw(shape) for name, shape in PARAMETERS.items()}
    tensors["norm.mean"], tensors["norm.variance"] = ("F32", [4], [0] * 4), ("F32", [4], [1] * 4)
    tensors["norm.batches"] = ("I64", [1], [0])
    tensors["input.images"] = draw([BATCH, SIZE, SIZE, CHANNELS])
    tensors["input.labels"] = ("I32", [BATCH], [i * 7 % CLASSES for i in range(BATCH)])
    operations = [{"name": str(i), "inputs": [i], **op} for i, op in enumerate(OPERATIONS)]
    network = {"operations": operations, "parameters": list(PARAMETERS), "buffers": list(BUFFERS)}
    write_tensors(folder + "/case.safetensors", tensors, {"network": json.dumps(network)})
    nan = {name: (k, s, [float("nan")] * len(v)) for name, (k, s, v) in tensors.items()}
    gradients = {name: nan[name] for name in PARAMETERS}
    write_tensors(folder + "/gradients.safetensors", gradients, {})


def read_gradients(folder):
    tensors, _ = torch_peer.open_tensors(torch, folder + "/gradients.safetensors")
    return {name: tensor.clone() for name, tensor in tensors.items()}


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return []


class Capture(TorchDispatchMode):
    """Records operations, to compute them again in a replay."""

    def __init__(self):
        super().__init__()
        self.operations, self.fresh = [], []

    def __torch_dispatch__(self, function, types_, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = function(*args, **(kwargs or {}))
        if function.namespace == "profiler":  # Computes nothing on a GPU.
            return result
        self.operations.append((function, args, kwargs or {}, result))
        known = {tensor.data_ptr() for tensor in leaves([*args, *(kwargs or {}).values()])}
        self.fresh += [t for t in leaves(result) if t.data_ptr() not in known]
        return result

    def forget_values(self):
        """A GPU computes nothing in a capture: what it would compute is not there yet."""
        with torch.no_grad():
            for tensor in self.fresh:
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, result in self.operations:
                again = function(*args, **kwargs)
                for old, new in zip(leaves(result), leaves(again)):
                    if old.data_ptr() != new.data_ptr():  # Neither in place nor a view.
                        old.copy_(new)


class Reads(TorchDispatchMode):
    """Logs each number that the host reads from a tensor."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, function, types_, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            self.log.append("read")
        return function(*args, **(kwargs or {}))


class StandinStream:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append("%s waits for %s" % (self.name, other.name))


class StandinEvent:
    def __init__(self, cuda):
        self.cuda, self.number = cuda, None

    def record(self):
        self.number = next(self.cuda.events)
        self.cuda.log.append("record %d" % self.number)

    def synchronize(self):
        self.cuda.log.append("wait for %d" % self.number)

    def elapsed_time(self, other):
        return other.number - self.number


class StandinGraph:
    def __init__(self, log):
        self.log, self.capture = log, Capture()

    def replay(self):
        self.log.append("replay")
        self.capture.replay()


class StandinCuda:
    """Logs calls. Its graphs compute on the CPU."""

    def __init__(self, log):
        self.log = log
        self.main = self.current = StandinStream(log, "main")
        self.events = itertools.count()
        self.optimizer = None

    def is_available(self):
        return True

    def Stream(self):
        return StandinStream(self.log, "side")

    def current_stream(self):
        return self.current

    def synchronize(self):
        self.log.append("synchronize")

    def Event(self, enable_timing):
        assert enable_timing
        return StandinEvent(self)

    def CUDAGraph(self):
        return StandinGraph(self.log)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph):
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = sum(p.grad is not None for p in held)
        self.log.append("capture with %d gradients" % gradients)
        with self.stream(StandinStream(self.log, "capture")), graph.capture:
            yield
        graph.capture.forget_values()
        self.log.append("captured")


class StandinScaler:
    """A GradScaler for gradients that are infinite while the scale is above 2^13."""

    def __init__(self, log):
        self.log = log
        self.factor = torch.tensor(2.0**16)
        self.found = torch.tensor(0.0)

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        self.log.append("unscale")
        infinite = float("inf") if self.factor > 2.0**13 else 0.0
        self.found = torch.tensor(infinite)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.factor).add_(infinite)

    def step(self, optimizer):
        self.log.append("step")
        if not self.found.item():
            optimizer.step()

    def update(self):
        self.log.append("update")
        if self.found:
            self.factor /= 2


class StandinTorch:
    """PyTorch, with stand-ins for a GPU's parts."""

    def __init__(self):
        self.log = log = []
        self.compiled = []
        self.cuda = cuda = StandinCuda(log)
        self.amp = types.SimpleNamespace(GradScaler=lambda device: StandinScaler(log))
        cudnn, products = types.SimpleNamespace(), types.SimpleNamespace()
        cublas = types.SimpleNamespace(matmul=products)
        self.backends = types.SimpleNamespace(cuda=cublas, cudnn=cudnn)

        class Sgd(torch.optim.SGD):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                cuda.optimizer = self

            def step(self, closure=None):
                log.append("move on " + cuda.current.name)
                return super().step(closure)

        self.optim = types.SimpleNamespace(SGD=Sgd)

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, name):
        del name
        return torch.device("cpu")

    def autocast(self, device, dtype, enabled):
        """A CPU has autocast to bfloat16 in all versions."""
        del device, dtype
        return torch.autocast("cpu", torch.bfloat16, enabled=enabled)

    def compile(self, function, **options):
        self.compiled.append(options)
        return function


class Step(torch_peer.Step):
    """Logs its forward passes."""

    def network_loss(self):
        if isinstance(self.torch, StandinTorch):
            self.torch.log.append("pass on " + self.torch.cuda.current.name)
        return super().network_loss()


class PeerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write_case(self.folder)


class GpuTest(PeerTest):
    def setUp(self):
        super().setUp()
        self.torch = StandinTorch()
        self.log = self.torch.log

    def load(self, dtype, mode, device="cuda"):
        module = self.torch if device == "cuda" else torch
        return Step(module, "1", dtype, mode, "nhwc", device, self.folder)

    def first(self, step):
        """Returns the loss and the gradients of the first step."""
        word, loss = step.first()
        self.assertEqual(word, "loss")
        return float(loss), read_gradients(self.folder)

    def logged(self):
        found = list(self.log)
        self.log.clear()
        return found

    def time(self, step, seconds=3.5):
        """Returns what is logged while steps are timed. The clock counts its readings."""
        before = torch_peer.time
        torch_peer.time = types.SimpleNamespace(perf_counter=itertools.count().__next__)
        try:
            with Reads(self.log):
                answer = step.time(seconds)
        finally:
            torch_peer.time = before
        self.assertEqual(answer, ("timed", *[1e-3] * (len(answer) - 1)))
        return self.logged()

    def expect_same(self, found, expected):
        (loss, gradients), (expected_loss, expected_gradients) = found, expected
        self.assertEqual(loss, expected_loss)
        self.assertEqual(gradients.keys(), expected_gradients.keys())
        for name, gradient in gradients.items():
            self.assertTrue(gradient.isfinite().all(), name)
            self.assertGreater(gradient.abs().max(), 0, name)
            self.assertTrue(torch.equal(gradient, expected_gradients[name]), name)

    def expect_same_state(self, step, expected):
        for kind in ("parameters", "buffers"):
            tensors = getattr(expected, kind)
            for name, tensor in getattr(step, kind).items():
                self.assertTrue(torch.equal(tensor, tensors[name]), name)

    def test_a_graph_is_captured_after_a_warm_up(self):
        self.load("float32", "graph")
        self.assertEqual(
            self.logged(),
            ["side waits for main"]
            + ["pass on side", "move on side"] * 3
            + ["main waits for side", "capture with 0 gradients"]
            + ["pass on capture", "move on capture", "captured"],
        )

    def test_a_graph_does_what_eager_steps_do(self):
        for dtype in ("float32", "tf32", "bfloat16"):
            with self.subTest(dtype=dtype):
                eager = self.load("float32" if dtype == "tf32" else dtype, "eager", "cpu")
                step = self.load(dtype, "graph")
                self.expect_same_state(step, eager)
                expected = self.first(eager)
                self.expect_same(self.first(step), expected)
                self.expect_same_state(step, eager)
                self.time(step)
                for _ in range(5):
                    eager.take()
                self.expect_same_state(step, eager)

    def test_nothing_waits_in_a_timed_step(self):
        taken = {
            "eager": ["pass on main", "move on main"],
            "compile": ["pass on main", "move on main"],
            "graph": ["replay"],
        }
        for mode, calls in taken.items():
            with self.subTest(mode=mode):
                step = self.load("float32", mode)
                step.first()
                self.logged()
                # After the first three steps, the host waits for the last but two before each.
                steps = [[*calls, "record %d" % i] for i in range(5)]
                steps[3].insert(0, "wait for 0")
                steps[4].insert(0, "wait for 1")
                end = ["wait for 4", "read", "read"]
                self.torch.cuda.events = itertools.count()
                self.assertEqual(self.time(step), sum(steps, []) + end)

    def test_float16_is_updated_outside_of_the_graph(self):
        step = self.load("float16", "graph")
        log = self.logged()
        start = log.index("capture with 0 gradients")
        self.assertEqual(log[start + 1 :], ["pass on capture", "captured"])
        step.first()
        self.logged()
        log = self.time(step, seconds=0)
        one = ["replay", "unscale", "read", "step", "read", "move on main", "update", "read"]
        self.assertEqual(log[: len(one) + 1], one + ["record 0"])

    def test_float16_has_gradients_without_a_scale(self):
        """On this stand-in, float16 computes as bfloat16, and powers of two change no bit."""
        expected = self.first(self.load("bfloat16", "eager", "cpu"))
        for mode in ("eager", "compile", "graph"):
            with self.subTest(mode=mode):
                step = self.load("float16", mode)
                self.expect_same(self.first(step), expected)
                self.assertEqual(step.scaler.factor, 2.0**13)

    def test_gradients_that_are_never_finite(self):
        step = self.load("float16", "eager")
        step.scaler.unscale_ = lambda _: step.parameters["head.bias"].grad.fill_(float("nan"))
        with self.assertRaisesRegex(ArithmeticError, "finite with no scale"):
            step.first()

    def test_tf32_is_a_type(self):
        for dtype in ("tf32", "float32", "bfloat16", "float16"):
            self.load(dtype, "eager")
            backends = self.torch.backends
            allowed = (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)
            self.assertEqual(allowed, (dtype == "tf32",) * 2)
            self.assertTrue(backends.cudnn.benchmark)

    def test_compile_chooses_kernels_by_time_and_makes_no_graph(self):
        self.load("float32", "compile")
        options = {"dynamic": False, "mode": "max-autotune-no-cudagraphs"}
        self.assertEqual(self.torch.compiled, [options])

    def test_a_graph_is_no_rank(self):
        with self.assertRaisesRegex(ValueError, "a graph has no ranks"):
            self.load("float32", "graph").ddp("0", "1", "0.1", "2", "1")


class LinesTest(PeerTest):
    def answers(self, *lines):
        """Returns the answers of a process to the lines, the first without the word ready."""
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "torch_peer.py")],
            input="".join(line.replace("FOLDER", self.folder) + "\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
        ready, *found = done.stdout.splitlines()
        self.assertRegex(ready, r"^lockstep: ready \d+\.\d+")
        self.assertEqual(len(found), len(lines), done.stdout)
        self.assertTrue(all(text.startswith("lockstep: ") for text in found), found)
        return [text[len("lockstep: ") :] for text in found]

    def test_a_cpu_takes_steps(self):
        for dtype, layout in itertools.product(("float32", "bfloat16"), ("nchw", "nhwc")):
            load = "load 1 %s eager %s cpu FOLDER" % (dtype, layout)
            loaded, first, timed, memory = self.answers(load, "first", "time 0", "memory")
            self.assertEqual(loaded, "loaded")
            self.assertRegex(first, r"^loss [12]\.\d+$")
            self.assertRegex(timed, r"^timed \d\S+$")
            self.assertRegex(memory, r"^memory -?\d+$")
            for name, gradient in read_gradients(self.folder).items():
                self.assertTrue(gradient.isfinite().all(), name)

    def test_what_cannot_be_is_one_line(self):
        cases = {
            "load 1 float32 graph nchw cpu FOLDER": "graph needs a GPU",
            "load 1 tf32 eager nchw cpu FOLDER": "tf32 needs a GPU",
            "load 1 float16 eager nchw cpu FOLDER": "float16 needs a GPU",
            "load 1 float64 eager nchw cpu FOLDER": "'float64' is none of float32, ",
            "load 1 float32 graphs nchw cpu FOLDER": "'graphs' is none of eager, compile, graph",
            "load 1 float32 eager chwn cpu FOLDER": "'chwn' is none of nchw, nhwc",
            "load 1 float32 eager nchw tpu FOLDER": "'tpu' is none of cpu, cuda",
            "load 1 float32 eager nchw cpu": "load needs 6 words",
            "load 1 float32 eager nchw cpu FOLDER/none": "No such file or directory",
            "first": "nothing was loaded",
            "time": "nothing was loaded",
        }
        if not torch.cuda.is_available():
            cases["load 1 float32 graph nchw cuda FOLDER"] = "this PyTorch finds no GPU"
        for answer, why in zip(self.answers(*cases), cases.values()):
            self.assertRegex(answer, r"^cannot \w+: ")
            self.assertIn(why, answer)

    def test_a_load_that_fails_leaves_no_step(self):
        load = "load 1 float32 %s nchw cpu FOLDER"
        answers = self.answers(load % "eager", "forward", load % "graph", "first")
        self.assertEqual(answers[:2], ["loaded", "cannot ValueError: no such line: forward"])
        self.assertEqual(answers[3], "cannot ValueError: nothing was loaded")


if __name__ == "__main__":
    unittest.main()
