#!/usr/bin/python3
"""Mutants of pytorch_ddp.py, which //conformance:check must name: --bug=NAME.

A mutant is a class that replaces one or two small methods of the right trainer. Its docstring says
what is wrong. --list prints the names and docstrings.
"""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True  # The folder may be a source tree.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pytorch_ddp
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class LossNotScaled(pytorch_ddp.Trainer):
    """Each rank's loss is its own mean, and DDP averages the ranks with equal weights."""

    def scaled_loss(self, losses, share, total):
        return losses.sum() / max(1, share)


class AccumulationNotScaled(pytorch_ddp.Trainer):
    """Micro-batches' mean losses are added up, not divided by their number."""

    def scaled_loss(self, losses, share, total):
        return losses.sum() / max(1, len(losses)) * (share * self.world_size / total)


class NoSetEpoch(pytorch_ddp.Trainer):
    """The sampler's set_epoch is not called: every epoch has the order of the first."""

    def set_epoch(self, sampler, epoch):
        pass


class NoSyncBatchNorm(pytorch_ddp.Trainer):
    """BatchNorm2d is not converted: each rank normalises with its own batch."""

    def batch_norm(self, channels):
        return pytorch_ddp.LocalBatchNorm(channels)


class PaddedEvaluation(pytorch_ddp.Trainer):
    """DistributedSampler deals the test set, and repeats samples until the ranks divide it."""

    def evaluation_share(self, size):
        return list(self.sampler(size, self.world_size, self.rank, shuffle=False))


class UnweightedMetrics(pytorch_ddp.Trainer):
    """The test loss and accuracy are means of the ranks' own, with equal weights."""

    def metrics(self, sums):
        loss, accuracy, count = (sums / max(1.0, sums[2].item())).tolist()
        means = sums.new_tensor(
            [loss / self.world_size, accuracy / self.world_size, sums[2].item()]
        )
        dist.all_reduce(means)
        return means.tolist()


