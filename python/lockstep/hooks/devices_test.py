"""Tests of what the hooks do with tensors and generators of a GPU, by stand-ins: there is no GPU."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, PYTHON)

import numpy as np
import torch

from lockstep import record
from lockstep.hooks import collectives, kept, numerics, recorder, tensors


class OnGpu(torch.Tensor):
    """A tensor with a GPU's limit: numpy can read its copy on the host alone."""

    is_cpu = property(lambda self: False)

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def pair(tensor):
    return tensor, tensor.as_subclass(OnGpu)


class TensorsTest(unittest.TestCase):
    def test_a_gpu_has_the_numbers_of_the_host(self):
        values = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
        for tensor in (values, values.t(), values.bfloat16(), values[:0], values > 0):
            host, gpu = pair(tensor)
            for function in (tensors.digest_of, tensors.digest_and_sums, tensors.linear_sums):
                self.assertEqual(function(gpu), function(host), function.__name__)
            self.assertEqual(tensors.identity(gpu), tensors.identity(host))
            self.assertEqual(tensors.sample_digests([gpu]), tensors.sample_digests([host]))
        few = torch.tensor([3.0, 0.5])
        self.assertEqual(collectives.few_values(pair(few)[1]), [3.0, 0.5])

    def test_tensors_that_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            file = kept.Kept(folder, 0, 3, 1000)
            file.add("after", ["weight"], [pair(torch.ones(3))[1]])
            file.close()
            with np.load(record.tensors_path(folder, 0, 3)) as found:
                self.assertEqual(found["after/weight"].tolist(), [1.0] * 3)


class CudaTest(unittest.TestCase):
    """Functions of torch.cuda are replaced."""

    def replace(self, owner, **functions):
        for name, function in functions.items():
            self.addCleanup(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)

    def use_gpu(self, capturing=False):
        self.generator = torch.Generator()
        self.replace(
            torch.cuda,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: capturing,
            default_generators=(self.generator,),
        )

    def test_nothing_starts_the_driver(self):
        def fail():
            raise AssertionError("this starts CUDA's driver, and a fork could use no GPU")

        self.replace(torch.cuda, is_available=fail, device_count=fail, current_device=fail)
        self.assertIsNone(numerics.state_of_generators()[1])
        self.assertFalse(recorder.captures_graph())

    def test_draws_of_a_gpu_count_from_the_first_look_on(self):
        draws = numerics.Draws()
        self.assertFalse(draws.take())
        self.use_gpu()
        self.assertFalse(draws.take())
        self.assertFalse(draws.take())
        torch.rand(1, generator=self.generator)
        self.assertTrue(draws.take())
        self.assertFalse(draws.take())

    def test_settings_of_tf32_that_differ_by_operation(self):
        def fail():
            raise RuntimeError("a mix of the legacy and new APIs")

        self.replace(torch, get_float32_matmul_precision=lambda: "highest")
        self.assertIn(numerics.allows_tf32(), (False, True))
        self.replace(torch, get_float32_matmul_precision=fail)
        self.assertTrue(numerics.allows_tf32())

    def test_no_hook_runs_while_a_graph_is_captured(self):
        with tempfile.TemporaryDirectory() as folder:
            found = recorder.Recorder(folder, {})
            self.use_gpu(capturing=True)
            self.assertIsNone(found.guard("step", lambda: 1))
            self.use_gpu(capturing=False)
            self.assertEqual(found.guard("step", lambda: 1), 1)
            found.ended = True


if __name__ == "__main__":
    unittest.main()
