"""Tests that right cases are read, wrong ones are rejected, and outputs are written."""

import json
import os
import struct
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import lockstep_protocol

CASE = {
    "protocol": 1,
    "name": "plain",
    "model": "lenet",
    "batch_norm": "none",
    "unused": ["aux"],
    "frozen": ["b1"],
    "dtype": "float32",
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0, "weight_decay": 0},
    "batch_sizes": [2, 1],
    "accumulate": 1,
    "epochs": 1,
    "shuffle": False,
    "seed": 0,
    "resume": False,
    "stop_after": 0,
    "evaluate": True,
    "write": {"gradients": [1], "state": [1, 2]},
}
SHAPES = {
    "W1": (20, 1, 3, 3),
    "b1": (20,),
    "W2": (50, 20, 5, 5),
    "b2": (50,),
    "W3": (800, 128),
    "b3": (128,),
    "W4": (128, 10),
    "b4": (10,),
    "aux": (4,),
}


def lenet():
    return {name: np.full(shape, 0.5, np.float32) for name, shape in SHAPES.items()}


def data():
    return {
        "train.images": np.zeros((3, 1, 28, 28), np.float32),
        "train.labels": np.array([1, 2, 3]),
        "test.images": np.ones((2, 1, 28, 28), np.float32),
        "test.labels": np.array([4, 5]),
    }


def safetensors(header, content=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


class FolderTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = os.path.join(self.folder, "output")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def write_case(self, case=None, weights=None, tensors=None):
        self.write("case.json", json.dumps(CASE if case is None else case).encode())
        lockstep_protocol.write_safetensors(self.path("weights.safetensors"), weights or lenet())
        lockstep_protocol.write_safetensors(self.path("data.safetensors"), tensors or data())

    def read_case(self):
        return lockstep_protocol.read_case(self.folder, self.output)

    def expect_error(self, read, *words):
        with self.assertRaises(ValueError) as caught:
            read()
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))


class SafetensorsTest(FolderTest):

    def test_what_is_written_is_read(self):
        tensors = {
            "float64": np.array([1 / 3, np.nan, np.inf]),
            "float32": np.array([[1 / 3]], np.float32),
            "float16": np.array([0.5], np.float16),
            "int64": np.array([[-1, 2**62]]),
            "int32": np.array([-7], np.int32),
            "int16": np.array([-7], np.int16),
            "int8": np.array([-7], np.int8),
            "uint8": np.array([255], np.uint8),
            "bool": np.array([True, False]),
            "scalar": np.array(3),
            "empty": np.zeros((0, 5), np.float32),
            "strided": np.arange(12, dtype=np.float32).reshape(3, 4).T,
            "big-endian": np.array([1.5], ">f4"),
        }
        path = self.path("a")
        lockstep_protocol.write_safetensors(path, tensors)
        read = lockstep_protocol.read_safetensors(path)
        self.assertEqual(list(read), list(tensors))
        for name, want in tensors.items():
            with self.subTest(tensor=name):
                self.assertEqual(read[name].dtype, want.dtype.newbyteorder("="))
                np.testing.assert_array_equal(read[name], want)
                self.assertTrue(read[name].flags.writeable)

    def test_bytes_are_the_formats(self):
        path = self.path("a")
        lockstep_protocol.write_safetensors(path, {"x": np.array([1, 2], np.int64)})
        with open(path, "rb") as file:
            content = file.read()
        size = struct.unpack_from("<Q", content)[0]
        self.assertEqual(size % 8, 0)
        self.assertEqual(
            json.loads(content[8 : 8 + size]),
            {"x": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}},
        )
        self.assertEqual(content[8 + size :], struct.pack("<qq", 1, 2))

    def test_bfloat16_is_read_as_float32(self):
        bits = struct.pack("<HHH", 0x3F80, 0xC0A0, 0x7F80)
        header = {
            "__metadata__": {"a": "b"},
            "x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]},
        }
        read = lockstep_protocol.read_safetensors(self.write("a", safetensors(header, bits)))
        self.assertEqual(list(read), ["x"])
        self.assertEqual(read["x"].dtype, np.float32)
        np.testing.assert_array_equal(read["x"], [1, -5, np.inf])

    def test_bad_files_are_refused(self):
        def entry(**changes):
            return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}

        bad = [
            (b"", "0 bytes"),
            (b"1234567", "7 bytes"),
            (struct.pack("<Q", 2**63) + b"{}", "a header of"),
            (struct.pack("<Q", 3) + b"{}", "a header of 3 bytes in a file of 10"),
            (safetensors(b"{"), "not JSON"),
            (safetensors(b"\xff\xfe"), "not JSON"),
            (safetensors([]), "JSON object"),
            (safetensors(b"[" * 100000), "not JSON"),
            (safetensors({"x": 1}), "x: its entry"),
            (safetensors(entry(dtype="F31"), bytes(8)), "'F31'"),
            (safetensors(entry(dtype=[]), bytes(8)), "x: the type"),
            (safetensors(entry(shape=[-2]), bytes(8)), "shape"),
            (safetensors(entry(shape=[True]), bytes(8)), "shape"),
            (safetensors(entry(shape=2), bytes(8)), "shape"),
            (safetensors(entry(shape=[1.5]), bytes(8)), "shape"),
            (safetensors(entry(shape=[3]), bytes(8)), "takes 12 bytes"),
            (safetensors(entry(shape=[2**62, 2**62]), bytes(8)), "bytes"),
            (safetensors(entry(shape=[0, 2**70], data_offsets=[0, 0])), "x: F32"),
            (safetensors(entry(shape=[1] * 99 + [2]), bytes(8)), "x: F32"),
            (safetensors(entry(), bytes(7)), "data_offsets"),
            (safetensors(entry(data_offsets=[8, 0]), bytes(8)), "places"),
            (safetensors(entry(data_offsets=[0]), bytes(8)), "places"),
            (safetensors(entry(data_offsets=[-8, 0]), bytes(8)), "places"),
            (safetensors(entry(data_offsets=None), bytes(8)), "places"),
        ]
        for content, cause in bad:
            with self.subTest(cause=cause, content=content[:60]):
                path = self.write("bad", content)
                self.expect_error(
                    lambda path=path: lockstep_protocol.read_safetensors(path), path, cause
                )
        self.expect_error(
            lambda: lockstep_protocol.read_safetensors(self.path("absent")), "absent: No such file"
        )

    def test_types_without_a_name_are_refused(self):
        for value in (np.array(["a"]), np.array([1j]), np.array([None])):
            self.expect_error(
                lambda value=value: lockstep_protocol.write_safetensors(
                    self.path("a"), {"x": value}
                ),
                "a: x",
            )