class GradientsReducedTwice(pytorch_ddp.Trainer):
    """After DDP has averaged the gradients they are all-reduced, summed, by hand too."""

    def before_update(self, step):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class ParameterLeftOutOfDdp(pytorch_ddp.Trainer):
    """DDP ignores W3: each rank updates it with its own gradient."""

    def wrap(self, model):
        # Different parts of DDP look for the outermost module's parameters under different names.
        names = ["W3", ".W3"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return super().wrap(model)


class DifferentSeedsPerRank(pytorch_ddp.Trainer):
    """Each rank's sampler has a seed of its own: samples are drawn by several ranks or by none."""

    def sampler_seed(self):
        return self.case.seed + self.rank


class RankSkipsLastBatch(pytorch_ddp.Trainer):
    """The last of several ranks ends its training one batch early, and the others wait for it."""

    TIMEOUT_SECONDS = 5

    def train(self, first_epoch, offset, step):
        self.skipped = False
        return super().train(first_epoch, offset, step) and not self.skipped

    def train_step(self, step, epoch, samples, is_last):
        self.skipped = is_last and 0 < self.rank == self.world_size - 1
        if not self.skipped:
            super().train_step(step, epoch, samples, is_last)


class RankLosesLastBatch(pytorch_ddp.Trainer):
    """The last of several ranks takes part in the last step without its samples."""

    def train_step(self, step, epoch, samples, is_last):
        self.is_last = is_last
        super().train_step(step, epoch, samples, is_last)

    def deal(self, samples):
        shares = super().deal(samples)
        return shares[:-1] + [[]] if self.is_last and self.world_size > 1 else shares


class LearningRateScaledByN(pytorch_ddp.Trainer):
    """The learning rate is multiplied by the number of ranks."""

    def learning_rate(self):
        return super().learning_rate() * self.world_size


class SumsInsteadOfAverages(pytorch_ddp.Trainer):
    """Gradients are summed over the ranks in place of averaged, as the loss expects."""

    def wrap(self, model):
        ddp = super().wrap(model)
        ddp.register_comm_hook(None, _sum_hook)
        return ddp


class GradientsDividedTwice(pytorch_ddp.Trainer):
    """The averaged gradients are divided by the number of ranks once more."""

    def before_update(self, step):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.world_size


class MetricsNotReduced(pytorch_ddp.Trainer):
    """Each rank reports the metrics of its own share of the test set."""

    def metrics(self, sums):
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item(), sums[2].item()


class BuffersOfRankZeroOnly(pytorch_ddp.Trainer):
    """Only rank 0 keeps its running statistics; the others' stay as they were at the start."""

    def build(self):
        super().build()
        self.start = [buffer.clone() for buffer in self.model.buffers()]

    def after_update(self, step):
        if self.rank > 0:
            for buffer, start in zip(self.model.buffers(), self.start):
                buffer.copy_(start)


class ResumeForgetsPosition(pytorch_ddp.Trainer):
    """After a resume the epoch starts from its beginning."""

    def position(self, saved):
        epoch, _, step = saved
        return epoch, 0, step


class ResumeForgetsMomentum(pytorch_ddp.Trainer):
    """After a resume the optimizer's momentum is zero."""

    def load_optimizer(self, state):
        pass


class FrozenIsTrained(pytorch_ddp.Trainer):
    """Frozen parameters are trained like the others."""

    def wrap(self, model):
        for parameter in model.parameters():
            parameter.requires_grad = True
        return super().wrap(model)


class UnusedDecays(pytorch_ddp.Trainer):
    """With several ranks missing gradients become zeros: unused parameters decay."""

    def before_update(self, step):
        for parameter in self.model.parameters():
            if self.world_size > 1 and parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class Hangs(pytorch_ddp.Trainer):
    """Rank 1 stops for good in the middle of the training, and the others wait for it."""

    TIMEOUT_SECONDS = 3600

    def before_update(self, step):
        while self.rank == 1 and step == 2:
            time.sleep(3600)


class Crashes(pytorch_ddp.Trainer):
    """Rank 1 raises an exception in the middle of the training."""

    def before_update(self, step):
        if self.rank == 1 and step == 2:
            raise RuntimeError("planted: rank 1 crashes in step 2")


class WritesGarbage(pytorch_ddp.Trainer):
    """Rank 1's files are random bytes."""

    def write(self):
        super().write()
        if self.rank == 1:
            for name in ("rank1.safetensors", "rank1.json"):
                with open(os.path.join(self.case.output, name), "wb") as file:
                    file.write(os.urandom(4096))


class WritesNothing(pytorch_ddp.Trainer):
    """No rank writes anything, and all end as if they had."""

    def write(self):
        pass


class WritesNaN(pytorch_ddp.Trainer):
    """One number of W4 is NaN after step 2."""

    def after_update(self, step):
        if step == 2:
            with torch.no_grad():
                self.model.W4[0, 0] = float("nan")


def _sum_hook(_, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


BUGS = {
    cls.__name__: cls for cls in pytorch_ddp.Trainer.__subclasses__() if cls.__module__ == __name__
}


def main():
    parser = argparse.ArgumentParser(
        prog="broken_pytorch_ddp",
        description=__doc__.split("\n", maxsplit=1)[0],
        allow_abbrev=False,
    )
    pytorch_ddp.add_device_flag(parser)
    parser.add_argument(
        "--bug", choices=tuple(BUGS), metavar="NAME", help="what is broken; see --list"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="prints the bugs' names, each with what is broken, and ends",
    )
    flags = parser.parse_args()
    if flags.list:
        for name, bug in BUGS.items():
            print(f"{name}: {bug.__doc__}")
    elif flags.bug is None:
        parser.error("--bug is missing; see --list")
    else:
        pytorch_ddp.end("broken_pytorch_ddp", BUGS[flags.bug], flags.device)


if __name__ == "__main__":
    main()
