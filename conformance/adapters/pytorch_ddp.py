#!/usr/bin/python3
"""PyTorch's DistributedDataParallel as //conformance:check starts it.

PROTOCOL.md defines a case. //conformance:check, torchrun, mpirun or srun starts this program once
per rank. With mpirun and srun, the command must set MASTER_ADDR and MASTER_PORT. --recipe=exact
uses DistributedDataParallel so that N ranks compute what one rank computes; its class is Trainer.
--recipe=tutorial follows tutorials; its class is TutorialTrainer. TutorialTrainer and the mutants
beside this file replace some methods of Trainer.
"""

import argparse
import contextlib
import datetime
import os
import sys

sys.dont_write_bytecode = True  # The folders may be a source tree.
# Links are not resolved: Bazel's runfiles have both folders together, the links' targets may not.
sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "protocol")
)

import lockstep_protocol

TEST_BATCH = 64


try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler
except ImportError as missing:
    sys.exit(f"pytorch_ddp: {sys.executable} has no PyTorch with torch.distributed: {missing}")


class LocalBatchNorm(torch.nn.BatchNorm2d):
    """BatchNorm2d that keeps its buffers if a rank's batch is empty."""

    def forward(self, x):
        if self.training and x.shape[0] == 0:
            return x * self.weight[:, None, None] + self.bias[:, None, None]
        return super().forward(x)