class CaseTest(FolderTest):

    def test_reads_a_case(self):
        self.write_case()
        with mock.patch.dict(os.environ, LOCKSTEP_CASE=self.folder, LOCKSTEP_OUTPUT=self.output):
            case = lockstep_protocol.read_case()
        self.assertEqual({key: getattr(case, key) for key in CASE}, CASE)
        np.testing.assert_array_equal(case.weights["W4"], lenet()["W4"])
        for name, want in data().items():
            np.testing.assert_array_equal(getattr(case, name.replace(".", "_")), want)
        self.assertEqual(case.checkpoint, os.path.join(self.output, "checkpoint"))

    def test_one_rank_takes_what_all_take(self):
        self.write_case()
        case = self.read_case()
        self.assertEqual(case.batch_sizes_for(2), [2, 1])
        self.assertEqual(case.batch_sizes_for(1), [3])
        self.expect_error(lambda: case.batch_sizes_for(3), "case.json", "2 numbers for 3 ranks")

    def test_a_model_of_the_users_own_may_have_any_weights(self):
        self.write_case(
            {**CASE, "model": "mine", "frozen": ["a"]},
            {"a": np.zeros(3, np.float32), "aux": lenet()["aux"]},
        )
        self.assertEqual(self.read_case().weights["a"].shape, (3,))

    def test_wrong_values_are_refused(self):
        wrong = {
            "protocol": [2, "1", True],
            "name": [1],
            "model": [None],
            "batch_norm": ["group"],
            "unused": ["aux", [1]],
            "frozen": [None, ["b9"]],
            "dtype": ["float16"],
            "batch_sizes": [[], [0, 0], [-1, 2], [1.5], 2],
            "optimizer": [
                None,
                {},
                {"name": "adam"},
                {**CASE["optimizer"], "momentum": None},
                {**CASE["optimizer"], "learning_rate": float("nan")},
                {**CASE["optimizer"], "learning_rate": True},
            ],
            "accumulate": [0, -1, 1.0],
            "epochs": [-1],
            "shuffle": [0],
            "seed": [-1],
            "resume": [None],
            "stop_after": [-1],
            "evaluate": ["yes"],
            "write": [[], {}, {"gradients": [0], "state": []}, {"gradients": [], "state": [True]}],
        }
        self.assertEqual(set(wrong), set(CASE))
        for key, values in wrong.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    self.write_case({**CASE, key: value})
                    self.expect_error(self.read_case, "case.json", key)
            with self.subTest(missing=key):
                self.write_case({k: v for k, v in CASE.items() if k != key})
                self.expect_error(self.read_case, "case.json", f"{key} is missing")

    def test_wrong_weights_are_refused(self):
        wrong = {
            "W1": lenet()["W1"][:19],
            "b1": None,
            "W3": lenet()["W3"].T,
            "W4": lenet()["W4"].astype(np.float64),
            "aux": np.zeros(5, np.float32),
            "other": np.zeros(1, np.float32),
        }
        for name, value in wrong.items():
            with self.subTest(name=name):
                self.write_case(
                    weights={k: v for k, v in {**lenet(), name: value}.items() if v is not None}
                )
                self.expect_error(self.read_case, "weights.safetensors", name)
        self.write_case({**CASE, "model": "lenet_bn"})
        self.expect_error(self.read_case, "weights.safetensors", "bn1.weight")

    def test_wrong_data_are_refused(self):
        wrong = {
            "train.images": np.zeros((3, 28, 28), np.float32),
            "train.labels": np.zeros(2, np.int64),
            "test.images": np.zeros((2, 1, 28, 28)),
            "test.labels": np.zeros(2, np.int32),
        }
        for name, value in wrong.items():
            with self.subTest(name=name):
                self.write_case(tensors={**data(), name: value})
                self.expect_error(self.read_case, "data.safetensors", name)
                self.write_case(tensors={k: v for k, v in data().items() if k != name})
                self.expect_error(
                    self.read_case, "data.safetensors", name.split(".", maxsplit=1)[0], "missing"
                )

    def test_missing_and_broken_files_are_named(self):
        self.write_case()
        for name in ("case.json", "weights.safetensors", "data.safetensors"):
            with self.subTest(name=name):
                self.write_case()
                self.write(name, b"\x00\xff{")
                self.expect_error(self.read_case, name)
                os.remove(self.path(name))
                self.expect_error(self.read_case, name, "No such file")

    def expect_rank(self, want, *environments):
        """Joins the environments, as for a launcher that another launcher started."""
        variables = {key: value for one in reversed(environments) for key, value in one.items()}
        with mock.patch.dict(os.environ, variables, clear=True):
            with self.subTest(variables=variables):
                self.assertEqual(lockstep_protocol.rank_and_world_size(), want)

    def test_the_launcher_that_another_started_counts(self):
        torchrun = {"RANK": "2", "WORLD_SIZE": "4"}
        open_mpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
        mpich = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
        srun = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
        for launcher in (torchrun, open_mpi, mpich):
            self.expect_rank((2, 4), launcher, srun)
        self.expect_rank((2, 4), torchrun, open_mpi, mpich)
        # srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE; mpirun sets values that differ from Slurm's.
        self.expect_rank((1, 2), srun, {"PMI_RANK": "1", "PMI_SIZE": "2"})
        self.expect_rank((2, 4), srun, {"PMI_RANK": "2", "PMI_SIZE": "4"})
        # The step's numbers take precedence over the job's.
        step = {**srun, "SLURM_NTASKS": "15", "SLURM_STEP_NUM_TASKS": "2"}
        self.expect_rank((1, 2), step)
        self.expect_rank((1, 2), step, {"PMI_RANK": "1", "PMI_SIZE": "2"})

    def test_a_shell_inside_a_slurm_allocation_is_no_rank(self):
        job = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "HOME": "/"}
        task = {**job, "SLURM_PROCID": "0"}
        for shell in (
            job,
            task,
            {**task, "SLURM_STEP_ID": "4294967291"},
            {**task, "SLURM_STEP_ID": "4294967290"},
            {"LOCAL_RANK": "0", "MASTER_ADDR": "host"},
            {"PMIX_RANK": "0"},
        ):
            with mock.patch.dict(os.environ, shell, clear=True), self.subTest(shell=shell):
                self.expect_error(lockstep_protocol.rank_and_world_size, "RANK is not set")

    def test_what_a_launcher_leaves_out_is_named(self):
        for rank, size in (
            ("RANK", "WORLD_SIZE"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS"),
        ):
            for name, missing in ((rank, size), (size, rank)):
                variables = {name: "0", "SLURM_STEP_ID": "0"}
                if name == "SLURM_NTASKS":  # A job sets this variable too.
                    missing = "RANK"
                with mock.patch.dict(os.environ, variables, clear=True):
                    self.expect_error(
                        lockstep_protocol.rank_and_world_size, missing + " is not set"
                    )

    def test_the_environment_is_checked(self):
        good = {"RANK": "1", "WORLD_SIZE": "3"}
        with mock.patch.dict(os.environ, good):
            self.assertEqual(lockstep_protocol.rank_and_world_size(), (1, 3))
        for key, value in (
            ("RANK", ""),
            ("RANK", "3"),
            ("RANK", "-1"),
            ("RANK", "x"),
            ("WORLD_SIZE", "0"),
        ):
            with mock.patch.dict(os.environ, {**good, key: value}):
                self.expect_error(lockstep_protocol.rank_and_world_size, key)
        for launcher in (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            {"PMI_RANK": "2", "PMI_SIZE": "4"},
            {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"},
        ):
            with mock.patch.dict(os.environ, launcher, clear=True):
                self.assertEqual(lockstep_protocol.rank_and_world_size(), (2, 4))
            with mock.patch.dict(os.environ, {**launcher, **good}, clear=True):
                self.assertEqual(lockstep_protocol.rank_and_world_size(), (1, 3))
        for name in ("LOCKSTEP_CASE", "LOCKSTEP_OUTPUT"):
            with mock.patch.dict(
                os.environ, {"LOCKSTEP_CASE": "a", "LOCKSTEP_OUTPUT": "b", name: ""}
            ):
                self.expect_error(lockstep_protocol.read_case, name)


class OutputTest(FolderTest):

    def setUp(self):
        super().setUp()
        self.write_case()
        self.out = lockstep_protocol.Output(
            self.read_case(), rank=1, world_size=2, software="test 1.0"
        )

    def read_json(self):
        with open(os.path.join(self.output, "rank1.json"), encoding="utf-8") as file:
            return json.load(file, parse_constant=self.fail)

    def test_writes_what_it_was_told(self):
        self.out.step(0, np.array([0, 2]), np.float32(0.5))
        self.out.step(0, [], None)
        gradients = {"W4": np.ones((128, 10), np.float32), "aux": None}
        self.out.gradients(1, gradients)
        gradients["W4"][:] = 7
        self.out.state(2, {"b1": np.zeros(20, np.float32)}, {"b2": np.ones(50, np.float32)})
        self.out.evaluation([1], 1.25, 0.5, np.int64(2))
        self.out.write()
        self.assertEqual(sorted(os.listdir(self.output)), ["rank1.json", "rank1.safetensors"])
        self.assertEqual(
            self.read_json(),
            {
                "protocol": 1,
                "rank": 1,
                "world_size": 2,
                "software": "test 1.0",
                "steps": [
                    {"epoch": 0, "indices": [0, 2], "loss": 0.5},
                    {"epoch": 0, "indices": [], "loss": None},
                ],
                "evaluation": {"indices": [1], "loss": 1.25, "accuracy": 0.5, "count": 2},
            },
        )
        tensors = lockstep_protocol.read_safetensors(os.path.join(self.output, "rank1.safetensors"))
        self.assertEqual(sorted(tensors), ["buffer.2/b2", "gradient.1/W4", "parameter.2/b1"])
        self.assertTrue((tensors["gradient.1/W4"] == 1).all())

    def test_knows_what_is_wanted(self):
        self.assertEqual(
            [self.out.wants_gradients(step) for step in (1, 2, 3)], [True, False, False]
        )
        self.assertEqual([self.out.wants_state(step) for step in (1, 2, 3)], [True, True, False])

    def test_numbers_that_json_lacks_are_strings(self):
        for loss in ("nan", "inf", "-inf"):
            self.out.step(0, [0], float(loss))
        self.out.write()
        self.assertEqual(
            [step["loss"] for step in self.read_json()["steps"]], ["nan", "inf", "-inf"]
        )
        self.assertIsNone(self.read_json()["evaluation"])

    def test_says_why_a_case_is_unsupported(self):
        self.out.unsupported('no "reason"')
        self.assertEqual(os.listdir(self.output), ["rank1.json"])
        self.assertEqual(
            self.read_json(),
            {"protocol": 1, "rank": 1, "world_size": 2, "unsupported": 'no "reason"'},
        )

    def test_refuses_what_the_case_does_not_have(self):
        self.expect_error(lambda: self.out.gradients(1, {"W9": np.zeros(1)}), "gradient.1/W9")
        self.expect_error(
            lambda: self.out.state(3, {}, {"b1": np.zeros(4)}), "buffer.3/b1", "[4]", "[20]"
        )

    def test_names_the_file_that_cannot_be_written(self):
        self.write("output", b"a file in the place of the folder")
        self.expect_error(self.out.write, "output")
        self.expect_error(lambda: self.out.unsupported("x"), "output")


if __name__ == "__main__":
    unittest.main()