class AllReduce(torch.autograd.Function):
    """The sum over all ranks. Every rank's loss depends on it, so its gradient is a sum too."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class CpuSyncBatchNorm(torch.nn.BatchNorm2d):
    """BatchNorm2d with the statistics of all ranks' batches, some of which may be empty.

    torch.nn.SyncBatchNorm has kernels for GPUs only and raises on the CPU. This layer uses two
    all-reduces, because a variance from sums of squares suffers from cancellation.
    """

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        dtype, x = x.dtype, x.float()
        dims, count = (0, 2, 3), x.new_tensor(x.shape[0] * x.shape[2] * x.shape[3])
        sums = AllReduce.apply(torch.cat([x.sum(dims), count[None]]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        deviation = x - mean[:, None, None]
        variance = AllReduce.apply((deviation * deviation).sum(dims)) / count
        self._track(mean.detach(), variance.detach() * count / (count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (deviation * scale[:, None, None] + self.bias[:, None, None]).to(dtype)

    def _track(self, mean, variance):
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked += 1


class LeNet(torch.nn.Module):
    """The protocol's `lenet` and `lenet_bn`, from a case's weights."""

    def __init__(self, case, batch_norm):
        """`batch_norm(channels)` makes a layer; not called for `lenet`."""
        super().__init__()
        norms = ("bn1", "bn2") if case.model == "lenet_bn" else ()
        for name in norms:
            self.add_module(name, batch_norm(case.weights[name + ".weight"].shape[0]))
        for name, value in case.weights.items():
            if name.split(".")[0] not in norms:
                self._add_parameter(name, value)
        self._load(case)

    def _add_parameter(self, name, value):
        """Adds a parameter under its full name. Each dot in the name starts a submodule."""
        module, *path = self, *name.split(".")
        for part in path[:-1]:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(path[-1], torch.nn.Parameter(torch.empty(value.shape)))

    def _load(self, case):
        self.load_state_dict(
            {name: torch.from_numpy(value) for name, value in case.weights.items()}
        )
        for name, parameter in self.named_parameters():
            parameter.requires_grad = name not in case.frozen

    def forward(self, x):
        """Returns logits [n, 10] of images [n, 1, 28, 28]."""
        x = F.conv2d(x, self.W1, self.b1)
        x = F.avg_pool2d(F.relu(self.bn1(x) if hasattr(self, "bn1") else x), 2)
        x = F.conv2d(x, self.W2, self.b2)
        x = F.avg_pool2d(F.relu(self.bn2(x) if hasattr(self, "bn2") else x), 2)
        x = F.relu(torch.addmm(self.b3, x.flatten(1), self.W3))
        return torch.addmm(self.b4, x, self.W4)


def cuts(size, count):
    """Returns where to cut `size` items into `count` pieces. The first may have one more item."""
    short, extra = divmod(size, count)
    return [i * short + min(i, extra) for i in range(count + 1)]


class Trainer:
    """Trains a case on this rank, so that all ranks together do what one rank would.

    Subclasses may use the attributes case, out, rank, world_size, device, model, ddp, optimizer.
    """

    TIMEOUT_SECONDS = 120
    # Each rank keeps its own buffers. With SyncBN, the buffers of all ranks are equal.
    BROADCAST_BUFFERS = False

    def __init__(self, case, out, rank, world_size, device):
        self.case, self.out, self.device = case, out, device
        self.rank, self.world_size = rank, world_size
        self.batch_sizes = case.batch_sizes_for(world_size)
        self.images, self.labels = self.on_device(case.train_images, case.train_labels)

    def on_device(self, *arrays):
        return [torch.from_numpy(array).to(self.device) for array in arrays]

    def run(self):
        """Trains, from a checkpoint if the case resumes; evaluates; writes."""
        if self.case.model not in ("lenet", "lenet_bn"):
            self.out.unsupported(f"there is no model {self.case.model} here")
            return
        self.build()
        epoch, offset, step = self.load() if self.case.resume else (0, 0, 0)
        if self.train(epoch, offset, step) and self.case.evaluate:
            self.evaluate()
        self.write()

    def write(self):
        self.out.write()

    # The model and its optimizer.

    def build(self):
        self.model = LeNet(self.case, self.batch_norm).to(self.device)
        self.ddp = self.wrap(self.model)
        self.optimizer = self.make_optimizer()

    def batch_norm(self, channels):
        if self.case.batch_norm != "sync":
            return LocalBatchNorm(channels)
        if self.device.type == "cuda":
            return torch.nn.SyncBatchNorm(channels)
        return CpuSyncBatchNorm(channels)

    def wrap(self, model):
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            broadcast_buffers=self.BROADCAST_BUFFERS,
            find_unused_parameters=bool(self.case.unused),
        )

    def learning_rate(self):
        return self.case.optimizer["learning_rate"]

    def make_optimizer(self):
        options = self.case.optimizer
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.SGD(
            parameters,
            lr=self.learning_rate(),
            momentum=options["momentum"],
            weight_decay=options["weight_decay"],
        )

    # The samples.

    def sampler_seed(self):
        return self.case.seed

    def set_epoch(self, sampler, epoch):
        sampler.set_epoch(epoch)

    def sampler(self, size, replicas, replica, shuffle):
        return DistributedSampler(
            range(size),
            num_replicas=replicas,
            rank=replica,
            shuffle=shuffle,
            seed=self.sampler_seed(),
        )

    def epoch_order(self, epoch):
        """Returns all ranks' samples of an epoch. DistributedSampler does not pad one replica."""
        sampler = self.sampler(len(self.labels), 1, 0, self.case.shuffle)
        self.set_epoch(sampler, epoch)
        return list(sampler)

    def deal(self, samples):
        """Returns a list per rank, dealt as DistributedSampler does; contiguous if sizes differ."""
        if len(set(self.batch_sizes)) == 1:
            return [samples[rank :: self.world_size] for rank in range(self.world_size)]
        shares = []
        for size in self.batch_sizes:
            shares.append(samples[:size])
            samples = samples[size:]
        return shares

    def evaluation_share(self, size):
        """Returns this rank's share of the test set: DistributedSampler's without its padding."""
        return list(range(self.rank, size, self.world_size))

    # Training.

    def train(self, first_epoch, offset, step):
        """Trains from sample `offset` of `first_epoch`; returns whether it reached the end."""
        for epoch in range(first_epoch, self.case.epochs):
            order = self.epoch_order(epoch)
            for begin in range(offset, len(order), sum(self.batch_sizes)):
                end = min(begin + sum(self.batch_sizes), len(order))
                step += 1
                is_last = epoch + 1 == self.case.epochs and end == len(order)
                self.train_step(step, epoch, order[begin:end], is_last)
                if step == self.case.stop_after:
                    self.save(epoch, end, step)
                    return False
            offset = 0
        return True

    def train_step(self, step, epoch, samples, is_last):
        """Makes one update on all ranks' `samples`. `is_last`: no update follows."""
        shares = self.deal(samples)
        share = shares[self.rank]
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = self.backward(shares, len(samples))
        self.out.step(epoch, share, loss_sum / len(share) if share else None)
        self.before_update(step)
        if self.out.wants_gradients(step):
            self.out.gradients(step, {name: p.grad for name, p in self.model.named_parameters()})
        self.optimizer.step()
        self.after_update(step)
        if self.out.wants_state(step):
            self.out.state(
                step, dict(self.model.named_parameters()), dict(self.model.named_buffers())
            )

    def before_update(self, step):
        """Called between backward and the update. For the mutants."""

    def after_update(self, step):
        """Called after the update. For the mutants."""

    def backward(self, shares, total):
        """Computes all ranks' gradients, reduced once. Returns this rank's sum of losses."""
        micro_batches = self.micro_batches(shares, total)
        # If a micro-batch is empty on some ranks only, all ranks run it. If on all, no rank does.
        used = [i for i in range(self.case.accumulate) if any(rank[i] for rank in micro_batches)]
        loss_sum = 0.0
        for i in used:
            with contextlib.nullcontext() if i == used[-1] else self.ddp.no_sync():
                micro_batch = micro_batches[self.rank][i]
                losses, _ = self.losses(self.ddp, self.images, self.labels, micro_batch)
                self.scaled_loss(losses, len(shares[self.rank]), total).backward()
            loss_sum += losses.sum().item()
        return loss_sum

    def micro_batches(self, shares, total):
        """Returns a list per rank, with one list of samples per micro-batch.

        If deal() is strided, all ranks' micro-batches together equal the micro-batches of one
        rank. Synchronised batch norm then has the same statistics.
        """
        strided = len(set(self.batch_sizes)) == 1
        split = []
        for rank, share in enumerate(shares):
            ends = cuts(total if strided else len(share), self.case.accumulate)
            if strided:  # The number of a rank's samples, rank + i * world_size, before each.
                ends = [(end - rank + self.world_size - 1) // self.world_size for end in ends]
            split.append([share[begin:end] for begin, end in zip(ends, ends[1:])])
        return split

    def losses(self, model, images, labels, indices):
        """Returns each sample's loss [n], and the logits [n, 10], in float32."""
        where = torch.tensor(indices, dtype=torch.int64, device=self.device)
        in_bfloat16 = self.case.dtype == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=in_bfloat16):
            logits = model(images[where])
        logits = logits.float()
        return F.cross_entropy(logits, labels[where], reduction="none"), logits

    def scaled_loss(self, losses, share, total):
        """Returns the scalar for backward(), for a micro-batch.

        `share` is this rank's number of samples in the step, `total` that of all ranks.
        DistributedDataParallel averages over the ranks without weights. With the factor
        world_size / total, the average is the gradient of the mean over all samples.
        """
        return losses.sum() * (self.world_size / total)

    # Evaluation.

    @torch.no_grad()
    def evaluate(self):
        images, labels = self.on_device(self.case.test_images, self.case.test_labels)
        indices = self.evaluation_share(len(labels))
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for begin in range(0, len(indices), TEST_BATCH):
            batch = indices[begin : begin + TEST_BATCH]
            losses, logits = self.losses(self.model, images, labels, batch)
            right = logits.argmax(1) == labels[torch.tensor(batch, device=self.device)]
            sums += sums.new_tensor([losses.double().sum(), right.sum(), len(batch)])
        loss, accuracy, count = self.metrics(sums)
        self.out.evaluation(indices, loss, accuracy, count)

    def metrics(self, sums):
        """Returns all ranks' loss, accuracy, count. sums: this rank's losses, hits, samples."""
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item(), sums[2].item()

    # Checkpoints.

    def save(self, epoch, offset, step):
        """Saves rank 0's state, equal on all ranks, and each rank's buffers (local batch norm)."""
        os.makedirs(self.case.checkpoint, exist_ok=True)
        if self.rank == 0:
            torch.save(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "position": [epoch, offset, step],
                },
                self.checkpoint("all"),
            )
        torch.save(dict(self.model.named_buffers()), self.checkpoint(f"rank{self.rank}"))

    def load(self):
        """Loads the state; returns the epoch, offset and step to continue from."""
        saved, buffers = self.read_checkpoint("all"), self.read_checkpoint(f"rank{self.rank}")
        self.model.load_state_dict({**saved["model"], **buffers})
        self.load_optimizer(saved["optimizer"])
        return self.position(saved["position"])

    def checkpoint(self, name):
        return os.path.join(self.case.checkpoint, name + ".pt")

    def read_checkpoint(self, name):
        try:
            return torch.load(self.checkpoint(name), map_location=self.device)
        except OSError as error:
            raise ValueError(f"{self.checkpoint(name)}: {error.strerror}") from error

    def load_optimizer(self, state):
        self.optimizer.load_state_dict(state)

    def position(self, saved):
        return saved


class TutorialTrainer(Trainer):
    """The tutorials' recipe. As documented, it does not always compute what one rank computes."""

    # DistributedDataParallel's default: each forward starts with rank 0's buffers.
    BROADCAST_BUFFERS = True

    def batch_norm(self, channels):
        if self.case.batch_norm == "sync":
            return torch.nn.SyncBatchNorm(channels)
        return torch.nn.BatchNorm2d(channels)

    def epoch_order(self, epoch):
        """DistributedSampler repeats the epoch's first samples until the ranks divide the epoch."""
        samplers = [
            self.sampler(len(self.labels), self.world_size, r, self.case.shuffle)
            for r in range(self.world_size)
        ]
        for sampler in samplers:
            self.set_epoch(sampler, epoch)
        return [index for group in zip(*samplers) for index in group]

    def evaluation_share(self, size):
        return list(self.sampler(size, self.world_size, self.rank, shuffle=False))

    def scaled_loss(self, losses, share, total):
        """The micro-batch's mean; DistributedDataParallel gives each rank the same weight."""
        return losses.sum() / max(1, len(losses)) / self.case.accumulate

    def metrics(self, sums):
        """The ranks' own metrics, averaged."""
        count = sums[2].clone()
        means = sums / max(1.0, sums[2].item())
        dist.all_reduce(means)
        dist.all_reduce(count)
        loss, accuracy, _ = (means / self.world_size).tolist()
        return loss, accuracy, count.item()

    def run(self):
        if self.case.batch_norm == "sync" and self.device.type == "cpu":
            self.out.unsupported("torch.nn.SyncBatchNorm runs on GPUs only")
        else:
            super().run()


RECIPES = {"exact": Trainer, "tutorial": TutorialTrainer}


def use_environment(device_type, rank, world_size):
    """Sets variables that gloo, cuBLAS and NCCL read as they start, unless the user set them.

    Raises:
      ValueError: MASTER_ADDR or MASTER_PORT is not set.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ValueError(
                f"{name} is not set, so that the ranks cannot meet; torchrun sets it, mpirun and "
                "srun do not: MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 before the command will do"
            )
    setdefault = os.environ.setdefault
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        setdefault("GLOO_SOCKET_IFNAME", "lo")  # A sandbox may not resolve the host's name.
    if device_type == "cpu":
        return
    setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Deterministic.
    if world_size > torch.cuda.device_count():
        # NCCL rejects ranks that share a GPU, unless their host ids differ.
        setdefault("NCCL_HOSTID", f"lockstep-{rank}")
        setdefault("NCCL_SOCKET_IFNAME", "lo")


def make_deterministic():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False  # TF32 has only 10 bits of mantissa.
    torch.backends.cuda.matmul.allow_tf32 = False


def this_ranks_device(device_type, rank):
    """Returns the CPU or a GPU. Ranks share GPUs if there are too few."""
    if device_type == "cpu":
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train(trainer_class, device_type):
    """Runs this rank's part of the case that the environment names.

    Raises:
      ValueError: the environment or the case is wrong. Names the cause.
    """
    case = lockstep_protocol.read_case()
    rank, world_size = lockstep_protocol.rank_and_world_size()
    if device_type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device=cuda: PyTorch finds no GPU")
    use_environment(device_type, rank, world_size)
    make_deterministic()
    backend = "nccl" if device_type == "cuda" else "gloo"
    software = f"PyTorch {torch.__version__}, DistributedDataParallel, {backend}"
    out = lockstep_protocol.Output(case, rank, world_size, software)
    device = this_ranks_device(device_type, rank)
    timeout = datetime.timedelta(seconds=trainer_class.TIMEOUT_SECONDS)
    dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=world_size)
    trainer_class(case, out, rank, world_size, device).run()
    dist.destroy_process_group()


def add_device_flag(parser):
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cpu: with gloo; cuda: with NCCL (default: %(default)s)",
    )


def end(program, trainer_class, device):
    """Runs the trainer. If the case is wrong, prints one line and exits with status 1."""
    try:
        train(trainer_class, device)
    except ValueError as error:
        sys.exit(f"{program}: {error}")


def main():
    parser = argparse.ArgumentParser(
        prog="pytorch_ddp",
        description="Runs one rank of a conformance case with PyTorch's DistributedDataParallel.",
        allow_abbrev=False,
    )
    add_device_flag(parser)
    parser.add_argument(
        "--recipe",
        choices=tuple(RECIPES),
        default="exact",
        help="exact: so that N ranks compute what one does; tutorial: as tutorials do "
        "(default: %(default)s)",
    )
    flags = parser.parse_args()
    end("pytorch_ddp", RECIPES[flags.recipe], flags.device)


if __name__ == "__main__":
    main()
